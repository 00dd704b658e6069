"""Runs every fuzz target for a while, one after the other, and prints a row of benches/RESULTS.md for each.

    python3 fuzz/run.py [--seconds 600] [--target-dir DIR] [TARGET...]

Needs cargo-fuzz (`cargo install cargo-fuzz`). Without a sanitizer: our code has no `unsafe`, so that what is looked for
are panics, inputs that take long (10 s) and memory (2 GB). What is found lies in fuzz/artifacts.
"""

import argparse
import os
import pathlib
import re
import subprocess
import time

FUZZ = pathlib.Path(__file__).resolve().parent


def build(target_dir):
    """Builds all targets; gives the folder of their programs."""
    command = ["cargo", "fuzz", "build", "--sanitizer", "none", "--target-dir", str(target_dir)]
    subprocess.run(command, check=True, cwd=FUZZ, env=os.environ | {"RUSTC_BOOTSTRAP": "1"})
    version = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    host = re.search(r"host: (\S+)", version)[1]
    return pathlib.Path(target_dir) / host / "release"


def run(programs, name, seconds):
    """Runs a target; gives its row."""
    corpus, artifacts = FUZZ / "corpus" / name, FUZZ / "artifacts" / name
    corpus.mkdir(parents=True, exist_ok=True)
    artifacts.mkdir(parents=True, exist_ok=True)
    command = [programs / name, f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048"]
    command += ["-print_final_stats=1", f"-artifact_prefix={artifacts}/", corpus, FUZZ / "seeds" / name]
    began, before = time.monotonic(), os.times()
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    minutes, after = (time.monotonic() - began) / 60, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    (artifacts / "log").write_text(done.stderr)
    status = re.findall(r"#\d+\s+\S+\s+cov: (\d+) ft: (\d+) corp: (\d+)/(\S+)", done.stderr)
    covered, features, inputs, size = status[-1] if status else ("?",) * 4
    executions = re.search(r"number_of_executed_units:\s+(\d+)", done.stderr)
    executions = int(executions[1]) if executions else 0
    found = [file.name for file in artifacts.iterdir() if file.name != "log"]
    found = ", ".join(found) if found else "none" if done.returncode == 0 else f"exit {done.returncode}"
    return (
        f"| {name} | {minutes:.1f} | {cpu / 60:.1f} | {executions:,} | {covered} / {features} "
        f"| {inputs}, {size} | {found} |"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--target-dir", default=FUZZ / "target")
    parser.add_argument("targets", nargs="*")
    arguments = parser.parse_args()
    programs = build(arguments.target_dir)
    names = arguments.targets or sorted(file.stem for file in (FUZZ / "fuzz_targets").iterdir())
    print("| target | minutes | of CPU | executions | edges / features | corpus | findings |", flush=True)
    print("|---|--:|--:|--:|--:|--:|---|", flush=True)
    for name in names:
        print(run(programs, name, arguments.seconds), flush=True)


if __name__ == "__main__":
    main()
