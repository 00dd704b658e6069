"""What espeak-ng says and where each word begins, by the library's own word events: the truth for heard words.

    python3 benches/heard/espeak.py FOLDER

The test `places_of_real_speech_are_estimated_within_a_word` calls it.
"""

import ctypes
import pathlib
import sys

SENTENCES = [
    ("en-us", "Good morning, and thank you for calling. How can I help you today?"),
    ("en-us", "I could book a table for four people at seven thirty this evening, or would you rather come a little later?"),
    ("en-us", "The next train to Amsterdam leaves from platform nine; it takes about two hours and a half."),
    ("en-us", "Strengths and weaknesses were, unfortunately, extraordinarily interdependent throughout the reorganisation."),
    ("en-us", "No. Yes. Maybe, but only if you ask me nicely, and not before I have finished my coffee."),
    ("en-us", "Room 42 costs 120 dollars per night, and the NASA suite is 950."),
    ("en-gb", "We are open from Monday to Friday and on Saturday mornings; on Sundays you can leave a message."),
    ("en-gb", "There is a café around the corner that serves excellent sandwiches, cheap soup and rather bad tea."),
    ("de", "Guten Tag, hier ist die Praxis von Doktor Weber. Was kann ich für Sie tun?"),
    ("de", "Die Geschwindigkeitsbegrenzung gilt auch nachts, wenn niemand auf der Straße ist, und das finde ich richtig."),
    ("fr", "Bonjour, je voudrais réserver une chambre pour deux personnes, avec vue sur la mer si possible."),
    ("es", "Buenos días, el próximo autobús sale a las nueve y media de la estación central."),
    ("it", "Buongiorno, vorrei prenotare un tavolo per quattro persone questa sera alle otto."),
]
RETRIEVAL, CHARS_UTF8, END_PAUSE, EVENT_WORD = 1, 1, 0x1000, 1


class Event(ctypes.Structure):
    """espeak_EVENT of speak_lib.h."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    ]


def main(folder):
    espeak = ctypes.CDLL("libespeak-ng.so.1")
    rate = espeak.espeak_Initialize(RETRIEVAL, 0, None, 0)
    sound, words = bytearray(), []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(Event))

    @kind
    def take(samples, count, events):
        if count > 0:
            sound.extend(ctypes.string_at(samples, count * 2))
        index = 0
        while events[index].type:
            if events[index].type == EVENT_WORD:
                words.append((events[index].text_position - 1, events[index].sample))
            index += 1
        return 0

    espeak.espeak_SetSynthCallback(take)
    folder.mkdir(parents=True, exist_ok=True)
    for number, (voice, text) in enumerate(SENTENCES):
        espeak.espeak_SetVoiceByName(voice.encode())
        sound.clear()
        words.clear()
        said = text.encode() + b"\0"
        espeak.espeak_Synth(said, len(said), 0, 1, 0, CHARS_UTF8 | END_PAUSE, None, None)
        espeak.espeak_Synchronize()
        (folder / f"{number}.pcm").write_bytes(sound)
        places = "".join(f"{len(text[:at].encode())} {sample}\n" for at, sample in words)
        (folder / f"{number}.txt").write_text(f"{rate} {text}\n{places}")


main(pathlib.Path(sys.argv[1]))
