"""A speech server built on the reference implementation of Wyoming, to be talked to by our client.

It says text with flite, and "recognises" audio by telling how many bytes it heard and their SHA-256, so that two
clients can be compared. A voice or model named after a fault shows it, once: the next request is served. Prints the
port on which it listens.
"""

import argparse
import asyncio
import contextlib
import hashlib
import io
import re
import subprocess
import wave
from functools import partial

from wyoming.asr import (Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop)
from wyoming.audio import AudioChunk, AudioStart, AudioStop, wav_to_chunks
from wyoming.error import Error
from wyoming.info import (AsrModel, AsrProgram, Attribution, Describe, Info, TtsProgram, TtsVoice, TtsVoiceSpeaker)
from wyoming.server import AsyncEventHandler, AsyncTcpServer
from wyoming.tts import (Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped)

FAULTS = ["hang", "garbage", "close", "error", "endless"]
ABOUT = {"attribution": Attribution(name="", url=""), "installed": True, "description": None, "version": None}


def info(streaming: bool) -> Info:
    models = [AsrModel(name=name, languages=["en", "de"], **ABOUT) for name in ["digest", *FAULTS]]
    voices = [
        TtsVoice(name=name, languages=["en_US"], speakers=[TtsVoiceSpeaker(name="fast")], **ABOUT)
        for name in ["slt", "rms", *FAULTS]
    ]
    return Info(
        asr=[AsrProgram(name="digest", models=models, supports_transcript_streaming=streaming, **ABOUT)],
        tts=[TtsProgram(name="flite", voices=voices, supports_synthesize_streaming=streaming, **ABOUT)],
    )


def flite(text: str, voice: str, speaker: str | None) -> bytes:
    stretch = "0.5" if speaker == "fast" else "1.0"
    command = ["flite", "-voice", voice, "--setf", f"duration_stretch={stretch}", "-t", text, "-o", "/dev/stdout"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL).stdout


class Handler(AsyncEventHandler):
    """One connection."""

    def __init__(self, settings, spent, *args):
        super().__init__(*args)
        self.settings = settings
        self.spent = spent
        self.voice = None
        self.text = ""
        self.model = "digest"
        self.language = None
        self.heard = b""

    async def handle_event(self, event) -> bool:
        if Describe.is_type(event.type):
            await self.write_event(info(self.settings.streaming).event())
        elif Synthesize.is_type(event.type) and not self.settings.streaming:
            request = Synthesize.from_event(event)
            return await self.say(request.text, request.voice)
        elif SynthesizeStart.is_type(event.type):
            self.voice, self.text = SynthesizeStart.from_event(event).voice, ""
        elif SynthesizeChunk.is_type(event.type):
            *whole, self.text = re.split(r"(?<=[.!?])\s+", self.text + SynthesizeChunk.from_event(event).text)
            return all([await self.say(sentence, self.voice) for sentence in whole])
        elif SynthesizeStop.is_type(event.type):
            if self.text and not await self.say(self.text, self.voice):
                return False
            await self.write_event(SynthesizeStopped().event())
        elif Transcribe.is_type(event.type):
            request = Transcribe.from_event(event)
            self.model, self.language = request.name or "digest", request.language
        elif AudioStart.is_type(event.type):
            self.heard = b""
        elif AudioChunk.is_type(event.type):
            chunk = AudioChunk.from_event(event)
            assert (chunk.rate, chunk.width, chunk.channels) == (16000, 2, 1)
            self.heard += chunk.audio
            if self.model != "digest":
                return await self.fault(self.model)
        elif AudioStop.is_type(event.type):
            await self.answer()
            return False
        return True

    async def fault(self, name: str) -> bool:
        if name in self.spent or name not in FAULTS:
            return True
        self.spent.add(name)
        if name == "garbage":
            self.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await self.writer.drain()
        elif name == "error":
            await self.write_event(Error(text="the model is not loaded", code="no-model").event())
        elif name == "endless":
            self.writer.write(b" " * 1_000_000)
            await self.writer.drain()
        if name != "close":
            # Until the client hangs up: hanging up before it would lose what was written.
            with contextlib.suppress(ConnectionError):
                await self.reader.read()
        return False

    async def say(self, text: str, voice) -> bool:
        name = voice.name if voice else "slt"
        speaker = voice.speaker if voice else None
        if name in FAULTS:
            if name == "close" and name not in self.spent:
                await self.write_event(AudioStart(rate=16000, width=2, channels=1).event())
                await self.write_event(AudioChunk(rate=16000, width=2, channels=1, audio=b"\1\0" * 500).event())
            if not await self.fault(name):
                return False
            name = "slt"
        with wave.open(io.BytesIO(flite(text, name, speaker))) as sound:
            for part in wav_to_chunks(sound, 1024, start_event=True, stop_event=True):
                await self.write_event(part.event())
        return True

    async def answer(self) -> None:
        text = f"{len(self.heard)} bytes, {hashlib.sha256(self.heard).hexdigest()}"
        if self.settings.streaming:
            await self.write_event(TranscriptStart(language=self.language).event())
            for word in text.split():
                await self.write_event(TranscriptChunk(text=word + " ").event())
        await self.write_event(Transcript(text=text, language=self.language).event())
        if self.settings.streaming:
            await self.write_event(TranscriptStop().event())


async def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--streaming", action="store_true")
    settings = arguments.parse_args()
    server = AsyncTcpServer("127.0.0.1", 0)
    await server.start(partial(Handler, settings, set()))
    print(server._server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
