#!/usr/bin/env python3
"""Instructions per second of sound at each vendor's client, counted by callgrind (package valgrind).

Each client of main.rs talks to the emulators, a process of its own that is not counted. Every scenario runs twice, with
different lengths of sound; the difference cancels start-up and handshakes. Of the way up the clock that paces it is taken
off. Median of three. Prints a Markdown table. Usage, from the root of the repository:

    benches/vendors/run.py
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
import callgrind

# Seconds of sound; a spoken word lasts a twenty-fifth of twelve.
FEW, MANY = 12, 24
RUNS = 3
VENDORS = ["deepgram", "elevenlabs", "google", "azure", "cartesia"]
KEYS = {"DEEPGRAM_API_KEY", "ELEVENLABS_API_KEY", "AZURE_SPEECH_SUBSCRIPTION_KEY", "CARTESIA_API_KEY"}


def emulators(program):
    """Starts them; gives the process and the settings that lead there."""
    command = [program, "emulate", "--scripted", "--port", "0", "--tls-port", "0", "--grpc-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    settings = {}
    for line in process.stdout:
        if line.startswith("Faults"):
            break
        name, separator, value = line.strip().partition("=")
        if separator and name.isupper():
            settings[name] = value
    return process, settings | dict.fromkeys(KEYS, "key")


def instructions(program, scenario, seconds, environment):
    with tempfile.NamedTemporaryFile() as out:
        command = callgrind.command(program, [scenario, str(seconds)], out.name)
        run = subprocess.run(command, capture_output=True, text=True, env=environment)
        if run.returncode != 0:
            sys.exit(f"{scenario}: {run.stderr}")
        return callgrind.collected(run.stderr)


def per_second(program, scenario, environment):
    def one():
        few = instructions(program, scenario, FEW, environment)
        return (instructions(program, scenario, MANY, environment) - few) / (MANY - FEW)

    counts = sorted(one() for _ in range(RUNS))
    print(f"{scenario}: {counts[0]:,.0f}–{counts[-1]:,.0f}", file=sys.stderr)
    return statistics.median(counts)


def main():
    program = callgrind.build("vendors")
    process, settings = emulators(str(pathlib.Path(program).parent.parent / "vivavoce"))
    try:
        environment = os.environ | settings
        ticks = per_second(program, "no-ticks", environment)
        print("| a second of sound | up to the vendor | down from it |")
        print("|---|---:|---:|")
        for vendor in VENDORS:
            up = per_second(program, f"{vendor}-up", environment) - ticks
            down = per_second(program, f"{vendor}-down", environment)
            print(f"| {vendor} | {up:,.0f} | {down:,.0f} |", flush=True)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
