"""Greetings, announcements and tones as an outbound call may hear them: `generate.py FOLDER [--asterisk SOUNDS] [--server URL]`.

Writes one WAV file for each (8 kHz, 16 kHz with G.722 and Opus) and `manifest.json`, from a fixed seed. Voices are flite's and
espeak-ng's, those of the server's neural voices where a server is named (`local`), and the people of Debian's packages
asterisk-core-sounds-*-gsm and asterisk-prompt-it-menardi-gsm, where their folder (`usr/share/asterisk/sounds`) is named. Needs Python
before 3.13 (`audioop`), sox and ffmpeg.
"""

import argparse
import array
import audioop
import json
import math
import random
import subprocess
import tempfile
import urllib.request
import wave
from pathlib import Path

RATE = 8_000
chance = random.Random(20_261_127)

PERSON_SHORT = {
    "en": ["Hello?", "Yes?", "Hello, this is Anna.", "Hi, Bob speaking.", "Miller.", "Good morning.", "Hello, who is this?", "Hey, what's up?"],
    "de": ["Hallo?", "Ja, bitte?", "Müller.", "Guten Tag, Schmidt."],
    "fr": ["Allô ?", "Oui, bonjour ?"],
    "es": ["¿Diga?", "¿Bueno?", "Hola, ¿quién es?"],
    "it": ["Pronto?", "Sì, pronto, chi parla?"],
    "pt": ["Alô?"],
    "nl": ["Hallo, met Jansen."],
    "pl": ["Halo?", "Słucham?"],
    "ru": ["Алло?", "Да, слушаю."],
}
PERSON_LONG = {
    "en": [
        "Good morning, Miller Dental Practice, this is Sandra speaking, how can I help you?",
        "Smith and Partners, good afternoon, Peter speaking, what can I do for you?",
        "Hello, thanks for calling Green Gardens, this is Maria, how may I help you?",
    ],
    "de": ["Guten Tag, Autohaus Berger, mein Name ist Sabine Krause, was kann ich für Sie tun?"],
    "fr": ["Cabinet du docteur Martin, bonjour, Sophie à l'appareil, que puis-je faire pour vous ?"],
}
MACHINE = {
    "en": [
        "Hi, you've reached Bob. I can't come to the phone right now, so please leave a message after the tone.",
        "Your call has been forwarded to an automated voice messaging system. The person you are trying to reach is not available.",
        "Hello, this is the voicemail of Susan Clark. Please leave your name and number and I will get back to you.",
        "You have reached the offices of Miller and Sons. Our office is closed. Office hours are nine to five, Monday to Friday.",
        "Thank you for calling City Bank. Your call may be recorded. For English, press one.",
        "We are not home right now. Leave us a message after the beep and we will call you back as soon as we can.",
        "Hey, it's Tom, you know what to do, so do it after the beep, and I'll call you back.",
    ],
    "de": [
        "Guten Tag, Sie haben die Nummer von Familie Schmidt gewählt. Wir sind nicht zu Hause. Bitte hinterlassen Sie eine Nachricht nach dem Ton.",
        "Der gewünschte Gesprächspartner ist zur Zeit nicht erreichbar. Bitte sprechen Sie nach dem Signalton.",
    ],
    "fr": ["Bonjour, vous êtes bien sur la messagerie de Pierre Dupont. Je ne suis pas disponible, laissez un message après le bip."],
    "es": ["Hola, en este momento no puedo atender su llamada. Por favor deje su mensaje después del tono."],
    "it": ["Questa è la segreteria telefonica di Marco Rossi. Lasciate un messaggio dopo il segnale acustico."],
    "pt": ["Sua chamada está sendo encaminhada para a caixa postal. Deixe seu recado após o sinal."],
    "nl": ["Dit is de voicemail van Jan de Vries. Spreek een bericht in na de piep en ik bel u terug."],
    "pl": ["Dzień dobry, tu automatyczna sekretarka. Proszę zostawić wiadomość po sygnale."],
    "ru": ["Здравствуйте, вы позвонили на автоответчик. Пожалуйста, оставьте сообщение после сигнала."],
}
MACHINE_SHORT = {
    "en": ["Leave a message.", "Hi, it's Bob. Leave a message.", "This is Kate, you know what to do."],
    "de": ["Bitte Nachricht nach dem Ton."],
}
SCREENING = {
    "en": [
        "Hi. If you record your name and reason for calling, I'll see if this person is available.",
        "Hi, the person you're calling is using a screening service, and will get a copy of this conversation. Go ahead and say your name, and why you're calling.",
        "Hello, I'm an assistant. Before I connect you, please state your name and the reason for your call.",
    ],
    "de": ["Hallo. Nennen Sie Ihren Namen und den Grund Ihres Anrufs, dann sehe ich nach, ob die Person verfügbar ist."],
    "fr": ["Bonjour. Dites votre nom et la raison de votre appel, et je vérifierai si cette personne est disponible."],
}
NOT_IN_SERVICE = {
    "en": [
        "We're sorry. The number you have dialed is not in service. Please check the number and dial again.",
        "The number you have called has been disconnected or is no longer in service.",
    ],
    "de": ["Kein Anschluss unter dieser Nummer."],
    "fr": ["Le numéro que vous avez demandé n'est pas attribué."],
    "es": ["El número que usted marcó no existe."],
    "it": ["Il numero selezionato è inesistente."],
}
FLITE = ["kal16", "slt", "rms", "awb", "kal"]
ESPEAK = {"en": ["en-us", "en-gb+f3", "en-gb+m7"], "de": ["de", "de+f2"], "fr": ["fr-fr", "fr-fr+f4"], "es": ["es", "es-419+f2"], "it": ["it", "it+f2"], "pt": ["pt-br"], "nl": ["nl"], "pl": ["pl"], "ru": ["ru"]}

