"""Unit tests of what `cargo test --no-run --message-format=json` built (standard input).

unit_tests.py list PACKAGE      prints those of one package: its folder and the program, a line each
unit_tests.py run COUNT [ARG…]  runs all of them, so many programs at a time, each with these arguments
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor


def programs():
    for line in sys.stdin:
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["executable"] or not message["profile"]["test"]:
            continue
        # `path+file:///folder#name@version`, or `path+file:///folder/name#version` where the folder has the package's name.
        folder, _, name = message["package_id"].removeprefix("path+file://").partition("#")
        name = name.partition("@")[0] if "@" in name else os.path.basename(folder)
        yield name, folder, message["executable"]


def run(count, arguments):
    # Of each the last test is waited for alone, so that another program fills the time; the largest take longest.
    everything = sorted(programs(), key=lambda program: -os.path.getsize(program[2]))

    def one(program):
        name, folder, executable = program
        ended = subprocess.run(
            [executable, *arguments],
            cwd=folder,
            # As cargo runs them.
            env={**os.environ, "CARGO_MANIFEST_DIR": folder, "CARGO_PKG_NAME": name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return program, ended

    failed = []
    with ThreadPoolExecutor(count) as pool:
        for (name, _, executable), ended in pool.map(one, everything):
            print(f"     Running {os.path.basename(executable)}", flush=True)
            sys.stdout.buffer.write(ended.stdout)
            sys.stdout.flush()
            if ended.returncode != 0:
                failed.append(f"{name}: status {ended.returncode}")
    for problem in failed:
        print(problem, file=sys.stderr)
    return 1 if failed else 0


if sys.argv[1] == "list":
    for name, folder, executable in programs():
        if name == sys.argv[2]:
            print(folder, executable)
else:
    sys.exit(run(int(sys.argv[2]), sys.argv[3:]))
