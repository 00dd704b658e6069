#!/bin/sh
# Copies programs of Debian packages with what they load into a folder that becomes part of an image:
# packaging/collect.sh FOLDER PROGRAM|LIBRARY... The C library itself is the image's base.
set -eu

folder=$1
shift
copy() {
    # By the real path, as the base has no links for /lib.
    real=$(realpath "$1")
    install -D "$real" "$folder$real"
    # The name that the loader asks for, beside it.
    [ "$(basename "$1")" = "$(basename "$real")" ] || ln -sf "$(basename "$real")" "$folder$(dirname "$real")/$(basename "$1")"
}
for program in "$@"; do
    case "$program" in
    lib*) file=$(ldconfig -p | sed -n "s|.*$program .*=> \(/.*\)|\1|p" | head -n 1) ;;
    *) file=$(command -v "$program") ;;
    esac
    copy "$file"
    ldd "$file" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | while read -r library; do
        case "$(basename "$library")" in
        libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | ld-linux*) ;;
        *) copy "$library" ;;
        esac
    done
    # Its licence, and those of the libraries.
    for part in "$file" $(ldd "$file" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p'); do
        owner=$(dpkg-query -S "$(realpath "$part")" 2>/dev/null | head -n 1 | cut -d : -f 1)
        notice=/usr/share/doc/$owner/copyright
        [ -z "$owner" ] || [ ! -e "$notice" ] || install -D -m 644 "$(realpath "$notice")" "$folder$notice"
    done
done
# The voices.
data=/usr/lib/$(uname -m)-linux-gnu/espeak-ng-data
[ ! -d "$data" ] || cp -a --parents "$data" "$folder"
