#!/bin/sh
# Makes the Debian package of a built program: packaging/deb/build.sh BINARY VERSION OUTDIR
# Needs dpkg-dev and binutils. MAINTAINER names who answers for the package; SOURCE_DATE_EPOCH dates it (default: the last
# commit); SBOM_DIR holds what packaging/sbom.py made (default: OUTDIR); DEB_COMPRESSION is for tests (default: xz).
# Prints the file it made.
set -eu

[ $# -eq 3 ] || {
    echo "usage: packaging/deb/build.sh BINARY VERSION OUTDIR" >&2
    exit 2
}
binary=$(realpath "$1")
version=$2
mkdir -p "$3"
outdir=$(realpath "$3")
here=$(dirname "$(realpath "$0")")
root=$(realpath "$here/../..")
maintainer=${MAINTAINER:-Vivavoce maintainers <maintainers@vivavoce.invalid>}
architecture=$(dpkg --print-architecture)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
# Debian orders 1.0.0~rc1 before 1.0.0, and allows no hyphen in the version of a program.
revision="$(echo "$version" | tr - '~')-1"

for tool in dpkg-deb dpkg-shlibdeps strip gzip; do
    command -v "$tool" >/dev/null || {
        echo "packaging/deb/build.sh: $tool is not installed (Debian packages dpkg-dev, binutils)" >&2
        exit 1
    }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
tree=$work/tree
mkdir -p "$tree/DEBIAN" "$work/debian"

put() { # put MODE SOURCE TARGET
    install -D -m "$1" "$2" "$tree/$3"
}
# compressed SOURCE TARGET: what Debian wants compressed, without a date inside.
compressed() {
    mkdir -p "$(dirname "$tree/$2")"
    gzip -9n <"$1" >"$tree/$2"
    chmod 644 "$tree/$2"
}

put 755 "$binary" usr/bin/vivavoce
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$tree/usr/bin/vivavoce"
put 755 "$here/handover" usr/lib/vivavoce/handover

# The settings: the sample, which needs one line to differ.
sed 's|^#data_dir: .*|data_dir: /var/lib/vivavoce|' "$here/../vivavoce.yaml" >"$work/vivavoce.yaml"
grep -qx 'data_dir: /var/lib/vivavoce' "$work/vivavoce.yaml" || {
    echo "packaging/deb/build.sh: the sample settings file has no data_dir" >&2
    exit 1
}
put 640 "$work/vivavoce.yaml" etc/vivavoce/vivavoce.yaml
echo /etc/vivavoce/vivavoce.yaml >"$tree/DEBIAN/conffiles"

# Two units of one file: a plain service, and a template whose instances replace each other.
put 644 "$here/../systemd/vivavoce.service" usr/lib/systemd/system/vivavoce.service
"$here/../systemd/template.sh" >"$work/vivavoce@.service"
put 644 "$work/vivavoce@.service" usr/lib/systemd/system/vivavoce@.service

sed -e "s/@VERSION@/$version/" -e "s/@DATE@/$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%d)/" "$here/vivavoce.1" >"$work/vivavoce.1"
compressed "$work/vivavoce.1" usr/share/man/man1/vivavoce.1.gz

put 644 "$here/copyright" usr/share/doc/vivavoce/copyright
cat >"$work/changelog" <<END
vivavoce ($revision) unstable; urgency=medium

  * Version $version; what has changed is in changelog.gz.

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
compressed "$work/changelog" usr/share/doc/vivavoce/changelog.Debian.gz
compressed "$root/CHANGELOG.md" usr/share/doc/vivavoce/changelog.gz
# What packaging/sbom.py made, where it has run.
for made in sbom.cdx.json third-party.txt; do
    [ ! -e "${SBOM_DIR:-$outdir}/$made" ] || compressed "${SBOM_DIR:-$outdir}/$made" "usr/share/doc/vivavoce/$made.gz"
done
put 644 "$here/lintian-overrides" usr/share/lintian/overrides/vivavoce

for script in postinst prerm postrm; do
    put 755 "$here/$script" "DEBIAN/$script"
done

# The libraries that the program is linked to, with the versions that it needs of them.
printf 'Source: vivavoce\n\nPackage: vivavoce\nArchitecture: any\n' >"$work/debian/control"
libraries=$(cd "$work" && dpkg-shlibdeps -O "$tree/usr/bin/vivavoce" 2>"$work/shlibdeps.log" | sed -n 's/^shlibs:Depends=//p') || true
[ -n "$libraries" ] || {
    cat "$work/shlibdeps.log" >&2
    echo "packaging/deb/build.sh: dpkg-shlibdeps names no library" >&2
    exit 1
}
size=$(du -k -s --apparent-size --exclude=DEBIAN "$tree" | cut -f 1)
cat >"$tree/DEBIAN/control" <<END
Package: vivavoce
Version: $revision
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $size
Depends: $libraries, adduser, ca-certificates, init-system-helpers (>= 1.54~)
Recommends: espeak-ng, flite, lame, libpocketsphinx3, pocketsphinx-en-us
Suggests: prometheus, redis-server
Section: sound
Priority: optional
Description: real-time voice server
 Speech-to-text and text-to-speech over one WebSocket, recordings, WebRTC rooms
 that LiveKit's clients can join, and telephone calls over SIP, in one program.
 .
 It hears and speaks with cloud vendors or with models on this machine, which
 "vivavoce models fetch" gets. The recommended packages are what it uses without
 models, and for MP3.
END
(cd "$tree" && find . -path ./DEBIAN -prune -o -type f -printf '%P\n' | LC_ALL=C sort | xargs md5sum) >"$tree/DEBIAN/md5sums"
chmod 644 "$tree/DEBIAN/control" "$tree/DEBIAN/conffiles" "$tree/DEBIAN/md5sums"

package=$outdir/vivavoce_${revision}_$architecture.deb
dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" --build "$tree" "$package" >/dev/null
echo "$package"
