#!/usr/bin/env python3
"""How long somebody in a room still hears a session after its client has cut it off.

    .clients/python/bin/python benches/cuts/run.py target/release/vivavoce
        [--livekit .clients/livekit-server/server] [--pion .clients/pion-listener] [--cuts 12]

A session speaks, `clear` comes in mid-sentence, and listeners of three kinds are in the room, one after the other: LiveKit's
clients for browsers (in Chromium) and for Python, which hear through WebRTC's jitter buffer, and one on pion, which has none:

    (cd benches/cuts/pion && go build -o ../../../.clients/pion-listener .)

The rooms are embedded ones, and with --livekit those of LiveKit's own server too. ./test installs it and the clients. What
counts is the time from sending `clear` to the end of the last 10 ms that are louder than an RMS of 150 of 32,768, of those
cuts before which the voice was loud: at a pause between two words nobody could tell. What a packet says is taken as heard when
it comes; a player on pion would keep it for as long as its buffer.
"""

import argparse
import asyncio
import base64
import ctypes
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from websockets.asyncio.client import connect

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEY, SECRET = "key", "a secret of at least thirty-two bytes"
# Voiced sounds all along.
TEXT = "Where were you, are you all alone, I am near the mill, and Milly and Anna and Laura moan no more. "
HEARD_RMS, LOUD_RMS = 150, 500
# Loud before a cut is what was loud in so many seconds.
JUST_BEFORE = 0.06
# So long is listened after a cut, at the end of which it must be silent.
AFTER, SILENT = 1.5, 0.5
OPUS_RATE = 48_000


def free_port():
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


def listening(port):
    for _ in range(300):
        with socket.socket() as some:
            if some.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit(f"nobody listens at port {port}")


def ours(program, folder, rooms, started):
    """A server whose rooms are embedded, or of the deployment at this address; gives where it is."""
    port = free_port()
    settings = {
        "PORT": str(port), "HOST": "127.0.0.1", "RTC_API_KEY": KEY, "RTC_API_SECRET": SECRET, "LOG_LEVEL": "warn",
        "NULL_ENABLED": "true", "RTC_UDP_PORT": "0", "RTC_MODE": "livekit" if rooms else "embedded", "DATA_PATH": folder,
    }
    if rooms:
        settings["RTC_URL"] = rooms
    environment = {**os.environ, **settings}
    started.append(subprocess.Popen([program, "serve"], env=environment, stdout=subprocess.DEVNULL))
    listening(port)
    return f"127.0.0.1:{port}"


def livekit(program, started):
    port, media = free_port(), free_port()
    config = {
        "port": port, "bind_addresses": ["127.0.0.1"], "keys": {KEY: SECRET}, "logging": {"level": "error"},
        "rtc": {
            "udp_port": media, "tcp_port": 0, "use_external_ip": False, "node_ip": "127.0.0.1",
            "interfaces": {"includes": ["lo"]}, "enable_loopback_candidate": True,
        },
    }
    started.append(subprocess.Popen([program, "--config-body", json.dumps(config)], stderr=subprocess.DEVNULL))
    listening(port)
    return f"ws://127.0.0.1:{port}"


