#!/bin/sh
# What packaging/deb/trial.sh runs inside of the fresh system.
set -eu

url=http://127.0.0.1:3001
step() {
    echo "== $*"
}
fail() {
    echo "FAILED: $*"
    journalctl --no-pager -u 'vivavoce*' | tail -60
    exit 1
}
# until SECONDS COMMAND...: repeats it until it succeeds.
until_() {
    tries=$(($1 * 5))
    shift
    while ! "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "not in time: $*"
        sleep 0.2
    done
}
healthy() {
    curl -fsS --max-time 3 "$url/healthz"
}
speaks() { # speaks MODEL
    curl -sS --max-time 30 -o /tmp/said.wav -w '%{http_code} %{size_download} bytes\n' "$url/speak" -H 'content-type: application/json' \
        -d "{\"text\": \"The package works.\", \"tts_config\": {\"provider\": \"local\", \"model\": \"$1\", \"audio_format\": \"wav\"}}"
}
recorded() { # recorded NAME SECONDS: it is stored, whole, as long as that at least, and nearly all of it is speech
    until_ 20 sh -c "curl -fsS $url/recordings | grep -q '\"$1\"'"
    curl -fsS "$url/recordings" | python3 -c '
import json, sys
name, seconds = sys.argv[1], float(sys.argv[2])
known = next(one for one in json.load(sys.stdin)["recordings"] if one["stream_id"] == name)
print("recorded:", known["duration_ms"], "ms, complete:", known["complete"])
sys.exit(not (known["complete"] and known["duration_ms"] >= seconds * 1000))' "$1" "$2" || fail "the recording $1 is not whole"
    runuser -u vivavoce -- env DATA_DIR=/var/lib/vivavoce vivavoce recordings verify "$1" || fail "the recording $1 is broken"
    said=$(curl -fsS "$url/recording/$1/transcript" | grep -c '"said"')
    echo "sentences in its transcript: $said"
    [ "$said" -ge 2 ] || fail "the recording $1 lacks what was said"
}
pid_of() {
    systemctl show -p MainPID --value "$1"
}
export DEBIAN_FRONTEND=noninteractive
# Where the sample of the settings differs, the administrator's own stay, as with unattended upgrades.

step "install"
install -d /etc/vivavoce
# A recogniser that hears nothing, for sessions that only talk.
echo NULL_ENABLED=true >/etc/vivavoce/environment
dpkg --force-confold -i /trial/old.deb
systemctl is-active vivavoce.service
systemctl is-enabled vivavoce.service
until_ 20 healthy
healthy
echo
stat -c '%n %U:%G %a' /etc/vivavoce /etc/vivavoce/vivavoce.yaml /var/lib/vivavoce
id vivavoce
[ "$(stat -c %U:%a /var/lib/vivavoce)" = vivavoce:700 ] || fail "the data folder is not the service's alone"

step "hardening"
grep -E 'nice|open files|core' "/proc/$(pid_of vivavoce.service)/limits"
systemd-analyze verify --man=no vivavoce.service vivavoce@a.service
systemd-analyze security --no-pager vivavoce.service | tail -1
if journalctl -u vivavoce.service | grep 'not fully confined'; then
    fail "workers are not confined under this unit"
fi

step "speech"
said=$(speaks espeak-ng)
echo "espeak-ng: $said"
case "$said" in 200*) ;; *) fail "espeak-ng does not speak" ;; esac
if [ -d /models ]; then
    echo MODELS_PATH=/models >>/etc/vivavoce/environment
    chmod 600 /etc/vivavoce/environment
    systemctl restart vivavoce.service
    until_ 20 healthy
    curl -sS "$url/readyz"
    echo
    said=$(speaks hibari)
    echo "hibari: $said"
    case "$said" in 200*) ;; *) fail "hibari does not speak" ;; esac
    # As a client of OpenAI's interface: a recogniser's worker hears what the voice said.
    curl -sS --max-time 60 "$url/v1/audio/transcriptions" -F model=whisper-1 -F file=@/tmp/said.wav | tee /tmp/heard
    echo
    grep -qi 'package' /tmp/heard || fail "nothing was heard"
fi

