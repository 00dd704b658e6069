#!/bin/sh
# Makes what a release consists of, by hand as in CI: packaging/dist.sh [--binary FILE] [OUTDIR]
# Builds the program with the profile `dist` (or takes FILE), then into OUTDIR (default: target/dist-packages) the archive,
# the Debian package, the list of what is linked with its licences, the Helm chart where helm is installed, and SHA256SUMS.
# The same commit gives the same files with the same tools. Needs cargo, python3 (3.11), dpkg-dev, binutils, xz-utils.
set -eu
root=$(dirname "$(dirname "$(realpath "$0")")")

binary=""
if [ "${1-}" = "--binary" ]; then
    binary=$(realpath "$2")
    shift 2
fi
outdir=${1:-$root/target/dist-packages}
mkdir -p "$outdir"
outdir=$(realpath "$outdir")
cd "$root"

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
target=$(uname -m)-unknown-linux-gnu
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
for tool in cargo python3 dpkg-deb dpkg-shlibdeps strip xz sha256sum; do
    command -v "$tool" >/dev/null || {
        echo "packaging/dist.sh: $tool is not installed" >&2
        exit 1
    }
done

if [ -z "$binary" ]; then
    # Nobody needs to know in which folder a release was built.
    home=${CARGO_HOME:-$HOME/.cargo}
    RUSTFLAGS="${RUSTFLAGS-} --remap-path-prefix=$root=/vivavoce --remap-path-prefix=$home=/cargo" \
        cargo build --profile dist --locked --no-default-features --bin vivavoce
    binary=${CARGO_TARGET_DIR:-target}/dist/vivavoce
fi
[ "$("$binary" --version)" = "vivavoce $version" ] || {
    echo "packaging/dist.sh: $binary is not version $version" >&2
    exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
name=vivavoce-$version-$target
folder=$work/$name

python3 packaging/sbom.py "$work" "$target"

# The archive: for machines without packages.
install -D -m 755 "$binary" "$folder/vivavoce"
strip --strip-unneeded "$folder/vivavoce"
install -m 644 LICENSE README.md CHANGELOG.md packaging/vivavoce.yaml packaging/systemd/vivavoce.service \
    "$work/third-party.txt" "$work/sbom.cdx.json" "$folder"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$work" -c "$name" \
    | xz -T1 >"$outdir/$name.tar.xz"

SBOM_DIR=$work packaging/deb/build.sh "$binary" "$version" "$outdir"
install -m 644 "$work/sbom.cdx.json" "$outdir/$name.cdx.json"

# Lines of the sources in traces of errors, for debuggers.
if [ -e "$binary.dwp" ]; then
    xz -T1 -k -c "$binary.dwp" >"$outdir/$name.dwp.xz"
fi

if command -v helm >/dev/null; then
    helm package packaging/helm/vivavoce --version "$version" --app-version "$version" --destination "$outdir" >/dev/null
else
    echo "packaging/dist.sh: helm is not installed: no chart" >&2
fi

(cd "$outdir" && find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS)
ls -l "$outdir"
