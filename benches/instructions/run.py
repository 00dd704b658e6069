#!/usr/bin/env python3
"""Instructions per 20 ms of sound, counted by callgrind (package valgrind).

Every scenario of main.rs runs twice, with different counts; the difference cancels start-up. Prints a Markdown table
in which each scenario stands beside libopus alone where there is such a one. Usage, from the root of the repository:

    benches/instructions/run.py [SCENARIO]...
    benches/instructions/run.py --check
    benches/instructions/run.py --keep

All scenarios, or those that are named and what they are compared with. --check counts the hot paths of kept.json, and
fails, with the names of the functions, where one takes over 3 % more instructions than what is kept; --keep keeps what
is counted now, for a change that is worth it.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
import callgrind

FEW, MANY = 50, 250

# Scenario, what it is, the scenario that it is compared with.
SCENARIOS = [
    ("opus-encode-raw-24k", "libopus alone: encode, 24 kHz", None),
    ("opus-encode-24k", "OpusEncoder, 24 kHz", "opus-encode-raw-24k"),
    ("opus-stream-encode-24k", "StreamEncoder, opus, 24 kHz", "opus-encode-raw-24k"),
    ("ogg-opus-stream-encode-24k", "StreamEncoder, ogg_opus, 24 kHz", "opus-encode-raw-24k"),
    ("opus-encode-raw-48k", "libopus alone: encode, 48 kHz", None),
    ("opus-encode-48k", "OpusEncoder, 48 kHz", "opus-encode-raw-48k"),
    ("opus-decode-raw-48k", "libopus alone: decode, 48 kHz", None),
    ("opus-decode-48k", "OpusDecoder, 48 kHz", "opus-decode-raw-48k"),
    ("opus-stream-decode-48k", "StreamDecoder, opus, 48 kHz", "opus-decode-raw-48k"),
    ("ogg-opus-stream-decode-48k", "StreamDecoder, ogg_opus, 48 kHz", "opus-decode-raw-48k"),
    ("opus-decode-raw-16k", "libopus alone: decode, 16 kHz", None),
    ("opus-decode-16k", "OpusDecoder, 16 kHz", "opus-decode-raw-16k"),
    ("opus-stream-decode-16k", "StreamDecoder, opus, 16 kHz", "opus-decode-raw-16k"),
    ("linear16-stream-decode-16k", "StreamDecoder, linear16, 16 kHz", None),
    ("mulaw-stream-decode-8k", "StreamDecoder, mulaw, 8 kHz", None),
    ("mulaw-compress-8k", "µ-law compress, 8 kHz", None),
    ("alaw-compress-8k", "A-law compress, 8 kHz", None),
    ("vad-16k", "Vad, 16 kHz", None),
    ("vad-noise-16k", "Vad, 16 kHz, noise that stays as loud as it is", None),
    ("denoise-16k", "Denoiser, 16 kHz", None),
    ("denoise-48k", "Denoiser, 48 kHz", None),
    ("turns", "TurnDetector", None),
    ("playback", "PlaybackQueue, words estimated and told", None),
]
for complexity in [0, 3, 5, 10]:
    raw = f"record-raw-{complexity}"
    SCENARIOS.append((raw, f"libopus alone: encode, 16 kHz stereo, complexity {complexity}", None))
    SCENARIOS.append((f"record-{complexity}", f"RecorderActor, 16 kHz stereo, complexity {complexity}", raw))
SCENARIOS.append(("record-passed", "RecorderActor, Opus passed through", "record-raw-0"))


def instructions(program, scenario, count):
    return functions(program, scenario, count)[0]


# What a session, a room, a call or a recording does for every 20 ms.
HOT = [
    "opus-stream-encode-24k",
    "opus-stream-decode-48k",
    "linear16-stream-decode-16k",
    "mulaw-stream-decode-8k",
    "mulaw-compress-8k",
    "vad-16k",
    "vad-noise-16k",
    "denoise-16k",
    "turns",
    "playback",
    "record-5",
    "record-passed",
]
KEPT = pathlib.Path(__file__).with_name("kept.json")
TOLERATED = 0.03
# What `./start` builds: optimised where sound passes, and there in a third of the time of what is packaged.
GUARDED = "start"
# How many functions are kept of each path: those that take most.
FUNCTIONS = 12


def functions(program, scenario, count):
    """All instructions, and those of each function itself."""
    with tempfile.NamedTemporaryFile() as out:
        command = callgrind.command(program, [scenario, str(count)], out.name)
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        return callgrind.collected(run.stderr), callgrind.by_function(out.name)


def count_hot(program, scenario):
    """Instructions for 20 ms of sound: all of them, and those of the functions that take most."""
    few, few_by = functions(program, scenario, FEW)
    many, many_by = functions(program, scenario, MANY)
    each = {name: (taken - few_by.get(name, 0)) / (MANY - FEW) for name, taken in many_by.items()}
    most = sorted(each, key=each.get, reverse=True)[:FUNCTIONS]
    return {
        "instructions": round((many - few) / (MANY - FEW)),
        "functions": {name: round(each[name]) for name in most if each[name] >= 1},
    }


def keep():
    program = callgrind.build("instructions", profile=GUARDED)
    KEPT.write_text(json.dumps({scenario: count_hot(program, scenario) for scenario in HOT}, indent=2) + "\n")


def worse(scenario, before, now):
    """Why a path is over what is tolerated, or nothing."""
    ratio = now["instructions"] / before["instructions"]
    if ratio <= 1 + TOLERATED:
        return []
    told = [f"{scenario}: {before['instructions']:,} -> {now['instructions']:,} instructions, {100 * (ratio - 1):+.1f} %"]
    names = before["functions"] | now["functions"]
    grown = {name: now["functions"].get(name, 0) - before["functions"].get(name, 0) for name in names}
    for name in sorted(grown, key=grown.get, reverse=True)[:5]:
        if grown[name] > 0:
            told.append(f"    {grown[name]:+,} in {name}")
    return told


def check():
    kept = json.loads(KEPT.read_text())
    missing = [scenario for scenario in HOT if scenario not in kept]
    if missing:
        sys.exit(f"nothing is kept of {', '.join(missing)}: benches/instructions/run.py --keep")
    program = callgrind.build("instructions", profile=GUARDED)
    told = []
    for scenario in HOT:
        now = count_hot(program, scenario)
        before = kept[scenario]
        change = 100 * (now["instructions"] / before["instructions"] - 1)
        print(f"{scenario}: {now['instructions']:,} instructions, {change:+.2f} %", flush=True)
        told += worse(scenario, before, now)
    if told:
        sys.exit("\n".join([f"More than {TOLERATED:.0%} over what is kept:", *told]))


def main():
    if sys.argv[1:] == ["--check"]:
        return check()
    if sys.argv[1:] == ["--keep"]:
        return keep()
    program = callgrind.build("instructions")
    counts = {}
    print("| 20 ms of sound | instructions | beside libopus alone |")
    print("|---|---:|---:|")
    wanted = set(sys.argv[1:] or [scenario for scenario, _, _ in SCENARIOS])
    wanted |= {beside for scenario, _, beside in SCENARIOS if scenario in wanted}
    for scenario, name, beside in SCENARIOS:
        if scenario not in wanted:
            continue
        few = instructions(program, scenario, FEW)
        many = instructions(program, scenario, MANY)
        counts[scenario] = (many - few) / (MANY - FEW)
        over = f"{100 * (counts[scenario] / counts[beside] - 1):+.2f} %" if beside else ""
        print(f"| {name} | {counts[scenario]:,.0f} | {over} |", flush=True)


if __name__ == "__main__":
    main()
