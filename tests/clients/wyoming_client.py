"""The reference client of Wyoming: what it gets from a server, ours must get, too.

`say TEXT VOICE` prints the sound as raw PCM, `hear` sends standard input and prints the transcript.
"""

import asyncio
import sys

from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.tts import Synthesize, SynthesizeVoice

FORMAT = {"rate": 16000, "width": 2, "channels": 1}


async def say(client, text: str, voice: str) -> None:
    await client.write_event(Synthesize(text=text, voice=SynthesizeVoice(name=voice)).event())
    while event := await client.read_event():
        if AudioChunk.is_type(event.type):
            sys.stdout.buffer.write(AudioChunk.from_event(event).audio)
        elif AudioStop.is_type(event.type):
            break


async def hear(client) -> None:
    await client.write_event(Transcribe(language="en").event())
    await client.write_event(AudioStart(**FORMAT).event())
    while audio := sys.stdin.buffer.read(2048):
        await client.write_event(AudioChunk(audio=audio, **FORMAT).event())
    await client.write_event(AudioStop().event())
    while event := await client.read_event():
        if Transcript.is_type(event.type):
            print(Transcript.from_event(event).text)
            break


async def main(port: str, command: str, *rest: str) -> None:
    async with AsyncTcpClient("127.0.0.1", int(port)) as client:
        await {"say": say, "hear": hear}[command](client, *rest)


asyncio.run(main(*sys.argv[1:]))
