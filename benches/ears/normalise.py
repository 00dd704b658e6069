"""What counts as the same word. Whisper's English normaliser (case, punctuation, contractions, British and American
spelling, spelled numbers as digits, hesitations), and what it leaves: digits said one by one, letters of call signs,
words that are written together or apart."""

import re
from functools import cache

import jiwer
from whisper_normalizer.english import EnglishTextNormalizer

# Said the same, written otherwise. Both sides of a comparison pass through this.
SAME = {
    "mister": "mr", "missus": "mrs", "doctor": "dr", "okay": "ok", "thy self": "thyself", "cannot": "can not",
    "percent": "%", "voice mail": "voicemail", "e mail": "email", "mail box": "mailbox", "lower case": "lowercase", "re record": "rerecord", "de activated": "deactivated",
 "log in": "login", "call back": "callback",
    "re enter": "reenter", "re enters": "reenters", "un mute": "unmute", "ill disposed": "illdisposed",
    "cold hearted": "coldhearted", "bye bye": "bye", "good bye": "goodbye", "play back": "playback", "hat brim": "hatbrim",
    "yaggies": "yagis", "on line": "online", "well oiled": "welloiled", "time zone": "timezone", "in box": "inbox",
    "caller id": "callerid", "pass word": "password", "head phone": "headphone", "home made": "homemade",
}
TWO_WORDS = "it|that|what|he|she|there|here|who|where|how|let|i|you|we|they|isn|don|can|won|didn|doesn|aren|wasn|couldn|wouldn"


@cache
def _normaliser():
    return EnglishTextNormalizer()


def normalise(text):
    text = re.sub(r"(?<=\w)[-–—](?=\w)|(?<=[A-Za-z])\.(?=\d)", " ", text).replace("’", "'")
    # Nobody hears an apostrophe: only "it's" and its like are two words.
    text = re.sub(rf"(?i)\b(?!(?:{TWO_WORDS})\b)(\w+)'s?t?\b", lambda word: word[0].replace("'", ""), text) if "'" in text else text
    text = " ".join(_normaliser()(text).split())
    for written, same in SAME.items():
        text = re.sub(rf"\b{re.escape(written)}\b", same, text)
    # "29340" and "2 9 3 4 0", "w5abc" and "w 5 a b c": digits and the letters of call signs stand alone.
    text = re.sub(r"(?<=\d)(?=\d|(?!(?:st|nd|rd|th)\b)[a-z])|(?<=[a-z])(?=\d)", " ", text)
    text = re.sub(r"\b(?:[a-z] )+(?=\d)", lambda letters: letters[0].replace(" ", "") + " ", text)
    text = re.sub(r"\bone\b", "1", text)
    return " ".join(text.split())


def errors(said, heard):
    """Words wrong (substituted, left out, invented) and words said, of whole recordings in order."""
    said, heard = normalise(said), normalise(heard)
    if not heard:
        return {"words": len(said.split()), "wrong": len(said.split()), "substituted": 0, "left_out": len(said.split()), "invented": 0}
    if not said:
        return {"words": 0, "wrong": len(heard.split()), "substituted": 0, "left_out": 0, "invented": len(heard.split())}
    out = jiwer.process_words(said, heard)
    return {
        "words": len(said.split()),
        "wrong": out.substitutions + out.deletions + out.insertions,
        "substituted": out.substitutions,
        "left_out": out.deletions,
        "invented": out.insertions,
    }
