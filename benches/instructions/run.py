#!/usr/bin/env python3
"""Instructions per 20 ms of sound, counted by callgrind (package valgrind).

Every scenario of main.rs runs twice, with different counts; the difference cancels start-up. Prints a Markdown table
in which each scenario stands beside libopus alone where there is such a one. Usage, from the root of the repository:

    benches/instructions/run.py [SCENARIO]...

All scenarios, or those that are named and what they are compared with.
"""

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
    with tempfile.NamedTemporaryFile() as out:
        command = callgrind.command(program, [scenario, str(count)], out.name)
        return callgrind.collected(subprocess.run(command, check=True, capture_output=True, text=True).stderr)


def main():
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
