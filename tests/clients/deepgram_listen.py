"""Deepgram's own client hears a sound: deepgram_listen.py ADDRESS KEY V1|V2 RATE FILE. Prints what it was told, as JSON."""

import json
import sys
import threading

from deepgram import DeepgramClient
from deepgram.core.api_error import ApiError
from deepgram.core.events import EventType
from deepgram.environment import DeepgramClientEnvironment
from websockets.exceptions import InvalidStatus

address, key, version, rate, file = sys.argv[1:]
environment = DeepgramClientEnvironment(
    base=f"http://{address}", production=f"ws://{address}", agent=f"ws://{address}", agent_rest=f"http://{address}"
)
client = DeepgramClient(api_key=key, environment=environment)
if version == "V1":
    connecting = client.listen.v1.connect(
        model="nova-3", language="en-US", encoding="linear16", sample_rate=int(rate), channels=1, interim_results="true",
        punctuate="true", smart_format="true", endpointing="300", utterance_end_ms="1000", vad_events="true",
        keyterm=["foo bar", "baz"],
    )
else:
    connecting = client.listen.v2.connect(
        model="flux-general-en", encoding="linear16", sample_rate=int(rate), eager_eot_threshold="0.5"
    )
told, problems = [], []


def shown(message):
    return message.model_dump() if hasattr(message, "model_dump") else dict(message)


try:
    with connecting as socket:
        socket.on(EventType.MESSAGE, lambda message: told.append((type(message).__name__, shown(message))))
        socket.on(EventType.ERROR, lambda error: problems.append(str(error)))
        listening = threading.Thread(target=socket.start_listening, daemon=True)
        listening.start()
        sound = open(file, "rb").read()
        for start in range(0, len(sound), 3200):
            socket.send_media(sound[start : start + 3200])
        if version == "V1":
            socket.send_keep_alive()
            socket.send_finalize()
        socket.send_close_stream()
        listening.join(40)
        problems.extend(["it goes on"] if listening.is_alive() else [])
    print(json.dumps({"told": told, "problems": problems}, default=str))
except ApiError as error:
    print(json.dumps({"refused": error.status_code}))
except InvalidStatus as error:
    # What the client means to turn into its ApiError, and fails to with the websockets of today.
    print(json.dumps({"refused": error.response.status_code}))