# Ten countries' tones and more; the same sources as src/telephony/classify/networks.rs, written down here a second time.
BUSY = {
    "+14155550123": ("us", (480, 620), [500, 500]),
    "+442079460123": ("gb", (400,), [375, 375]),
    "+4930123456": ("de", (425,), [480, 480]),
    "+33123456789": ("fr", (440,), [500, 500]),
    "+390612345678": ("it", (425,), [500, 500]),
    "+34911234567": ("es", (425,), [200, 200]),
    "+46812345678": ("se", (425,), [250, 250]),
    "+81312345678": ("jp", (400,), [500, 500]),
    "+61212345678": ("au", (425,), [375, 375]),
    "+911123456789": ("in", (400,), [750, 750]),
    "+861012345678": ("cn", (450,), [350, 350]),
    "+551112345678": ("br", (425,), [250, 250]),
}
CONGESTION = {
    "+14155550123": ("us", (480, 620), [250, 250]),
    "+442079460123": ("gb", (400,), [400, 350, 225, 525]),
    "+4930123456": ("de", (425,), [240, 240]),
    "+33123456789": ("fr", (440,), [250, 250]),
    "+390612345678": ("it", (425,), [200, 200]),
    "+34911234567": ("es", (425,), [200, 200, 200, 200, 200, 600]),
    "+41441234567": ("ch", (425,), [200, 200]),
    "+46812345678": ("se", (425,), [250, 750]),
    "+861012345678": ("cn", (450,), [700, 700]),
    "+551112345678": ("br", (425,), [250, 250, 750, 250]),
}
RINGING = {
    "+14155550123": ("us", (440, 480), [2000, 4000]),
    "+442079460123": ("gb", (400, 450), [400, 200, 400, 2000]),
    "+4930123456": ("de", (425,), [1000, 4000]),
    "+33123456789": ("fr", (440,), [1500, 3500]),
    "+34911234567": ("es", (425,), [1500, 3000]),
    "+81312345678": ("jp", (385, 400, 415), [1000, 2000]),
    "+61212345678": ("au", (413, 438), [400, 200, 400, 2000]),
    "+911123456789": ("in", (375, 400, 425), [400, 200, 400, 2000]),
    "+46812345678": ("se", (425,), [1000, 5000]),
    "+551112345678": ("br", (425,), [1000, 4000]),
}
COUNTRY_OF = {"en": "+14155550123", "de": "+4930123456", "fr": "+33123456789", "es": "+34911234567", "it": "+390612345678", "pt": "+551112345678", "nl": "+31201234567", "pl": "+48221234567", "ru": "+74951234567"}


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, check=False, **options)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stderr.decode()}")
    return done.stdout


