"""Builds and runs the comparison, and counts instructions by callgrind (package valgrind). Prints Markdown.

    python3 benches/alternatives/run.py SPEECH.wav...
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def counted(program, what, engine, files):
    """Instructions for each second of sound."""
    with tempfile.NamedTemporaryFile() as out:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}"]
        function = "decoder" if engine == "decoder" else what
        command += [f"--toggle-collect=*counted_{function}*", program, f"count-{what}", engine, *files]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(re.search(r"Collected : (\d+)", done.stderr)[1]) / float(done.stdout)


def main():
    files = [os.path.abspath(file) for file in sys.argv[1:]]
    subprocess.run(["cargo", "build", "--release", "--locked"], check=True, cwd=HERE)
    target = os.environ.get("CARGO_TARGET_DIR", HERE / "target")
    program = str(pathlib.Path(target) / "release" / "alternatives")
    for what, engines in (
        ("jitter", ("ours", "neteq", "decoder")),
        ("stretch", ("ours", "sonic", "wsola", "signalsmith")),
    ):
        print(subprocess.run([program, what, *files], check=True, capture_output=True, text=True).stdout)
        for engine in engines:
            millions = counted(program, what, engine, files) / 1e6
            print(f"{what}, {engine}: {millions:.1f} million instructions for each second")


if __name__ == "__main__":
    main()
