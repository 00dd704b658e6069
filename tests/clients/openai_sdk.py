"""OpenAI's own client against a server with its audio API. Prints what came of it as JSON.

openai_sdk.py say URL KEY FOLDER TEXT        each format into FOLDER, streamed, by events
openai_sdk.py hear URL KEY FILE MODEL        each format of a transcription, streamed
openai_sdk.py fail URL KEY FILE              what it makes of errors
openai_sdk.py models URL KEY
openai_sdk.py vendor URL KEY FOLDER FILE TEXT    what the vendor itself can, by the vendor's own names
"""

import json
import sys
from pathlib import Path

import openai
from openai import OpenAI

FORMATS = ["mp3", "opus", "flac", "wav", "pcm"]


def say(client, folder, text):
    told = {}
    for name in FORMATS:
        whole = client.audio.speech.create(model="tts-1", voice="alloy", input=text, response_format=name)
        (Path(folder) / f"whole.{name}").write_bytes(whole.content)
    pieces = 0
    with client.audio.speech.with_streaming_response.create(
        model="local", voice="slt", input=text, response_format="pcm", speed=2.0, instructions="Whisper."
    ) as answer:
        told["ignored"] = answer.headers.get("x-ignored")
        told["media_type"] = answer.headers["content-type"]
        with open(Path(folder) / "streamed.pcm", "wb") as file:
            for piece in answer.iter_bytes():
                pieces += 1
                file.write(piece)
    told["pieces"] = pieces
    # The client has no method for events of speech; its transport does.
    sound, types = b"", []
    with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice={"id": "slt"}, input=text, response_format="wav", stream_format="sse"
    ) as answer:
        import base64

        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            event = json.loads(line.removeprefix("data: "))
            types.append(event["type"])
            sound += base64.b64decode(event.get("audio", ""))
            told["usage"] = event.get("usage")
    (Path(folder) / "events.wav").write_bytes(sound)
    told["types"] = sorted(set(types))
    told["last"] = types[-1]
    return told


def hear(client, file, model):
    transcriptions = client.audio.transcriptions

    def ask(**options):
        with open(file, "rb") as sound:
            return transcriptions.create(model=model, file=sound, **options)

    plain = ask()
    verbose = ask(response_format="verbose_json", timestamp_granularities=["word", "segment"], language="en")
    told = {
        "text": plain.text,
        "usage": plain.usage.model_dump(),
        "plain": ask(response_format="text"),
        "srt": ask(response_format="srt"),
        "vtt": ask(response_format="vtt"),
        "verbose": verbose.model_dump(),
        "deltas": "",
        "events": [],
    }
    for event in ask(stream=True, keywords=["help"], chunking_strategy="auto"):
        told["events"].append(event.type)
        if event.type == "transcript.text.delta":
            told["deltas"] += event.delta
        else:
            told["done"] = event.text
    with open(file, "rb") as sound:
        raw = transcriptions.with_raw_response.create(model=model, file=sound, temperature=0.5)
        told["ignored"] = raw.headers.get("x-ignored")
    return told


def problem(error):
    return {
        "kind": type(error).__name__,
        "status": error.status_code,
        "code": error.code,
        "param": error.param,
        "type": error.type,
        "message": error.message,
    }


def fail(client, file):
    told = {}

    def note(name, ask):
        try:
            ask()
        except openai.APIStatusError as error:
            told[name] = problem(error)

    speech, transcriptions = client.audio.speech, client.audio.transcriptions
    note("model", lambda: speech.create(model="nobody/nothing", voice="alloy", input="Hello."))
    note("voice", lambda: speech.create(model="local", voice="nobody", input="Hello."))
    note("aac", lambda: speech.create(model="local", voice="alloy", input="Hello.", response_format="aac"))
    note("input", lambda: speech.create(model="local", voice="alloy", input=" "))
    note("unknown", lambda: speech.create(model="local", voice="alloy", input="Hello.", extra_body={"colour": "red"}))
    note("no_sound", lambda: transcriptions.create(model="local", file=("talk.wav", b"this is no sound at all")))
    note("too_large", lambda: transcriptions.create(model="local", file=("talk.wav", bytes(27 << 20))))
    note("larger", lambda: transcriptions.create(model="local", file=("talk.wav", bytes((25 << 20) + 1))))
    note("diarized", lambda: transcriptions.create(model="local", file=Path(file), response_format="diarized_json"))
    note("translation", lambda: client.audio.translations.create(model="whisper-1", file=Path(file)))
    stranger = client.with_options(api_key="a key that is none")
    note("stranger", lambda: stranger.audio.transcriptions.create(model="local", file=("talk.wav", bytes(20 << 20))))
    note("stranger_speaks", lambda: stranger.audio.speech.create(model="local", voice="alloy", input="Hello."))
    note("path", lambda: client.post("/audio/nothing", cast_to=object))
    note("method", lambda: client.get("/audio/speech", cast_to=object))
    return told


def models(client):
    listed = [model.id for model in client.models.list()]
    voices = client.get("/audio/voices?provider=local", cast_to=object)
    return {"ids": listed, "one": client.models.retrieve("local/hibari").model_dump(), "voices": voices}


def vendor(client, folder, file, text):
    told = {"formats": [], "deltas": "", "types": []}
    for name in ["mp3", "opus", "wav", "pcm"]:
        spoken = client.audio.speech.create(model="tts-1", voice="nova", input=text, response_format=name, speed=1.0)
        (Path(folder) / f"vendor.{name}").write_bytes(spoken.content)
        told["formats"].append(name)
    with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="marin", input=text, stream_format="sse", instructions="Speak kindly."
    ) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
        told["events"] = sorted({json.loads(line.removeprefix("data: "))["type"] for line in lines})
    transcriptions = client.audio.transcriptions
    with open(file, "rb") as sound:
        whisper = transcriptions.create(
            model="whisper-1", file=sound, response_format="verbose_json", timestamp_granularities=["word"]
        )
    told["whisper"], told["words"] = whisper.text, [word.model_dump() for word in whisper.words]
    with open(file, "rb") as sound:
        told["whole"] = transcriptions.create(model="gpt-4o-transcribe", file=sound, prompt="Hello").text
    with open(file, "rb") as sound:
        for event in transcriptions.create(
            model="gpt-transcribe", file=sound, stream=True, keywords=["help"], languages=["en", "de"]
        ):
            told["types"].append(event.type)
            told["deltas"] += getattr(event, "delta", "")
    told["problems"] = {}
    for name, ask in {
        "key": lambda: client.with_options(api_key="bad-key").audio.speech.create(model="tts-1", voice="ash", input="a"),
        "model": lambda: client.audio.speech.create(model="tts-9", voice="ash", input="a"),
        "voice": lambda: client.audio.speech.create(model="tts-1", voice="nobody", input="a"),
        "format": lambda: transcriptions.create(model="gpt-transcribe", file=Path(file), response_format="srt"),
    }.items():
        try:
            ask()
        except openai.APIStatusError as error:
            told["problems"][name] = problem(error)
    return told


action, url, key, *rest = sys.argv[1:]
sdk = OpenAI(base_url=url, api_key=key, max_retries=0)
print(json.dumps({"say": say, "hear": hear, "fail": fail, "models": models, "vendor": vendor}[action](sdk, *rest)))
