#!/usr/bin/env python3
"""Live streams on one core: so many sessions hear human sentences in real time from a server that is held to one core, and
the delay of their finals is measured at the client. Prints the table of RESULTS.md. See README.md beside this file."""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import wave
from pathlib import Path

import numpy as np
import websockets

RATE_HZ = 16_000
PIECE = RATE_HZ // 50
PAUSE_S = 2.5
QUIET = 0.01


def sentences(folder):
    """Sounds with their text; silence at the end does not count as speech."""
    for file in sorted(Path(folder).glob("*.wav")):
        with wave.open(str(file)) as read:
            if (read.getframerate(), read.getnchannels()) != (RATE_HZ, 1):
                sys.exit(f"{file} is not 16 kHz mono")
            sound = np.frombuffer(read.readframes(read.getnframes()), "<i2")
        last = np.flatnonzero(np.abs(sound.astype(int)) > QUIET * 32_768)[-1]
        yield sound, last / RATE_HZ


async def listen(url, number, said, model, out):
    """One session, which begins a little after the one before."""
    await asyncio.sleep(0.7 * number)
    async with websockets.connect(url, max_size=None) as socket:
        config = {"type": "config", "stt_config": {"provider": "local", "model": model},
                  "tts_config": {"provider": "local", "model": ""}}
        await socket.send(json.dumps(config))
        finals, refused = [], []

        async def read():
            async for message in socket:
                event = json.loads(message) if isinstance(message, str) else {}
                if event.get("type") == "stt_result" and event["is_final"] and event["transcript"]:
                    finals.append((time.monotonic(), event["transcript"]))
                elif event.get("type") in ("error", "provider_event"):
                    refused.append(event.get("code") or event.get("state"))

        reading = asyncio.create_task(read())
        await asyncio.sleep(1.0)
        due = time.monotonic()
        for sound, speech_s in said[number % len(said):] + said[:number % len(said)]:
            begun = due
            whole = np.concatenate([sound, np.zeros(int(PAUSE_S * RATE_HZ), "<i2")])
            for at in range(0, len(whole), PIECE):
                piece = whole[at:at + PIECE]
                due += len(piece) / RATE_HZ
                await asyncio.sleep(max(0, due - time.monotonic()))
                await socket.send(piece.tobytes())
            heard = [(at, text) for at, text in finals if at > begun]
            if heard:
                out["delays"].append(heard[-1][0] - begun - speech_s)
            else:
                out["unheard"] += 1
        out["refused"] += refused
        reading.cancel()


async def measure(url, streams, said, model):
    out = {"delays": [], "unheard": 0, "refused": []}
    await asyncio.gather(*(listen(url, number, said, model, out) for number in range(streams)))
    return out


def cpu_s(pid):
    """CPU of a process and its children so far."""
    total, ticks = 0, os.sysconf("SC_CLK_TCK")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(stat.parent.name) == pid or int(fields[1]) == pid:
            total += int(fields[11]) + int(fields[12])
    return total / ticks


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", help="the program")
    parser.add_argument("speech", help="folder of 16 kHz .wav files")
    parser.add_argument("--models", required=True, help="MODELS_PATH of the server")
    parser.add_argument("--model", default="", help="the recogniser's model; the server's default when empty")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 3, 4, 6])
    options = parser.parse_args()
    said = list(sentences(options.speech))
    if not said:
        sys.exit(f"there is no speech in {options.speech}")
    print("| streams | CPU of the core | delay of finals, median / p95 / longest, ms | sentences without a final | refused |")
    print("|---:|---:|---|---:|---|")
    for streams in options.streams:
        with tempfile.TemporaryDirectory() as data:
            command = ["taskset", "-c", "0", options.server, "serve", "--port", "4399", "--data-dir", data]
            server = subprocess.Popen(command, env={**os.environ, "MODELS_PATH": options.models, "LOCAL_STT_PRELOAD": "true"},
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                time.sleep(4)
                begun, before = time.monotonic(), cpu_s(server.pid)
                out = asyncio.run(measure("ws://127.0.0.1:4399/ws", streams, said, options.model))
                used = (cpu_s(server.pid) - before) / (time.monotonic() - begun)
            finally:
                server.terminate()
                server.wait()
        delays = sorted(round(1_000 * delay) for delay in out["delays"])
        p95 = delays[min(len(delays) - 1, int(0.95 * len(delays)))]
        refused = ", ".join(sorted(set(map(str, out["refused"])))) or "–"
        print(f"| {streams} | {100 * used:.0f} % | {statistics.median(delays):.0f} / {p95} / {delays[-1]} "
              f"| {out['unheard']} of {out['unheard'] + len(delays)} | {refused} |", flush=True)


if __name__ == "__main__":
    main()
