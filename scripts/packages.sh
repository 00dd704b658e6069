# Debian packages for the two commands. Sourced, not run.

# need PACKAGE...: installs what is missing when root, else prints the line that does and stops.
need() {
    missing=""
    for package in "$@"; do
        dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
    done
    [ -z "$missing" ] && return 0
    if [ "$(id -u)" -ne 0 ]; then
        echo "These Debian packages are missing. Install them and run this again:" >&2
        echo "  sudo apt-get install --no-install-recommends$missing" >&2
        return 1
    fi
    echo "Installing$missing" >&2
    # The list of packages of a fresh machine is empty or old, so one failure is followed by an update.
    # shellcheck disable=SC2086 # a list of words
    install_quietly $missing || { apt-get update -qq && install_quietly $missing; }
}

install_quietly() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# need_rust: a word of help where the toolchain is missing.
need_rust() {
    command -v cargo >/dev/null && return 0
    echo "Rust's toolchain is missing; see https://rustup.rs" >&2
    return 1
}

# What the build and the local engines need.
ENGINES="flite espeak-ng libpocketsphinx3 pocketsphinx-en-us lame"
BUILD="cmake make gcc libc6-dev"
