"""What flite says and where each word begins, by its own segments: the truth for heard words.

    python3 benches/heard/flite.py FOLDER

flite tells when each sound of a sentence ends, but not of which word it is. That is found by asking for the sounds of
each word alone and matching the two; a sentence with a word that neither matches nor stands beside a match is an error.
"""

import difflib
import pathlib
import re
import subprocess
import sys
import wave

SENTENCES = [
    ("slt", "Good morning, and thank you for calling. How can I help you today?"),
    ("slt", "I could book a table for four people this evening, or would you rather come a little later?"),
    ("rms", "The next train to Amsterdam leaves from platform nine; it takes about two hours."),
    ("rms", "No. Yes. Maybe, but only if you ask me nicely, and not before I have finished my coffee."),
    ("awb", "We are open from Monday to Friday and on Saturday mornings; on Sundays you can leave a message."),
    ("awb", "Strengths and weaknesses were, unfortunately, extraordinarily interdependent."),
    ("kal", "There is a place around the corner that serves excellent sandwiches, cheap soup and rather bad tea."),
]


def flite(voice, text, *options):
    command = ["flite", "-voice", voice, "-t", text, *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def sounds_of(voice, word):
    return [sound for sound in flite(voice, word, "-ps", "none").split() if sound != "pau"]


def starts(voice, text):
    """Bytes of the text and seconds, of each word."""
    said, at = [], 0.0
    for segment in flite(voice, text, "-psdur", "none").split():
        sound, end = segment.split(":")
        if sound != "pau":
            said.append((sound, at))
        at = float(end)
    words = [(match.start(), match.group()) for match in re.finditer(r"[\w']+", text)]
    expected = [(sound, byte) for byte, word in words for sound in sounds_of(voice, word)]
    matcher = difflib.SequenceMatcher(None, [sound for sound, _ in expected], [sound for sound, _ in said], autojunk=False)
    matched = {block.a + step: block.b + step for block in matcher.get_matching_blocks() for step in range(block.size)}
    found = []
    for byte, word in words:
        own = [place for place, (_, of) in enumerate(expected) if of == byte]
        near = [place for place in (*own, own[-1] + 1, own[0] - 1) if place in matched]
        if not near:
            raise SystemExit(f"no sounds of {word!r} in {text!r}")
        # A word's first sound may be another one among its neighbours, and a short word's only one: then its place is
        # as far from the nearest match as it would be alone.
        first = matched[near[0]] - (near[0] - own[0])
        found.append((byte, said[min(max(first, 0), len(said) - 1)][1]))
    return found


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for number, (voice, text) in enumerate(SENTENCES):
        path = folder / f"{number}.wav"
        flite(voice, text, "-o", str(path))
        with wave.open(str(path)) as sound:
            rate = sound.getframerate()
            (folder / f"{number}.pcm").write_bytes(sound.readframes(sound.getnframes()))
        path.unlink()
        places = "".join(f"{byte} {round(second * rate)}\n" for byte, second in starts(voice, text))
        (folder / f"{number}.txt").write_text(f"{rate} {text}\n{places}")


main(pathlib.Path(sys.argv[1]))
