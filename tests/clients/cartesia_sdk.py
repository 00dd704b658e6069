"""Cartesia's own client against an emulator: hears a sound in each of its ways, says a text in each of its ways, lists
voices. Prints what came of it as JSON; sound is put into the folder.

cartesia_sdk.py hear ADDRESS KEY SOUND          SOUND is linear16 at 16 kHz
cartesia_sdk.py say ADDRESS KEY FOLDER TEXT
cartesia_sdk.py voices ADDRESS KEY
"""

import array
import json
import sys
from pathlib import Path

import cartesia
from cartesia import Cartesia

CHUNK = 3200
VOICE = "6ccbfb76-1fc6-48f7-b71d-91ac6298247b"
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 16000}


def client(address, key):
    return Cartesia(api_key=key, base_url=f"http://{address}", websocket_base_url=f"ws://{address}", max_retries=0)


def send(connection, sound):
    for start in range(0, len(sound), CHUNK):
        connection.send_raw(sound[start : start + CHUNK])


def manual(sdk, sound, model, encoding="pcm_s16le", **options):
    """By commands: finalized once in the middle of the silence at the end, then closed."""
    told = {"final": "", "partials": 0, "words": [], "types": []}
    with sdk.stt.manual_finalize.websocket(model=model, encoding=encoding, sample_rate=16000, **options) as connection:
        send(connection, sound)
        connection.send("finalize")
        connection.send("close")
        for event in connection:
            told["types"].append(event.type)
            if event.type == "error":
                told["error"] = event.message
            elif event.type == "transcript" and event.is_final:
                told["final"] += event.text
                told["words"] += [word.model_dump() for word in event.words or []]
            elif event.type == "transcript":
                told["partials"] += 1
    return told


def turns(sdk, sound):
    told = {"turns": [], "types": []}
    options = {"model": "ink-2", "encoding": "pcm_s16le", "sample_rate": 16000, "keyterm": ["tone"]}
    with sdk.stt.auto_finalize.websocket(**options) as connection:
        connection.send({"type": "config", "turn": {"end_timeout_ms": 5600}})
        send(connection, sound)
        connection.send({"type": "close"})
        for event in connection:
            told["types"].append(event.type)
            if event.type == "turn.end":
                told["turns"].append(event.transcript)
    return told


def as_floats(sound):
    samples = array.array("h", sound)
    return array.array("f", (sample / 32768 for sample in samples)).tobytes()


def hear(address, key, sound):
    sdk = client(address, key)
    sound = Path(sound).read_bytes()
    return {
        "ink": manual(sdk, sound, "ink-2", keyterm=["tone"]),
        "whisper": manual(sdk, sound, "ink-whisper", language="en", max_silence_duration_secs=0.3),
        "floats": manual(sdk, as_floats(sound), "ink-2", "pcm_f32le"),
        "turns": turns(sdk, sound),
    }


def context(connection, pieces, **options):
    """Says the pieces in one context."""
    told = {"sound": b"", "words": [], "types": []}
    context = connection.context(model_id="sonic-3.5", voice=VOICE, add_timestamps=True, **options)
    for piece in pieces:
        context.push(piece)
    context.no_more_inputs()
    for event in context.receive():
        told["types"].append(event.type)
        if event.type == "chunk" and event.audio:
            told["sound"] += event.audio
        elif event.type == "timestamps":
            times = event.word_timestamps
            told["words"] += list(zip(times.words, times.start, times.end))
        elif event.type == "error":
            told["error"] = {"message": event.error, "status": event.status_code, "code": event.error_code}
    return told


def say(address, key, folder, text):
    sdk = client(address, key)
    folder = Path(folder)
    words = text.split(" ")
    pieces = [" ".join(words[: len(words) // 2]) + " ", " ".join(words[len(words) // 2 :])]
    told = {}
    with sdk.tts.websocket_connect() as connection:
        spoken = context(connection, pieces, output_format=RAW)
        (folder / "context.pcm").write_bytes(spoken.pop("sound"))
        told["context"] = spoken
        # The client's own default: floats at 44100 Hz.
        spoken = context(connection, [text])
        (folder / "default.f32").write_bytes(spoken.pop("sound"))
        called_off = connection.context(model_id="sonic-3.5", voice=VOICE, output_format=RAW)
        called_off.push("This will not be said. ")
        called_off.cancel()
        wrong = context(connection, [text], output_format=RAW, generation_config={"speed": 9})
        told["wrong"] = wrong["error"]
    options = {"model_id": "sonic-3.5", "transcript": text, "voice": {"id": VOICE}}
    for name, form in {
        "bytes.wav": {"container": "wav", "encoding": "pcm_s16le", "sample_rate": 16000},
        "floats.wav": {"container": "wav", "encoding": "pcm_f32le", "sample_rate": 44100},
        "bytes.mp3": {"container": "mp3", "sample_rate": 44100, "bit_rate": 128000},
        "bytes.mulaw": {"container": "raw", "encoding": "pcm_mulaw", "sample_rate": 8000},
    }.items():
        (folder / name).write_bytes(sdk.tts.generate(output_format=form, **options).read())
    events = list(sdk.tts.generate_sse(output_format=RAW, add_timestamps=True, **options))
    (folder / "events.pcm").write_bytes(b"".join(event.audio or b"" for event in events if event.type == "chunk"))
    told["events"] = [event.type for event in events]
    try:
        sdk.tts.generate(output_format=RAW, **{**options, "model_id": "nobody"})
    except cartesia.BadRequestError as error:
        told["bad_model"] = error.body["error_code"]
    return told


def voices(address, key):
    sdk = client(address, key)
    told = {}
    try:
        listed = list(sdk.voices.list(limit=50))
        told["voices"] = [voice.id for voice in listed]
        told["language"] = listed[0].locales[0].locale
    except cartesia.AuthenticationError as error:
        told["refused"] = {"status": error.status_code, "title": error.body["title"]}
    try:
        with sdk.stt.manual_finalize.websocket(model="ink-2", encoding="pcm_s16le", sample_rate=16000):
            told["opened"] = True
    except Exception as error:
        told["socket_refused"] = error.response.status_code
    return told


if __name__ == "__main__":
    way, *arguments = sys.argv[1:]
    print(json.dumps({"hear": hear, "say": say, "voices": voices}[way](*arguments)))
