#!/usr/bin/env python3
"""LiveKit's load tester against our rooms and against LiveKit's own server, in turns, on one machine.

    benches/rooms/load_test.py target/release/vivavoce .clients/livekit-server/server lk
        [--audio 40,150] [--video 20] [--rounds 3] [--seconds 30]

The first program is ours, built with --release; ./test installs the second one. The third is LiveKit's CLI, of which
`lk perf load-test` must bring sample media: where it does not, nobody publishes, and this says so. Needs root, for a network
name space of its own, in which nobody else's datagrams are counted, and two cores: each server runs on the first one, the
tester on the second one.

A room has ten speakers, of whom each listener gets six, or four cameras with three layers each. What is measured is how
long the last one took to join after the tester began, and a window in which everybody is there: the server's CPU time over the datagrams that come to anybody, what a listener gets by the
tester's own account, the server's memory over participants, and how busy everybody else kept the machine meanwhile. Of memory
two figures: the process' own, and all that is resident, in which there are the pages of the program that the first participant
touches, 4 MB for one or for fifty. Rounds of both servers follow each other, so that they meet the same weather; a round that
others have disturbed is marked.
"""

import argparse
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

KEY, SECRET = "key", "a secret of at least thirty-two bytes"
ADDRESS = "192.0.2.1"
PORT, MEDIA_PORT = 7880, 7882
SERVER_CORE, TESTER_CORE = 0, 1
SPEAKERS, CAMERAS = 10, 4
# Joins in a second, which is as many as the tester makes.
JOINS = 10
# Of the window, before and behind it.
MARGIN_SECONDS = 4
# Cores that others may use before a round counts as disturbed.
DISTURBED = 0.2
TICK = os.sysconf("SC_CLK_TCK")
IN_NAMESPACE = "LOAD_TEST_IN_NAMESPACE"


