#!/bin/sh
# Tries a package as an administrator would, on a fresh Debian with systemd: packaging/deb/trial.sh OLD.deb NEW.deb
# Installs, reloads, upgrades, replaces a server while somebody talks to it, removes and purges. Needs root,
# systemd-container and debootstrap; MODELS_PATH may name models to hear and speak with. ROOT keeps the system for the next
# trial (default: a folder that is removed). Takes a minute, without the download of Debian.
set -eu

[ $# -eq 2 ] || {
    echo "usage: packaging/deb/trial.sh OLD.deb NEW.deb" >&2
    exit 2
}
for tool in systemd-nspawn debootstrap; do
    command -v "$tool" >/dev/null || {
        echo "packaging/deb/trial.sh: $tool is not installed (Debian packages systemd-container, debootstrap)" >&2
        exit 1
    }
done
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=${ROOT:-$work/root}
if [ ! -e "$root/usr/bin/dpkg" ]; then
    debootstrap --variant=minbase \
        --include=systemd,systemd-sysv,adduser,ca-certificates,curl,espeak-ng,python3 bookworm "$root" >"$work/debootstrap.log" \
        || { tail "$work/debootstrap.log" >&2; exit 1; }
fi
mkdir "$work/trial"
cp "$1" "$work/trial/old.deb"
cp "$2" "$work/trial/new.deb"
cp "$here/trial_inside.sh" "$here/trial_session.py" "$work/trial"
# Run when the system is up, and its end with it.
install -d "$root/etc/systemd/system/multi-user.target.wants"
cat >"$root/etc/systemd/system/trial.service" <<'END'
[Unit]
Description=The trial of a package
[Service]
Type=exec
ExecStart=/bin/sh -c 'sh /trial/trial_inside.sh >/trial/log 2>&1; echo $? >/trial/status'
ExecStopPost=/bin/systemctl poweroff --no-block
END
ln -sf ../trial.service "$root/etc/systemd/system/multi-user.target.wants/trial.service"
models=""
[ -z "${MODELS_PATH-}" ] || models="--bind-ro=$(realpath "$MODELS_PATH"):/models"
# A copy in memory of what is changed: the root is as fresh the next time. No network but its own.
# shellcheck disable=SC2086 # none or one argument
timeout 300 systemd-nspawn --quiet --directory="$root" --volatile=overlay --private-network \
    --system-call-filter='landlock_create_ruleset landlock_add_rule landlock_restrict_self' --register=no --keep-unit \
    --bind="$work/trial:/trial" $models --boot </dev/null >"$work/console" 2>&1 &
nspawn=$!
wait "$nspawn" || true
cat "$work/trial/log" 2>/dev/null || cat "$work/console"
[ "$(cat "$work/trial/status" 2>/dev/null)" = 0 ] || {
    echo "packaging/deb/trial.sh: the trial failed" >&2
    exit 1
}