def silence(ms):
    return bytes(2 * RATE * ms // 1000)


def tone(hz, ms, amplitude=7_000):
    count = RATE * ms // 1000
    edge = RATE * 4 // 1000
    samples = array.array("h", bytes(2 * count))
    for n in range(count):
        value = sum(math.sin(2 * math.pi * one * n / RATE) for one in hz) / len(hz)
        fade = min(1.0, n / edge, (count - n) / edge)
        samples[n] = int(amplitude * value * fade)
    return samples.tobytes()


def cadence(hz, rhythm, total):
    sound = b""
    while len(sound) < 2 * RATE * total // 1000:
        for on, off in zip(rhythm[::2], rhythm[1::2]):
            sound += tone(hz, on) + silence(off)
    return sound


def read(path, rate=RATE):
    """Any file as mono samples of this rate."""
    return run("ffmpeg", "-v", "error", "-i", path, "-ac", 1, "-ar", rate, "-f", "s16le", "-")


def trimmed(sound):
    """Without the silence before and behind it."""
    step = 2 * RATE // 100
    frames = [sound[at : at + step] for at in range(0, len(sound) - step, step)]
    loud = [n for n, frame in enumerate(frames) if audioop.rms(frame, 2) > 150]
    return b"".join(frames[loud[0] : loud[-1] + 1]) if loud else b""


def leveled(sound, peak):
    most = audioop.max(sound, 2)
    return audioop.mul(sound, 2, peak / most) if most else sound


class Voices:
    def __init__(self, folder, server):
        self.folder, self.server, self.kept = folder, server, {}

    def say(self, engine, voice, text):
        key = (engine, voice, text)
        if key not in self.kept:
            file = self.folder / "said.wav"
            if engine == "flite":
                run("flite", "-voice", voice, "-t", text, "-o", file)
            elif engine == "espeak-ng":
                run("espeak-ng", "-v", voice, "-w", file, text)
            else:
                config = {"provider": "local", "model": "", "voice_id": voice, "audio_format": "wav", "sample_rate": 24000}
                body = json.dumps({"text": text, "tts_config": config}).encode()
                request = urllib.request.Request(self.server + "/speak", body, {"content-type": "application/json"})
                file.write_bytes(urllib.request.urlopen(request, timeout=120).read())
            self.kept[key] = leveled(trimmed(read(file)), chance.choice([9_000, 14_000, 22_000]))
        return self.kept[key]


def noises(voices):
    """Twenty seconds of each, at the same loudness (RMS 1,000)."""
    count = 20 * RATE
    rows, pink = [chance.uniform(-1, 1) for _ in range(12)], array.array("h", bytes(2 * count))
    for n in range(count):
        row = (n & -n).bit_length() - 1 if n else 0
        rows[min(row, 11)] = chance.uniform(-1, 1)
        pink[n] = int(1_500 * (sum(rows) + chance.uniform(-1, 1)))
    babble = silence(20_000)
    for voice, text in [("en-us+m3", MACHINE["en"][1]), ("de+f2", MACHINE["de"][0]), ("fr-fr+m1", MACHINE["fr"][0]), ("es+f4", MACHINE["es"][0]), ("it", MACHINE["it"][0]), ("en-gb+f5", MACHINE["en"][3])]:
        said = voices.say("espeak-ng", voice, text)
        start = chance.randrange(0, len(said) // 2) & ~1
        long = (said[start:] + said * 40)[: len(babble)]
        babble = audioop.add(babble, audioop.mul(long, 2, 0.15), 2)
    level = lambda sound: audioop.mul(sound, 2, 1_000 / audioop.rms(sound, 2))
    return {"pink": level(pink.tobytes()), "babble": level(babble)}


def through(codec, sound, folder):
    """What is left of it behind a codec, and its rate."""
    if codec == "pcmu":
        return audioop.ulaw2lin(audioop.lin2ulaw(sound, 2), 2), RATE
    if codec == "pcma":
        return audioop.alaw2lin(audioop.lin2alaw(sound, 2), 2), RATE
    name, extra, rate = {"g722": ("g722", [], 16_000), "opus": ("libopus", ["-b:a", "16k", "-application", "voip"], 48_000)}[codec]
    coded = folder / ("coded." + {"g722": "g722", "opus": "ogg"}[codec])
    command = ["ffmpeg", "-v", "error", "-y", "-f", "s16le", "-ar", RATE, "-ac", 1, "-i", "-", "-ar", rate, "-c:a", name, *extra, coded]
    run(*command, input=sound)
    return read(coded, 16_000), 16_000


def write(path, sound, rate):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(sound)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--asterisk", type=Path)
    parser.add_argument("--server")
    parser.add_argument("--neural", default="hibari-heart,piper-en_US-joe-medium")
    wanted = parser.parse_args()
    wanted.folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp())
    voices = Voices(scratch, wanted.server)
    noise = noises(voices)
    codecs = ["pcmu", "pcma", "pcmu", "opus", "pcma", "g722"]
    conditions = [None, None, None, ("pink", 20), ("babble", 20), ("pink", 12), None, ("babble", 12)]
    manifest = []

    def add(truth, kind, source, number, sound, beep=None, text="", language="", plain=False):
        place = len(manifest)
        codec = codecs[place % len(codecs)]
        condition = None if plain else conditions[(place * 5 + place // 8) % len(conditions)]
        # Networks have lines with noise, and nobody in the background.
        if condition and condition[0] == "babble" and source.startswith("tones"):
            condition = ("pink", condition[1])
        lead = chance.randrange(200, 900)
        sound = silence(lead) + sound + silence(6_000)
        if condition:
            name, decibels = condition
            loud = audioop.rms(trimmed(sound) or b"\0\0", 2) or 1_000
            start = 2 * chance.randrange(0, 4 * RATE)
            long = (noise[name][start:] + noise[name] * (1 + len(sound) // len(noise[name])))[: len(sound)]
            # Noise cannot be so loud that it clips with speech.
            sound = audioop.add(sound, audioop.mul(long, 2, loud / 1_000 / 10 ** (decibels / 20)), 2)
        sound, rate = through(codec, sound, scratch)
        file = f"{place:03}.wav"
        write(wanted.folder / file, sound, rate)
        manifest.append({
            "file": file, "truth": truth, "kind": kind, "source": source, "number": number, "codec": codec,
            "noise": f"{condition[0]} {condition[1]} dB" if condition else "none", "text": text, "language": language,
            "beep_ms": beep + lead if beep else None,
        })

    def with_beep(said, share=0.75):
        """Most machines beep; gives where the beep ends."""
        if chance.random() > share:
            return said, None
        pause = chance.randrange(250, 1_300)
        hz = chance.choice([(440,), (600,), (800,), (950,), (1_000,), (1_000,), (1_260,), (1_400,), (1_900,)])
        beep = tone(hz, chance.choice([150, 250, 400, 600, 900]), chance.choice([4_000, 9_000, 15_000]))
        sound = said + silence(pause) + beep
        return sound, len(sound) * 1000 // (2 * RATE)

    def spoken(texts):
        """Each text by each voice of its language, with what it is spoken by."""
        for language, lines in texts.items():
            for line in lines:
                if language == "en":
                    for voice in FLITE:
                        yield language, line, "flite " + voice, voices.say("flite", voice, line)
                    for voice in wanted.neural.split(",") if wanted.server else []:
                        yield language, line, "neural " + voice, voices.say("neural", voice, line)
                for voice in ESPEAK[language]:
                    yield language, line, "espeak-ng " + voice, voices.say("espeak-ng", voice, line)

    for kind, truth, texts in [
        ("short greeting of a person", "person", PERSON_SHORT),
        ("long greeting of a person", "person", PERSON_LONG),
        ("machine", "machine", MACHINE),
        ("machine, few words", "machine", MACHINE_SHORT),
        ("screening assistant", "screening", SCREENING),
    ]:
        for language, line, source, said in spoken(texts):
            sound, beep = with_beep(said, 1.0 if kind == "machine, few words" else 0.75) if truth == "machine" else (said, None)
            add(truth, kind, source, COUNTRY_OF[language], sound, beep, line, language)
            if kind == "short greeting of a person" and source.split()[-1] in ("slt", "en-us", "de"):
                again = said + silence(chance.randrange(900, 1_600)) + said
                add(truth, "says it twice", source, COUNTRY_OF[language], again, None, line, language)

    for number, (country, _, _) in list(BUSY.items())[:10]:
        language = {"us": "en", "gb": "en", "de": "de", "fr": "fr", "it": "it", "es": "es"}.get(country, "en")
        line = chance.choice(NOT_IN_SERVICE[language])
        said = voices.say("espeak-ng", ESPEAK[language][0], line)
        tones = tone((950,), 330) + tone((1400,), 330) + tone((1800,), 330)
        add("not_in_service", "information tones, announcement", "espeak-ng " + country, number, tones + silence(400) + said, None, line, language)
        off = [hz * chance.uniform(0.98, 1.02) for hz in (950, 1400, 1800)]
        gaps = chance.choice([0, 15, 30])
        tones = b"".join(tone((hz,), chance.choice([280, 330, 380])) + silence(gaps) for hz in off)
        add("not_in_service", "information tones, a little off", "tones " + country, number, tones)
    for hz, lengths in [((985.2, 1370.6, 1776.7), (380, 274, 380)), ((913.8, 1370.6, 1776.7), (274, 274, 380)), ((913.8, 1428.5, 1776.7), (380, 380, 380))]:
        tones = b"".join(tone((one,), ms) for one, ms in zip(hz, lengths))
        add("not_in_service", "information tones, North America", "tones us", "+14155550123", tones)
    for language, line, source, said in spoken(NOT_IN_SERVICE):
        if source.split()[-1] in ("slt", "en-us", "de", "fr-fr", "es", "it"):
            add("not_in_service", "announcement without tones", source, COUNTRY_OF[language], said, None, line, language)
    add("not_in_service", "unobtainable tone", "tones gb", "+442079460123", tone((400,), 6_000))
    for kind, table in [("busy tone", BUSY), ("congestion tone", CONGESTION)]:
        for number, (country, hz, rhythm) in table.items():
            for _ in range(2):
                add("busy", kind, "tones " + country, number, cadence(hz, rhythm, 5_000))
    for number, (country, hz, rhythm) in RINGING.items():
        said = voices.say("flite", "slt", "Hello?")
        add("person", "ringing, then a person", "tones " + country, number, cadence(hz, rhythm, 6_000) + silence(300) + said, None, "Hello?", "en")
    for ms in (2_600, 3_300, 4_000):
        add("fax", "fax, answer tone", "tones", "+4930123456", silence(700) + tone((2100,), ms))
        answer = b""
        while len(answer) < 2 * RATE * ms // 1000:
            part = tone((2100,), 450)
            answer += part if len(answer) // len(part) % 2 == 0 else audioop.mul(part, 2, -1)
        add("fax", "fax, with phase reversals", "tones", "+4930123456", answer)
        add("fax", "fax, calling tone", "tones", "+14155550123", (tone((1100,), 500) + silence(3_000)) * 2)
    for codec in range(6):
        add("silence", "digital silence", "nothing", "+4930123456", silence(2_000), plain=True)
        quiet = audioop.mul(noise["pink"], 2, (0.02, 0.05, 0.1, 0.2, 0.3, 0.4)[codec])[: 2 * RATE * 8]
        add("silence", "line noise", "noise", "+4930123456", quiet, plain=True)

    if wanted.asterisk:
        people = {
            "en_US_f_Allison": ("en", "+14155550123"), "fr_CA_f_June": ("fr", "+33123456789"), "es_MX_f_Allison": ("es", "+525512345678"),
            "it_IT_m_Carlo": ("it", "+390612345678"), "it_IT_f_Menardi": ("it", "+390612345678"), "ru_RU_f_IvrvoiceRU": ("ru", "+74951234567"),
        }
        for who, (language, number) in people.items():
            home = next(wanted.asterisk.rglob(who), None)
            clip = lambda name: trimmed(read(home / (name + ".gsm"))) if home and (home / (name + ".gsm")).exists() and (home / (name + ".gsm")).stat().st_size > 200 else None
            gap = silence(250)
            for names in [("vm-theperson", "digits/4", "digits/2", "vm-isunavail", "vm-intro"), ("vm-intro",), ("vm-theperson", "digits/7", "vm-isonphone", "vm-intro"), ("vm-leavemsg",), ("demo-congrats",), ("basic-pbx-ivr-main",), ("priv-recordintro",), ("pls-hold-while-try",), ("queue-thankyou",), ("privacy-prompt",)]:
                clips = [clip(name) for name in names]
                if not all(clips):
                    continue
                screens = names[0] in ("priv-recordintro",)
                said = gap.join(clips)
                if len(said) < 2 * RATE * 2:
                    continue
                sound, beep = with_beep(said) if names[-1] == "vm-intro" else (said, None)
                add("screening" if screens else "machine", "screening assistant" if screens else "machine", "person " + who, number, sound, beep, "", language)
            for name in ("hello", "yes-dictate", "hello-world", "auth-thankyou", "vm-goodbye", "digits/7", "demo-thanks"):
                said = clip(name)
                if said and len(said) < 2 * RATE * 1.6:
                    kind = "short greeting of a person" if name.startswith("hello") else "short greeting of a person, stand-in"
                    add("person", kind, "person " + who, number, said, None, "", language)
            said = clip("ss-noservice")
            if said:
                add("not_in_service", "announcement without tones", "person " + who, number, said, None, "", language)
                tones = tone((950,), 330) + tone((1400,), 330) + tone((1800,), 330)
                add("not_in_service", "information tones, announcement", "person " + who, number, tones + silence(300) + said, None, "", language)

    (wanted.folder / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False))
    print(len(manifest), "sounds")


main()