def own_network():
    """Runs this script again where there is nobody else, with an address that clients take for one of a network."""
    if os.environ.get(IN_NAMESPACE):
        for command in (
            "link set lo up",
            "link add net type veth peer name nobody",
            "link set nobody up",
            f"address add {ADDRESS}/24 dev net",
            "link set net up",
            "route add default dev net",
        ):
            subprocess.run(["ip", *command.split()], check=True)
        return
    os.environ[IN_NAMESPACE] = "1"
    os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def busy_seconds():
    """Of all cores, whoever uses them."""
    user, nice, system, idle, wait, irq, softirq, steal = map(
        int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICK


def datagrams():
    """Those that have come to anybody: several that leave in one call count as one where they leave."""
    lines = [line.split() for line in pathlib.Path("/proc/net/snmp").read_text().splitlines()]
    names, values = [line for line in lines if line[0] == "Udp:"]
    return int(values[names.index("InDatagrams")])


def memory_kib(pid):
    """The process' own memory, and all that is resident."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return [int(re.search(rf"{name}:\s+(\d+)", status)[1]) for name in ("RssAnon", "VmRSS")]


def pinned(core):
    return lambda: os.sched_setaffinity(0, {core})


def ours(program, folder):
    settings = {
        "RTC_MODE": "embedded",
        "RTC_API_KEY": KEY,
        "RTC_API_SECRET": SECRET,
        "RTC_UDP_PORT": str(MEDIA_PORT),
        "LOCAL_STT_PRELOAD": "false",
        "SIP_ENABLED": "false",
    }
    command = [program, "serve", "--host", ADDRESS, "--port", str(PORT), "--data-dir", folder]
    return command, settings


def livekits(program, _folder):
    config = f"""
        port: {PORT}
        rtc: {{udp_port: {MEDIA_PORT}, tcp_port: 0, use_external_ip: false, node_ip: {ADDRESS}}}
        keys: {{{KEY}: {SECRET}}}
        logging: {{level: error}}
    """
    return [program, "--config-body", config], {}


def listening():
    """Whether anything accepts connections at the port."""
    return f":{PORT:04X} " in pathlib.Path("/proc/net/tcp").read_text() + pathlib.Path("/proc/net/tcp6").read_text()


class Server:
    def __init__(self, make, program):
        self.folder = tempfile.TemporaryDirectory()
        command, settings = make(program, self.folder.name)
        self.log = open(os.path.join(self.folder.name, "log"), "w")
        self.process = subprocess.Popen(
            command,
            env=os.environ | settings,
            stdout=self.log,
            stderr=self.log,
            preexec_fn=pinned(SERVER_CORE),
        )
        deadline = time.monotonic() + 30
        while not listening():
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{program} does not start:\n{pathlib.Path(self.log.name).read_text()}")
            time.sleep(0.05)
        time.sleep(1)

    def __enter__(self):
        return self.process.pid

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()
        self.folder.cleanup()


def measure(make, program, lk, publishers, listeners, seconds):
    """One round; what was measured by name."""
    with Server(make, program) as server:
        own_before, resident_before = memory_kib(server)
        kind, count = publishers
        tester = subprocess.Popen(
            [
                lk, "perf", "load-test",
                "--url", f"ws://{ADDRESS}:{PORT}", "--api-key", KEY, "--api-secret", SECRET, "--room", "load",
                f"--{kind}-publishers", str(count), "--subscribers", str(listeners),
                "--num-per-second", str(JOINS), "--duration", f"{seconds}s", "--yes",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=pinned(TESTER_CORE),
        )  # fmt: skip
        try:
            said, asked = [], time.monotonic()
            for line in tester.stdout:
                said.append(line)
                if "Finished connecting" in line:
                    break
            joined = time.monotonic() - asked
            time.sleep(MARGIN_SECONDS)
            began, came, used, tested, busy = (
                time.monotonic(), datagrams(), cpu_seconds(server), cpu_seconds(tester.pid), busy_seconds(),
            )  # fmt: skip
            time.sleep(seconds - 2 * MARGIN_SECONDS)
            took, came, used, tested, busy = (
                time.monotonic() - began,
                datagrams() - came,
                cpu_seconds(server) - used,
                cpu_seconds(tester.pid) - tested,
                busy_seconds() - busy,
            )
            own, resident = memory_kib(server)
            said.append(tester.stdout.read())
            tester.wait()
        finally:
            tester.kill()
    said = "".join(said)
    total = re.search(r"Total\s*│\s*(\d+)/(\d+)\s*│\s*\S+ \(([\d.]+)([kmg]?)bps avg\)\s*│\s*(\d+) \(([\d.]+)%\)", said)
    if not total or total[1] == "0":
        sys.exit(f"nothing was heard or seen; does the tester have its media?\n{said}")
    factor = {"": 1e-3, "k": 1, "m": 1e3, "g": 1e6}[total[4]]
    return {
        "all joined, s": joined,
        "datagrams/s": came / took,
        "µs/datagram": 1e6 * used / came,
        "server, cores": used / took,
        "tester, cores": tested / took,
        "others, cores": max(0, busy - used - tested) / took,
        "kbit/s a listener": float(total[3]) * factor,
        "tracks": f"{total[1]}/{total[2]}",
        "lost, %": float(total[6]),
        "KiB a participant": (own - own_before) / (listeners + count),
        "resident, KiB": (resident - resident_before) / (listeners + count),
    }


def shown(value):
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(number) for number in text.split(",") if number]
    parser.add_argument("ours")
    parser.add_argument("livekit")
    parser.add_argument("lk")
    parser.add_argument("--audio", type=numbers, default=[40, 150], help="listeners of speakers, with commas")
    parser.add_argument("--video", type=numbers, default=[20], help="listeners of cameras, with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=30)
    wish = parser.parse_args()
    own_network()
    # Whoever stops this stops what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    scenes = [(("audio", SPEAKERS), count) for count in wish.audio]
    scenes += [(("video", CAMERAS), count) for count in wish.video]
    servers = [("ours", ours, wish.ours), ("LiveKit", livekits, wish.livekit)]
    for publishers, listeners in scenes:
        print(f"\n{publishers[1]} publishers of {publishers[0]}, {listeners} listeners, {time.strftime('%Y-%m-%d %H:%M')}, load {os.getloadavg()[0]:.1f}\n")
        results = {name: [] for name, *_ in servers}
        for turn in range(wish.rounds):
            # Whoever comes first in one round comes last in the next one.
            for name, make, program in servers if turn % 2 == 0 else reversed(servers):
                got = measure(make, program, wish.lk, publishers, listeners, wish.seconds)
                if not any(results.values()):
                    print("| |", " | ".join(got), "| |")
                    print("|---|" + "---:|" * len(got) + "---|")
                results[name].append(got)
                remark = "disturbed" if got["others, cores"] > DISTURBED else ""
                print(f"| {name} |", " | ".join(map(shown, got.values())), f"| {remark} |", flush=True)
        for name, rounds in results.items():
            median = [
                shown(statistics.median(one[field] for one in rounds)) if field != "tracks" else ""
                for field in rounds[0]
            ]
            print(f"| **{name}, median** |", " | ".join(median), "| |", flush=True)


if __name__ == "__main__":
    main()
