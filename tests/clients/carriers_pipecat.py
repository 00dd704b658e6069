"""Pipecat's serializers as the application of a carrier: what a caller of ours sends must be understood by them, and what they send
by the caller. `carriers_pipecat.py KIND` prints the port at which it waits for one call, plays back what it hears, clears what it
has said when the key 9 is pressed, and prints at the end what it has understood, and what its own messages look like.
"""

import asyncio
import json
import sys
from types import SimpleNamespace

from loguru import logger
from pipecat.frames.frames import InputAudioRawFrame, InputDTMFFrame, InterruptionFrame
from pipecat.frames.frames import OutputAudioRawFrame, OutputTransportMessageUrgentFrame
from pipecat.serializers.exotel import ExotelFrameSerializer
from pipecat.serializers.genesys import GenesysAudioHookSerializer
from pipecat.serializers.plivo import PlivoFrameSerializer
from pipecat.serializers.telnyx import TelnyxFrameSerializer
from pipecat.serializers.twilio import TwilioFrameSerializer
from pipecat.serializers.vonage import VonageFrameSerializer
from websockets import ConnectionClosed
from websockets.asyncio.server import serve

logger.remove()


def serializer(kind: str, start: dict):
    """That of a call, with what its first message says."""
    told = start.get("start", {})
    match kind:
        case "twilio":
            params = TwilioFrameSerializer.InputParams(auto_hang_up=False)
            return TwilioFrameSerializer(told["streamSid"], told["callSid"], params=params)
        case "telnyx":
            params = TelnyxFrameSerializer.InputParams(auto_hang_up=False)
            codec = told["media_format"]["encoding"]
            return TelnyxFrameSerializer(start["stream_id"], codec, codec, told["call_control_id"], params=params)
        case "plivo":
            params = PlivoFrameSerializer.InputParams(auto_hang_up=False)
            return PlivoFrameSerializer(told["streamId"], told["callId"], params=params)
        case "exotel":
            return ExotelFrameSerializer(told["stream_sid"], told["call_sid"])
        case "vonage":
            return VonageFrameSerializer()
        case "genesys":
            return GenesysAudioHookSerializer()


def begins(kind: str, message: dict) -> bool:
    if kind in ("vonage", "genesys"):
        return True
    return message.get("event") == "start"


def shape(message: str | bytes) -> object:
    """A message without what differs from one to the next."""
    if isinstance(message, bytes):
        return "binary"
    told = json.loads(message)
    if "payload" in told.get("media", {}):
        told["media"]["payload"] = ""
    for name in ("seq", "clientseq", "id", "position"):
        told.pop(name, None)
    return told


async def answer(kind: str, socket, report: dict) -> None:
    rate = 16000 if kind == "vonage" else 8000
    codec = None
    async for message in socket:
        if codec is None:
            if isinstance(message, bytes) or not begins(kind, told := json.loads(message)):
                continue
            codec = serializer(kind, told)
            await codec.setup(SimpleNamespace(audio_in_sample_rate=rate))
        frame = await codec.deserialize(message)
        if isinstance(frame, InputAudioRawFrame):
            report["samples"] += len(frame.audio) // 2
            back = OutputAudioRawFrame(audio=frame.audio, sample_rate=frame.sample_rate, num_channels=1)
            out = await codec.serialize(back)
            report["media"] = shape(out)
            await socket.send(out)
        elif isinstance(frame, InputDTMFFrame):
            report["keys"] += frame.button.value
            if frame.button.value == "9":
                out = await codec.serialize(InterruptionFrame())
                report["clear"] = shape(out)
                await socket.send(out)
        elif isinstance(frame, OutputTransportMessageUrgentFrame):
            # What Genesys expects in return; its messages have our id of the session there.
            await socket.send(json.dumps(frame.message | {"id": told["id"]}))
    report["participant"] = getattr(codec, "participant", None)


async def main(kind: str) -> None:
    report = {"samples": 0, "keys": "", "media": None, "clear": None}
    over = asyncio.Event()

    async def handle(socket):
        try:
            await answer(kind, socket, report)
        except ConnectionClosed:
            pass  # Callers go as they like.
        finally:
            over.set()

    async with serve(handle, "127.0.0.1", 0) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await over.wait()
    print(json.dumps(report), flush=True)


asyncio.run(main(sys.argv[1]))
