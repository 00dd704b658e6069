"""Runs every fuzz target for a while and prints a row of benches/RESULTS.md for each.

    python3 fuzz/run.py [--seconds 600] [--jobs 1] [--target-dir DIR] [TARGET...]

The seconds are processor time, so that they mean the same beside other work. Needs cargo-fuzz (`cargo install cargo-fuzz`).
Without a sanitizer: our code has no `unsafe`, so that what is looked for are panics, inputs that take long (10 s) and memory
(2 GB). What is found lies in fuzz/artifacts.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import time

FUZZ = pathlib.Path(__file__).resolve().parent
# What libFuzzer exits with after SIGINT.
INTERRUPTED = 72


def build(target_dir):
    """Builds all targets; gives the folder of their programs."""
    command = ["cargo", "fuzz", "build", "--sanitizer", "none", "--target-dir", str(target_dir)]
    subprocess.run(command, check=True, cwd=FUZZ, env=os.environ | {"RUSTC_BOOTSTRAP": "1"})
    version = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    host = re.search(r"host: (\S+)", version)[1]
    return pathlib.Path(target_dir) / host / "release"


def wait(process, seconds):
    """Lets a fuzzer use so much processor time, then asks it to stop; gives its exit code and what it has used."""
    ticks = os.sysconf("SC_CLK_TCK")
    asked = False
    while True:
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return 0 if asked and code == INTERRUPTED else code, used.ru_utime + used.ru_stime
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        if not asked and (int(fields[11]) + int(fields[12])) / ticks >= seconds:
            process.send_signal(signal.SIGINT)
            asked = True
        time.sleep(0.5)


def run(programs, name, seconds):
    """Runs a target; gives its row."""
    corpus, artifacts = FUZZ / "corpus" / name, FUZZ / "artifacts" / name
    corpus.mkdir(parents=True, exist_ok=True)
    artifacts.mkdir(parents=True, exist_ok=True)
    command = [programs / name, "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"]
    command += [f"-artifact_prefix={artifacts}/", corpus, FUZZ / "seeds" / name]
    with open(artifacts / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        code, cpu = wait(process, seconds)
    said = (artifacts / "log").read_text(errors="replace")
    status = re.findall(r"#\d+\s+\S+\s+cov: (\d+) ft: (\d+) corp: (\d+)/(\S+)", said)
    covered, features, inputs, size = status[-1] if status else ("?",) * 4
    executions = re.search(r"number_of_executed_units:\s+(\d+)", said)
    executions = int(executions[1]) if executions else 0
    found = [file.name for file in artifacts.iterdir() if file.name != "log"]
    found = ", ".join(found) if found else "none" if code == 0 else f"exit {code}"
    return f"| {name} | {cpu / 60:.1f} | {executions:,} | {covered} / {features} | {inputs}, {size} | {found} |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--target-dir", default=FUZZ / "target")
    parser.add_argument("targets", nargs="*")
    arguments = parser.parse_args()
    programs = build(arguments.target_dir)
    names = arguments.targets or sorted(file.stem for file in (FUZZ / "fuzz_targets").iterdir())
    print("| target | minutes of CPU | executions | edges / features | corpus | findings |", flush=True)
    print("|---|--:|--:|--:|--:|---|", flush=True)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(lambda name: run(programs, name, arguments.seconds), names):
            print(row, flush=True)


if __name__ == "__main__":
    main()