step "reload"
before=$(pid_of vivavoce.service)
sed -i 's|^#log.level: .*|log.level: debug|; s|^#limits.sessions: .*|limits.sessions: 77|' /etc/vivavoce/vivavoce.yaml
systemctl reload vivavoce.service
sleep 1
journalctl --no-pager -o cat -u vivavoce.service | grep -i 'limits.sessions' || fail "the settings were not read again"
[ "$(pid_of vivavoce.service)" = "$before" ] || fail "a reload restarted the server"

step "upgrade of the plain service: restarted, settings kept"
dpkg --force-confold -i /trial/new.deb
[ "$(pid_of vivavoce.service)" != "$before" ] || fail "the upgrade did not restart the server"
grep -x 'limits.sessions: 77' /etc/vivavoce/vivavoce.yaml
until_ 20 healthy
dpkg-query -W vivavoce

step "from the plain service to instances that replace each other, while somebody talks and is recorded"
python3 /trial/trial_session.py plain >/tmp/session 2>&1 &
session=$!
until_ 10 grep -q tts_playback_complete /tmp/session
/usr/lib/vivavoce/handover
systemctl is-active vivavoce@a.service
until_ 10 grep -q draining /tmp/session
kill -0 "$session" || fail "the session was cut"
if /usr/lib/vivavoce/handover; then
    fail "a third server was started while the first one has work"
fi
sleep 2
kill "$session"
until_ 20 sh -c '! systemctl is-active --quiet vivavoce.service'
recorded plain 4
systemctl is-enabled vivavoce@a.service
[ "$(systemctl show -p Result --value vivavoce.service)" = success ] || fail "the former server did not end well"

step "upgrade of an instance: handed over, nobody is cut off, a recording goes on"
python3 /trial/trial_session.py instance >/tmp/session 2>&1 &
session=$!
until_ 10 grep -q tts_playback_complete /tmp/session
dpkg --force-confold -i /trial/old.deb
systemctl is-active vivavoce@b.service
healthy
echo
sleep 2
kill -0 "$session" || fail "the session was cut: $(cat /tmp/session)"
tr '\n' ' ' </tmp/session
echo
kill "$session"
until_ 20 sh -c '! systemctl is-active --quiet vivavoce@a.service'
recorded instance 4
[ "$(systemctl show -p Result --value vivavoce@a.service)" = success ] || fail "the former instance did not end well"
systemctl is-enabled vivavoce@b.service
[ "$(systemctl is-enabled vivavoce.service)" = disabled ] || fail "two servers would start with the machine"

step "an upgrade with a broken configuration leaves the running server alone"
echo 'limits.sesions: 1' >>/etc/vivavoce/vivavoce.yaml
dpkg --force-confold -i /trial/new.deb
systemctl is-active vivavoce@b.service
healthy
echo
sed -i '/sesions/d' /etc/vivavoce/vivavoce.yaml

step "stop: within the drain"
began=$(date +%s)
systemctl stop vivavoce@b.service
echo "stopped after $(($(date +%s) - began)) s, $(systemctl show -p Result --value vivavoce@b.service)"
systemctl start vivavoce@b.service
until_ 20 healthy

step "remove: stopped, settings and data stay"
install -d -o vivavoce -g vivavoce /var/lib/vivavoce/recordings/kept
touch /var/lib/vivavoce/recordings/kept/audio.ogg
dpkg -r vivavoce
if systemctl is-active 'vivavoce*'; then
    fail "a server still runs"
fi
[ -e /etc/vivavoce/vivavoce.yaml ] || fail "the settings are gone"
[ -d /var/lib/vivavoce ] || fail "the data are gone"

step "install again: what ran before runs again; then purge: nothing is left but recordings"
dpkg --force-confold -i /trial/new.deb
until_ 20 healthy
systemctl is-active vivavoce@b.service
dpkg -P vivavoce
if find /etc/systemd/system | grep vivavoce; then
    fail "a unit is still enabled"
fi
[ ! -e /etc/vivavoce ] || fail "settings are left: $(ls /etc/vivavoce)"
find /var/lib/vivavoce
others=$(find /var/lib/vivavoce -type f ! -path '*/recordings/*')
[ -z "$others" ] && [ -e /var/lib/vivavoce/recordings/kept/audio.ogg ] && [ -e /var/lib/vivavoce/recordings/plain/audio.ogg ] || fail "the purge left or took too much"
if systemctl list-unit-files --no-legend 'vivavoce*' | grep .; then
    fail "units are left"
fi
echo "all good"