def admitted(server, room):
    body = {"room_name": room, "participant_name": "Ann", "participant_identity": "ann"}
    request = urllib.request.Request(
        f"http://{server}/rtc/token", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    answer = json.load(urllib.request.urlopen(request))
    return answer["rtc_url"], answer["token"]


class Decoder:
    """libopus, of which only what is sent is decoded: nothing is concealed."""

    def __init__(self):
        self.library = ctypes.CDLL("libopus.so.0")
        self.library.opus_decoder_create.restype = ctypes.c_void_p
        self.state = self.library.opus_decoder_create(OPUS_RATE, 1, ctypes.byref(ctypes.c_int()))
        self.samples = (ctypes.c_int16 * 5760)()

    def tens(self, packet):
        """How loud each 10 ms of a packet are."""
        count = self.library.opus_decode(
            ctypes.c_void_p(self.state), packet, len(packet), self.samples, len(self.samples), 0
        )
        tens = range(0, max(count, 0), OPUS_RATE // 100)
        return [
            (sum(one * one for one in self.samples[at : at + OPUS_RATE // 100]) / (OPUS_RATE // 100)) ** 0.5 for at in tens
        ]


class Listener:
    """What somebody has heard: when each 10 ms ended, and how loud it was."""

    def __init__(self, command, folder):
        self.command, self.folder, self.heard, self.listens = command, folder, [], asyncio.Event()
        self.complaints = tempfile.TemporaryFile()

    async def __aenter__(self):
        # The browser leaves its profile to whoever removes its folder.
        environment = {**os.environ, "NODE_CLIENTS": str(ROOT / ".clients/node"), "TMPDIR": self.folder}
        self.process = await asyncio.create_subprocess_exec(
            *self.command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.complaints
        )
        self.reading = asyncio.ensure_future(self.read())
        return self

    async def __aexit__(self, *_):
        self.reading.cancel()
        if self.process.returncode is None:
            self.process.terminate()
            await self.process.wait()

    async def begins(self):
        """Waits until there is a track, and no longer than there is a listener."""
        listens = asyncio.ensure_future(self.listens.wait())
        await asyncio.wait([listens, self.reading], timeout=60, return_when=asyncio.FIRST_COMPLETED)
        listens.cancel()
        if not self.listens.is_set():
            self.complaints.seek(0)
            why = self.reading.exception() if self.reading.done() else "there is no track"
            raise SystemExit(f"the listener: {why}\n{self.complaints.read().decode()}")

    async def read(self):
        decoder = Decoder()
        async for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "listens":
                self.listens.set()
            elif event["event"] == "heard":
                # Which is when it is given to whoever plays it.
                self.heard.append((event["at"] + event["seconds"], event["rms"]))
            elif event["event"] == "packet":
                # It is heard from when it comes on.
                for place, rms in enumerate(decoder.tens(base64.b64decode(event["payload"]))):
                    self.heard.append((event["at"] + 0.01 * (place + 1), rms))

    def loudest(self, begin, end):
        return max((rms for at, rms in self.heard if begin <= at < end), default=0)


async def cuts(server, room, command, count, folder):
    """Milliseconds until silence, of those cuts that count."""
    found, chance = [], random.Random(20)
    async with connect(f"ws://{server}/ws", max_size=None) as session:
        config = {
            "type": "config", "rtc": {"room_name": room}, "stt_config": {"provider": "null"},
            "tts_config": {"provider": "local", "model": ""},
        }
        await session.send(json.dumps(config))

        async def drain():
            async for message in session:
                event = json.loads(message) if isinstance(message, str) else {}
                if event.get("type") == "error":
                    raise SystemExit(f"the session: {event}")
                if event.get("type") == "ready":
                    ready.set()

        ready = asyncio.Event()
        draining = asyncio.ensure_future(drain())
        await asyncio.wait_for(ready.wait(), 60)
        admission = admitted(server, room)
        async with Listener([part.format(*admission) for part in command], folder) as listener:
            # A track that is silent begins with a few empty packets.
            await listener.begins()
            for _attempt in range(3 * count):
                await session.send(json.dumps({"type": "speak", "text": TEXT * 3}))
                began = time.time()
                while listener.loudest(began, time.time() + 1) < LOUD_RMS:
                    assert time.time() < began + 20, "nothing is heard"
                    await asyncio.sleep(0.02)
                await asyncio.sleep(chance.uniform(0.3, 2))
                at = time.time()
                await session.send(json.dumps({"type": "clear"}))
                await asyncio.sleep(AFTER)
                assert listener.loudest(at + AFTER - SILENT, at + AFTER) <= HEARD_RMS, "it was not cut off"
                if listener.loudest(at - JUST_BEFORE, at) < LOUD_RMS:
                    continue
                last = max(when for when, rms in listener.heard if rms > HEARD_RMS)
                found.append(max(0, last - at) * 1000)
                if len(found) == count:
                    break
        draining.cancel()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vivavoce")
    parser.add_argument("--livekit")
    parser.add_argument("--pion")
    parser.add_argument("--cuts", type=int, default=12)
    given = parser.parse_args()
    # Whoever stops this stops what it has started.
    for signal_of in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_of, lambda *_: sys.exit(1))
    browser, python = ROOT / "tests/clients/rooms/browser_client.mjs", ROOT / "benches/cuts/listen.py"
    options = json.dumps({"page": "../../../benches/cuts/page.mjs"}).replace("{", "{{").replace("}", "}}")
    listeners = {
        "Chromium": ["node", str(browser), "{0}", "{1}", options],
        "Python": [sys.executable, str(python), "{0}", "{1}"],
    }
    if given.pion:
        listeners["pion"] = [given.pion, "{0}", "{1}"]
    print("| rooms | listener | cuts | median, ms | longest, ms |\n|---|---|---:|---:|---:|")
    for name in ["embedded", "LiveKit's"] if given.livekit else ["embedded"]:
        started = []
        with tempfile.TemporaryDirectory() as folder:
            try:
                rooms = None
                if name != "embedded":
                    rooms = livekit(given.livekit, started)
                server = ours(given.vivavoce, folder, rooms, started)
                for who, command in listeners.items():
                    found = asyncio.run(cuts(server, f"cut-{who}", command, given.cuts, folder))
                    if not found:
                        raise SystemExit(f"{who} heard no cut that counts")
                    median, longest = statistics.median(found), max(found)
                    print(f"| {name} | {who} | {len(found)} | {median:.0f} | {longest:.0f} |", flush=True)
            finally:
                for process in reversed(started):
                    process.terminate()
                    process.wait()


main()
