"""What the tests need: where the server is, a caller who speaks, and connections that can be broken."""

from __future__ import annotations

import asyncio
import io
import os
import unittest
import wave
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar
from urllib.parse import urlsplit

from vivavoce import Client, Session

URL = os.environ["VIVAVOCE_URL"]
TOKEN = os.environ["VIVAVOCE_TOKEN"]
#: Reached only when something hangs.
PATIENCE = 60
RATE = 16_000
FRAME = RATE // 50 * 2

WEATHER = "The weather is very nice in the summer."
CALL_ME = "Please call me back on Monday morning."

T = TypeVar("T")


async def soon(work: Awaitable[T]) -> T:
    """Its result, unless something hangs."""
    return await asyncio.wait_for(work, PATIENCE)


async def spoken(text: str) -> bytes:
    """Somebody says it: samples, 16 bits, mono, 16 kHz."""
    config = {"provider": "local", "model": "", "audio_format": "wav", "sample_rate": RATE}
    wav = await Client(URL, token=TOKEN).speak(text, config)  # type: ignore[arg-type]
    with wave.open(io.BytesIO(wav)) as file:
        return file.readframes(file.getnframes())


class Caller:
    """A microphone: sends at the pace of speech, and silence when nothing is said."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._says = bytearray()
        self._task = asyncio.create_task(self._speak())

    def say(self, sound: bytes) -> None:
        self._says += sound

    async def _speak(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self._session.is_over:
            sound, self._says = self._says[:FRAME], self._says[FRAME:]
            await self._session.send_audio(bytes(sound).ljust(FRAME, b"\0"))
            due += 0.02
            await asyncio.sleep(due - loop.time())

    async def __aenter__(self) -> Caller:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class Proxy:
    """A way to the server that can break."""

    def __init__(self) -> None:
        parts = urlsplit(URL)
        self._to = (parts.hostname, parts.port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._port = 0
        #: Connections so far.
        self.connections = 0

    async def __aenter__(self) -> Proxy:
        await self.mend()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def mend(self) -> None:
        """Takes connections."""
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Breaks all connections and takes no others."""
        if self._server:
            self._server.close()
        self.break_all()

    def break_all(self) -> None:
        """Breaks all connections; others may be made."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, to = await asyncio.open_connection(*self._to)
        self._writers |= {writer, to}
        await asyncio.gather(self._pipe(reader, to), self._pipe(there, writer))

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


async def tokens(text: str, pause: float = 0.0) -> AsyncIterator[str]:
    """A language model that writes this."""
    for word in text.split(" "):
        await asyncio.sleep(pause)
        yield word + " "


def words(text: str) -> list[str]:
    """Without punctuation and capitals."""
    return ["".join(letter for letter in word if letter.isalnum()) for word in text.lower().split()]


class Test(unittest.IsolatedAsyncioTestCase):
    """A test that fails when it hangs."""

    def assertSounds(self, heard: str, said: str, wrong: int = 2) -> None:
        """A recogniser is not perfect: most of the words are there."""
        missing = [word for word in words(said) if word not in words(heard)]
        self.assertLessEqual(len(missing), wrong, f"heard {heard!r} of {said!r}")
