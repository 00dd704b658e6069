#!/usr/bin/env python3
"""Words that a recogniser mishears of what the voices say: hears the files that speak.sh wrote, and prints a Markdown table
by engine and by kind of sentence, and every sentence that was heard otherwise. See README.md beside this file."""

import argparse
import json
import re
import subprocess
import sys
import wave
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "ears"))
from normalise import errors  # noqa: E402

ENGINES = ("hibari", "piper", "flite", "espeak-ng")

# A sentence is of the first kind whose pattern is in it.
KINDS = {
    "money": r"[$£€]|\beuros\b",
    "dates and times": r"\d:\d|o'clock|\d[ap]m\b|/\d{4}|\d(st|nd|rd),|\bin (19|20)\d\d",
    "digits and letters": r"\d{3}-\d{4}|\b[A-Z] \d|\b[A-Z]\d|@|www|\b[A-Z]{3}\b",
    "other numbers": r"\d|\b[IVX]{2,}\b",
    # A capital inside the sentence that is no day, no month and not "I".
    "names": r"[^.?!] (?!I\b|(?:Sun|Mon|Tues|Wednes|Thurs|Fri|Satur)day)[A-Z]",
    "questions": r"\?$",
    "other": r"",
}

# Said alike, written otherwise: these sentences as they are to be said, and what recognisers wrote that sounds the same.
# Both sides of a comparison pass through this, for every engine alike, and then through the normaliser of ears. It was
# made by looking at what was heard: another recogniser may write something that belongs here.
ALIKE = (
    (r"10/12/2026", "october 12 2026"),
    (r"march (?:3rd|third)", "march 3"),
    (r"october 12th", "october 12"),
    (r"(?<=at )(\d)[.:](\d\d)\b", r"\1 \2"),
    (r"\b(\d|five) ?([ap])\.? ?m\b\.*", r"\1 \2m"),
    (r"£(\d+)\.(\d+)", r"\1 pounds and \2 pence"),
    (r"£(\d+)", r"\1 pounds"),
    (r"-5 ?°c?", "minus 5 degrees celsius"),
    (r"(?<=to )-5", "minus 5"),
    (r"\bto[- ]night\b", "tonight"),
    (r"(\d) ?km\b", r"\1 kilometers"),
    (r"(\d) ?kg\b", r"\1 kilograms"),
    (r"(\d) ?cm\b", r"\1 centimeters"),
    (r"henry viii\b", "henry the 8th"),
    (r"war ii\b", "war 2"),
    (r"1/2|\ba half", "one half"),
    (r"1/4|one[- ]fourth", "one quarter"),
    (r"(?<=\d)-(?=\d in the)", " to "),
    (r"@", " at "),
    (r"\.com\b", " dot com"),
    (r"www\.", "www dot "),
    (r"\bu\.?s\.? ?a\b\.*", "usa"),
    (r"123 for 567", "123 4567"),
    (r"\blight house\b", "lighthouse"),
    (r"\b(?:sea|c)[- ]?(?=sh(?:ells?|ore)\b)", "sea "),
    (r"\blester\b", "leicester"),
    (r"\bkhalid\b", "khaled"),
    (r"\breykj[ai]vi[ck]k?\b", "reykjavik"),
    (r"\bshe[ia]k(?:h?'?s)\b", "sheikhs"),
    (r"\bweather\b", "whether"),
)

# Silence between two sentences of one engine, longer than any pause that keeps an utterance together.
GAP_S = 1.5


def join(files, path):
    """One file of all files; where each begins and ends, in seconds. A recogniser takes longer to load than to hear."""
    spans, at = [], 0.0
    with wave.open(str(path), "wb") as joined:
        for file in files:
            with wave.open(str(file)) as one:
                if not spans:
                    joined.setparams(one.getparams())
                rate, sound = one.getframerate(), one.readframes(one.getnframes())
            length = len(sound) / 2 / rate
            spans.append((at, at + length))
            gap = int(GAP_S * rate)
            joined.writeframes(sound + bytes(2 * gap))
            at += length + gap / rate
    return spans


def hear(vivavoce, model, files, joined):
    """What the recogniser hears in each file."""
    spans = join(files, joined)
    command = [vivavoce, "transcribe", "--json", "--model", model, joined]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    heard = [[] for _ in files]
    for line in done.stdout.splitlines():
        utterance = json.loads(line)
        middle = (utterance["start"] + utterance["end"]) / 2
        # The sentence that it lies in, or the one that it is nearest to.
        distances = [max(start - middle, middle - end, 0) for start, end in spans]
        heard[distances.index(min(distances))].append(utterance["text"])
    return [" ".join(texts) for texts in heard]


def alike(text):
    text = text.lower()
    for written, same in ALIKE:
        text = re.sub(written, same, text)
    return text


def kind_of(sentence):
    return next(kind for kind, pattern in KINDS.items() if re.search(pattern, sentence))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vivavoce", type=Path, help="the program; MODELS_PATH names the models")
    parser.add_argument("spoken", type=Path, help="the folder that speak.sh wrote; what was heard is kept there")
    parser.add_argument("--model", default="whisper-base", help="the recogniser")
    parser.add_argument("--engines", nargs="*", default=ENGINES)
    parser.add_argument("--show", nargs="*", default=["hibari"], help="engines whose sentences are printed")
    args = parser.parse_args()
    sentences = (HERE / "sentences.txt").read_text().splitlines()
    kinds = [kind_of(sentence) for sentence in sentences]
    counts = ", ".join(f"{kind} ({kinds.count(kind)})" for kind in KINDS)
    print(f"{args.model}; words misheard of 100, by kind of sentence (how many): {counts}\n")
    columns = ("engine", "sentences right", "words said", "differ", "only written otherwise", "misheard", "of 100", *KINDS)
    print("|", " | ".join(columns), "|")
    print("|---|" + "---:|" * (len(columns) - 1))
    listed = []
    for engine in args.engines:
        kept = args.spoken / f"heard-{args.model}-{engine}.json"
        if not kept.exists():
            files = [args.spoken / engine / f"{n:03}.wav" for n in range(1, len(sentences) + 1)]
            texts = hear(args.vivavoce.resolve(), args.model, files, args.spoken / f"{engine}.wav")
            kept.write_text(json.dumps(texts, indent=1, ensure_ascii=False))
        words, misheard, differ, right = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0), 0, 0
        for sentence, kind, heard in zip(sentences, kinds, json.loads(kept.read_text())):
            counted = errors(alike(sentence), alike(heard))
            plainly = errors(sentence, heard)["wrong"]
            words[kind] += counted["words"]
            misheard[kind] += counted["wrong"]
            differ += max(plainly, counted["wrong"])
            right += counted["wrong"] == 0
            if plainly or counted["wrong"]:
                listed.append((engine, kind, sentence, heard, counted["wrong"]))
        said, wrong = sum(words.values()), sum(misheard.values())
        rates = " | ".join(f"{100 * misheard[kind] / words[kind]:.1f}" for kind in KINDS)
        print(f"| {engine} | {right} | {said} | {differ} | {differ - wrong} | {wrong} | {100 * wrong / said:.1f} | {rates} |")
    for engine in args.show:
        print(f"\n| {engine}: kind | written | heard | words misheard |\n|---|---|---|---:|")
        for _, kind, sentence, heard, wrong in (row for row in listed if row[0] == engine):
            print(f"| {kind} | {sentence} | {heard} | {wrong or 'only written otherwise'} |")


if __name__ == "__main__":
    main()
