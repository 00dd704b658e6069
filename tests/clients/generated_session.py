"""A session driven with types that datamodel-code-generator made of the socket's schema.

generated_session.py WS_URL MODULE_FOLDER: says a sentence, hears it end, and prints the types of what came.
"""

import asyncio
import sys

import websockets

sys.path.insert(0, sys.argv[2])
import socket_messages as messages  # noqa: E402  (made by the test)


async def session(url: str) -> None:
    async with websockets.connect(url) as socket:
        config = messages.ConfigMessage(
            type="config",
            stt_config=messages.SttConfig(provider="local"),
            tts_config=messages.TtsConfig(provider="local", model=""),
        )
        await socket.send(config.model_dump_json(exclude_none=True))
        said = messages.SpeakMessage(type="speak", text="Good morning.", id="greeting")
        await socket.send(said.model_dump_json(exclude_none=True))
        sound = 0
        async for frame in socket:
            if isinstance(frame, bytes):
                sound += len(frame)
                continue
            message = messages.ServerMessage.model_validate_json(frame).root
            print(message.type)
            if isinstance(message, messages.ErrorMessage):
                sys.exit(f"{message.code}: {message.message}")
            if isinstance(message, messages.TtsPlaybackCompleteMessage):
                assert message.id == "greeting" and message.duration_ms > 0 and sound > 0
                return


asyncio.run(session(sys.argv[1]))
