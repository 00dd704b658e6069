"""Deepgram's own client speaks: deepgram_speak.py ADDRESS KEY FOLDER TEXT. Leaves the sound in the folder, in files with
the names of the ways in which it was asked for, and prints what it was told, as JSON."""

import json
import pathlib
import sys

from deepgram import DeepgramClient
from deepgram.core.api_error import ApiError
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v1.types import SpeakV1Text
from websockets.exceptions import InvalidStatus

address, key, folder, text = sys.argv[1:]
environment = DeepgramClientEnvironment(
    base=f"http://{address}", production=f"ws://{address}", agent=f"ws://{address}", agent_rest=f"http://{address}"
)
client = DeepgramClient(api_key=key, environment=environment)
folder = pathlib.Path(folder)
told = []


def until(socket, kind):
    """The sound until a message of this kind."""
    sound = b""
    while True:
        message = socket.recv()
        if isinstance(message, bytes):
            sound += message
            continue
        told.append(message.type)
        if message.type == kind:
            return sound


try:
    with client.speak.v1.connect(model="aura-2-thalia-en", encoding="linear16", sample_rate="16000") as socket:
        socket.send_text(SpeakV1Text(type="Speak", text=text))
        socket.send_flush()
        (folder / "socket.s16").write_bytes(until(socket, "Flushed"))
        socket.send_text(SpeakV1Text(type="Speak", text=text))
        socket.send_clear()
        assert until(socket, "Cleared") == b""
        socket.send_close()
    for name, wanted in {
        "plain.s16": dict(encoding="linear16", container="none", sample_rate=16000),
        "linear.wav": dict(encoding="linear16", container="wav", sample_rate=24000),
        "mulaw.wav": dict(encoding="mulaw", container="wav", sample_rate=8000),
        "sound.mp3": dict(encoding="mp3"),
        "sound.ogg": dict(encoding="opus", container="ogg"),
    }.items():
        sound = client.speak.v1.audio.generate(text=text, model="aura-2-thalia-en", **wanted)
        (folder / name).write_bytes(b"".join(sound))
    voices = client.manage.v1.models.list().tts
    print(json.dumps({
        "told": told,
        "voices": {voice.canonical_name: [voice.languages, voice.metadata.tags] for voice in voices},
        "token": client.auth.v1.tokens.grant().access_token,
    }))
except (ApiError, InvalidStatus) as error:
    # The client means to turn the latter into the former, and fails to with the websockets of today.
    status = error.status_code if isinstance(error, ApiError) else error.response.status_code
    try:
        client.manage.v1.models.list()
    except ApiError as listed:
        print(json.dumps({"refused": status, "listed": listed.status_code, "body": listed.body}))
