"""Counting instructions by callgrind (package valgrind): what the measurements in the folders beside this file share."""

import json
import re
import subprocess
import sys


def build(bench, features=(), profile="bench"):
    """The program of a bench, built if need be."""
    command = ["cargo", "bench", "--locked", "--profile", profile, "--bench", bench, "--no-run", "--message-format", "json"]
    command += [f"--features={feature}" for feature in features]
    messages = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    for message in map(json.loads, messages.splitlines()):
        target = message.get("target", {})
        if target.get("name") == bench and "bench" in target.get("kind", []):
            return message["executable"]
    sys.exit(f"cargo built no {bench}")


def command(program, arguments, out, only=()):
    """Runs it under callgrind; where `only` names functions (with `*`), only what they do is counted."""
    callgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
    callgrind += [f"--toggle-collect={function}" for function in only]
    return [*callgrind, program, *arguments]


def collected(errors):
    """The count, from what callgrind has written to standard error."""
    return int(re.search(r"Collected : (\d+)", errors)[1])


def by_function(out):
    """Instructions that each function takes itself, from the file that callgrind has written."""
    shown = subprocess.run(
        ["callgrind_annotate", "--auto=no", "--threshold=100", out], check=True, capture_output=True, text=True
    ).stdout
    # 1,234 (12.34%)  file:function [object]
    lines = re.findall(r"^\s*([\d,]+) \([^)]*\)\s+[^:\n]*:(.+?)(?: \[[^\]]*\])?$", shown, re.MULTILINE)
    taken = {}
    for count, name in lines:
        taken[name] = taken.get(name, 0) + int(count.replace(",", ""))
    return taken
