#!/usr/bin/env python3
"""Attacks a server and measures what an innocent tenant has of it: sound in a session, a room and a call, and answers.

Every attack meets a fresh server with a data folder of its own. The innocent (innocent.py) is there for five quiet seconds,
during the attack (attacks.py), and afterwards until memory is back, 60 s at most. Prints a Markdown table; README.md says what its
columns mean. Traffic stays on loopback. Usage, from the root of the repository:

    .clients/python/bin/python benches/attacks/run.py BINARY [ATTACK…] [--seconds 10] [--json FILE]
"""

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
try:
    import livekit  # noqa: F401
except ImportError:
    python = HERE.parent.parent / ".clients/python/bin/python"
    if not python.exists() or python == pathlib.Path(sys.executable):
        sys.exit("LiveKit's client is missing: ./test makes .clients/python, or pip install -r tests/clients/requirements.txt")
    os.execv(python, [python, *sys.argv])

import attacks
import wire

QUIET_S = 5.0
SETTLE_S = 60.0
AFTERMATH_S = 2.0
DRAIN_S = 2
ROLES = ["clock", "call", "room", "session", "asker"]
NUMBER, ANOTHER = "+14155550100", "+14155550101"
# What innocent.py does not tell of.
SMALL = "≤ 22"
TICKS = os.sysconf("SC_CLK_TCK")
COLUMNS = [
    "attack", "what the attacker did", "session: gap, ms", "room: gap, ms", "call: gap of packets / sound, ms", "`/healthz`", "`/voices`",
    "begins anew: room, session, call, speech", "memory, MiB: before / peak / after", "CPU, s: quiet / attack", "SIGTERM, s",
    "this machine late, ms",
]


def with_parent():
    """Ends a child when this process ends, however it does."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def free_port(kind, host=wire.HOST):
    with socket.socket(socket.AF_INET, kind) as one:
        one.bind((host, 0))
        return one.getsockname()[1]


def free_ports(count):
    """So many UDP ports in a row below those that the system gives away."""
    for _ in range(100):
        first = random.randrange(10_000, 31_000 - count, 2)
        try:
            for port in range(first, first + count, 7):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
                    one.bind((wire.HOST, port))
            return first
        except OSError:
            pass
    raise SystemExit("there are no free ports")


class Server:
    """A server with two tenants, a telephone side and a data folder of its own."""

    def __init__(self, binary, more, most_mib):
        self.data = tempfile.mkdtemp(prefix="vivavoce-attacks-")
        self.innocent, self.hostile = secrets.token_hex(20), secrets.token_hex(20)
        self.sip, first = free_port(socket.SOCK_DGRAM), free_ports(1_040)
        self.rtp = (first, first + 1_039)
        tenants = [{"id": "innocent", "secret": self.innocent}, {"id": "hostile", "secret": self.hostile}]
        settings = {
            "AUTH_REQUIRED": "true",
            "AUTH_API_SECRET": secrets.token_hex(20),
            "AUTH_API_SECRETS_JSON": json.dumps(tenants),
            "NULL_ENABLED": "true",
            "RTC_MODE": "embedded",
            "RTC_UDP_PORT": "0",
            "SHUTDOWN_DRAIN_SECONDS": str(DRAIN_S),
            "SIP_LISTEN": f"udp:{wire.HOST}:{self.sip}",
            "SIP_RTP_PORTS": f"{first}-{first + 1_039}",
            "SIP_ROOM_PREFIX": "call-",
            "SIP_ALLOWED_ADDRESSES": f"{wire.HOST},{attacks.GATEWAY}",
            # Servers that do not know it leave it alone.
            "SIP_TENANT_NUMBERS": json.dumps({"innocent": [NUMBER, ANOTHER]}),
            **more,
        }
        self.log = open(f"{self.data}/log", "w+b")
        self.died = None
        self.samples = []
        self.stopping = threading.Event()
        environment = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR") or name.startswith("MALLOC_")}
        self.process = subprocess.Popen(
            [binary, "serve", "--port", "0", "--data-dir", self.data], cwd=self.data, env={**environment, **settings},
            stdout=subprocess.PIPE, stderr=self.log, start_new_session=True, preexec_fn=with_parent,
        )
        self.port = None
        for line in self.process.stdout:
            if b"listens on " in line:
                self.port = int(line.rsplit(b":", 1)[1].strip(b"/ \r\n"))
                break
        if self.port is None:
            text = self.tail()
            self.end()
            raise SystemExit(f"the server does not start:\n{text}")
        threading.Thread(target=lambda: [None for _ in self.process.stdout], daemon=True).start()
        self.most_mib = most_mib
        threading.Thread(target=self.watch, daemon=True).start()

    def tail(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text(errors="replace")[-2_000:]

    def rss(self):
        """In MiB; None when it is gone."""
        try:
            text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
            return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")) / 1_024
        except (OSError, StopIteration):
            return None

    def cpu(self):
        """Seconds of the process, without its children."""
        try:
            fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / TICKS
        except OSError:
            return None

    def watch(self):
        while not self.stopping.wait(0.05):
            rss = self.rss()
            if self.process.poll() is not None or rss is None:
                if self.died is None and not self.stopping.is_set():
                    self.died = f"it ended by itself ({self.process.poll()})"
                return
            self.samples.append((time.monotonic(), rss))
            if rss > self.most_mib:
                self.died = f"ended by the drill at {rss:,.0f} MiB"
                self.process.kill()
                return

    def peak(self, begin, end):
        return max((rss for at, rss in self.samples if begin <= at <= end), default=None)

    def terminate(self, patience=30.0):
        """How long SIGTERM takes; None when it is gone already."""
        self.stopping.set()
        if self.process.poll() is not None:
            return None
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            return f"> {patience:.0f}"
        return time.monotonic() - began

    def end(self):
        self.stopping.set()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.data, ignore_errors=True)


class Innocent:
    """Its processes, and what they said."""

    def __init__(self, server):
        self.given = {
            "port": server.port, "sip": server.sip, "token": server.innocent, "number": NUMBER, "another": ANOTHER,
            "room": f"call-{NUMBER}",
        }
        self.said, self.processes, self.ready = [], {}, {}
        self.changed = threading.Condition()

    def start(self):
        # One after the other: a call into a room where somebody listens is answered at once, and the tenant's room is there first.
        wire.room_token(self.given["port"], self.given["token"], self.given["room"], "first")
        for role in ROLES:
            process = subprocess.Popen(
                [sys.executable, HERE / "innocent.py", role, json.dumps(self.given)], stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, start_new_session=True, preexec_fn=with_parent,
            )
            self.processes[role] = process
            threading.Thread(target=self.listen, args=(role, process), daemon=True).start()
            threading.Thread(target=lambda one=process: one.stderr.read(), daemon=True).start()
            if role == "call":
                # Its sound begins with the room's.
                continue
            self.wait(role)
        self.wait("call")

    def wait(self, role, patience=30.0):
        with self.changed:
            self.changed.wait_for(lambda: role in self.ready, patience)
            if self.ready.get(role) is None:
                told = [one for one in self.said if one["what"] in ("error", "over")]
                raise RuntimeError(f"the innocent's {role} did not begin: {told}")

    def listen(self, role, process):
        for line in process.stdout:
            one = {**json.loads(line), "role": role}
            with self.changed:
                if one["what"] == "ready":
                    self.ready[role] = one
                else:
                    self.said.append(one)
                self.changed.notify_all()
        with self.changed:
            self.ready.setdefault(role, None)
            self.changed.notify_all()

    def stop(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        time.sleep(0.2)

    def gap(self, of, begin, end):
        """The longest that touches this time; None where there was none."""
        gaps = [one["ms"] for one in self.said if one["what"] == "gap" and one["of"] == of and one["at"] < end and one["at"] + one["ms"] / 1_000 > begin]
        return max(gaps, default=None)

    def over(self, role, end):
        return any(one["what"] == "over" and one["role"] == role and one["at"] < end for one in self.said)

    def answers(self, name, begin, end):
        """How many were asked, how many answered with 200 within a second, the worst in ms, and the other outcomes."""
        of = [one for one in self.said if one["what"] == "asked" and one["name"] == name and begin <= one["at"] < end]
        good = sum(one["status"] == 200 and one["ms"] <= (1_000 if name in ("healthz", "voices") else 5_000) for one in of)
        return {
            "asked": len(of), "good": good, "worst_ms": max((one["ms"] for one in of), default=None),
            "others": sorted({str(one["status"]) for one in of} - {"200"}),
        }

    def late(self, begin, end):
        return max((one["ms"] for one in self.said if one["what"] == "late" and begin <= one["at"] < end), default=0.0)


def measured(innocent, begin, end):
    """All about the innocent in this time."""
    gaps = {of: innocent.gap(of, begin, end) for of in ("session", "call", "call sound", "room", "room silence")}
    # Packets of 20 ms come 20 ms apart; what was made up is what is missing.
    room = max(gaps["room"] or 0.0, (gaps["room silence"] or 0.0) - 20.0)
    return {
        "seconds": round(end - begin, 1),
        "gaps_ms": {**gaps, "room heard": round(room, 1)},
        "answers": {name: innocent.answers(name, begin, end) for name in ("healthz", "voices", "room", "session", "call", "speak")},
        "machine_late_ms": innocent.late(begin, end),
        "over": [role for role in ("session", "room", "call") if innocent.over(role, end)],
        "reconnecting": sum(one["what"] == "reconnecting" and begin <= one["at"] < end for one in innocent.said),
    }


def drill(binary, name, options, undo):
    """One attack; gives its result."""
    function = attacks.ATTACKS[name]
    seconds = max(options.seconds, function.least_seconds)
    server = Server(binary, function.settings, options.most_mib)
    undo.callback(server.end)
    innocent = Innocent(server)
    undo.callback(innocent.stop)
    innocent.start()
    quiet = (time.monotonic(), time.monotonic() + QUIET_S)
    before_cpu = server.cpu()
    time.sleep(QUIET_S)
    before, quiet_cpu = server.rss(), server.cpu() - before_cpu
    to = {
        "port": server.port, "sip": server.sip, "rtp": server.rtp, "media": innocent.ready["call"]["media"], "token": server.hostile,
        "seconds": seconds, "pid": server.process.pid,
    }
    began, before_cpu = time.monotonic(), server.cpu()
    attacker = subprocess.Popen(
        [sys.executable, HERE / "attacks.py", name, json.dumps(to)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, preexec_fn=with_parent,
    )
    undo.callback(lambda: attacker.poll() is None and (attacker.kill(), attacker.wait()))
    try:
        told, complaint = attacker.communicate(timeout=seconds + 30)
        did = json.loads(told)["did"] if told.strip() else "nothing: " + complaint.decode(errors="replace")[-200:]
    except subprocess.TimeoutExpired:
        attacker.kill()
        attacker.communicate()
        did = f"had not come to an end {seconds + 30:.0f} s after it began"
    ended = time.monotonic()
    cpu = server.cpu()
    attacked = (began, ended + AFTERMATH_S)
    # Until memory is back, and the innocent has been seen for a while.
    while (now := time.monotonic()) < ended + options.settle and server.died is None:
        rss = server.rss()
        if now > ended + 5 and rss is not None and rss < before * 1.1 + 8:
            break
        time.sleep(0.1)
    settled, after = time.monotonic(), server.rss()
    # With the innocent still there, as it is when somebody restarts a server.
    sigterm = server.terminate()
    innocent.stop()
    return {
        "attack": name, "did": did, "seconds": round(ended - began, 1), "settings": function.settings, "died": server.died,
        "quiet": measured(innocent, *quiet), "attacked": measured(innocent, *attacked),
        "after": measured(innocent, attacked[1], max(settled, attacked[1])),
        "rss_mib": {"before": before, "peak": server.peak(began, settled), "after": after, "after_s": round(settled - ended, 1)},
        "cpu_s": {"quiet": round(quiet_cpu, 2), "attack": None if cpu is None else round(cpu - before_cpu, 2)},
        "sigterm_s": sigterm,
    }


def row(result):
    quiet, attacked = result["quiet"], result["attacked"]

    def gap(*kinds, role):
        def of(phase):
            return " / ".join(SMALL if phase["gaps_ms"][kind] is None else f"{phase['gaps_ms'][kind]:,.0f}" for kind in kinds)

        text = f"{of(quiet)} → {of(attacked)}"
        return text + ", **cut off**" if role in attacked["over"] else text

    def answers(name):
        one = attacked["answers"][name]
        worst = "–" if one["worst_ms"] is None else f"{one['worst_ms']:,.0f} ms"
        others = f"; {', '.join(one['others'])}" if one["others"] else ""
        return f"{one['good']}/{one['asked']} ({worst}{others})"

    def number(value, form=",.0f"):
        return value if isinstance(value, str) else "–" if value is None else format(value, form)

    memory, cpu = result["rss_mib"], result["cpu_s"]
    return [
        result["attack"], result["did"] + (f". **The server: {result['died']}**" if result["died"] else ""),
        gap("session", role="session"), gap("room heard", role="room"), gap("call", "call sound", role="call"), answers("healthz"),
        answers("voices"), "; ".join(answers(name) for name in ("room", "session", "call", "speak")),
        f"{number(memory['before'])} / {number(memory['peak'])} / {number(memory['after'])} ({memory['after_s']:.0f} s)",
        f"{number(cpu['quiet'], '.1f')} in {QUIET_S:.0f} / {number(cpu['attack'], '.1f')} in {result['seconds']:.0f}",
        number(result["sigterm_s"], ".1f"), f"{quiet['machine_late_ms']:,.0f} → {attacked['machine_late_ms']:,.0f}",
    ]


def table_line(cells):
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def chosen(names):
    """Attacks by their names, or by how these begin."""
    found = []
    for name in names:
        of = [one for one in attacks.ATTACKS if one == name or one.startswith(name + "-")]
        if not of:
            raise SystemExit(f"there is no attack {name}; there are {', '.join(attacks.ATTACKS)}")
        found += [one for one in of if one not in found]
    return found or [name for name, function in attacks.ATTACKS.items() if function.by_itself]


def main():
    listed = "\n".join(f"  {name:18} {' '.join(function.__doc__.split())}" for name, function in attacks.ATTACKS.items())
    parser = argparse.ArgumentParser(
        description="Attacks a server and measures what an innocent tenant has of it.", epilog=f"attacks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("binary", help="the vivavoce that is attacked")
    parser.add_argument("attacks", nargs="*", metavar="attack", help="which, or how their names begin (sip); all when absent")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each goes on (10); some need more")
    parser.add_argument("--settle", type=float, default=SETTLE_S, help="seconds that are waited for memory to come back at most (60)")
    parser.add_argument("--most-mib", type=float, default=6_144, help="memory at which the drill ends the server (6144)")
    parser.add_argument("--json", help="a file for everything that was measured")
    options = parser.parse_args()
    binary = shutil.which(options.binary) or sys.exit(f"{options.binary} is no program")
    binary = os.path.abspath(binary)
    names = chosen(options.attacks)
    wire.many_files()
    version = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout.partition("\n")[0]
    print(f"{version}, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, {options.seconds:.0f} s each, load {os.getloadavg()[0]:.1f}\n")
    print(table_line(COLUMNS))
    print(table_line(["---"] * len(COLUMNS)), flush=True)
    results = []
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for name in names:
            with contextlib.ExitStack() as undo:
                try:
                    result = drill(binary, name, options, undo)
                except (RuntimeError, OSError, ValueError) as error:
                    print(table_line([name, f"not measured: {error}"] + ["–"] * (len(COLUMNS) - 2)), flush=True)
                    results.append({"attack": name, "not_measured": str(error)})
                    continue
            results.append(result)
            print(table_line(row(result)), flush=True)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if options.json:
            document = {"version": version, "seconds": options.seconds, "load": os.getloadavg(), "results": results}
            pathlib.Path(options.json).write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
