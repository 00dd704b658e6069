"""What the tests share: the server they run against, a language model that needs no network, sound, and broken connections."""

import asyncio
import contextlib
import importlib.util
import io
import json
import os
import re
import unittest
import wave
from pathlib import Path

import aiohttp
from aiohttp import web

PATIENCE = 60
SENTENCE = "Please call me back on Monday morning."
STORY = "There is a letter for you on the kitchen table. " * 40


class Case(unittest.IsolatedAsyncioTestCase):
    """Tests in a loop as users run theirs. unittest has asyncio's debug mode, in which each future and each task keeps the stack
    that it was made in: with a framework that makes them for every 20 ms, a busy machine has no time left for the sound."""

    async def asyncSetUp(self):
        asyncio.get_running_loop().set_debug(False)
        self.http = http_session()
        self.addAsyncCleanup(self.http.close)


def server_url():
    """A test that has no server fails: it would promise nothing."""
    url = os.environ.get("VIVAVOCE_URL")
    assert url, "VIVAVOCE_URL has to name a running server"
    return url.rstrip("/").removesuffix("/ws").replace("ws", "http", 1) if url.startswith("ws") else url.rstrip("/")


def headers():
    key = os.environ.get("VIVAVOCE_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def http_session():
    """A session that keeps no connection as long as the server does, which closes those that rest after 5 s: a program that stood
    still meanwhile would send its request there, and could not know whether it was read."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(keepalive_timeout=4))


def words(text):
    return re.findall(r"[a-z']+", text.lower())


def share(text, heard):
    """How much of a text was heard."""
    found = set(words(heard))
    return sum(word in found for word in words(text)) / max(1, len(words(text)))


async def spoken(http, text, rate):
    """Samples of a text, said by the server."""
    body = {"text": text, "tts_config": {"provider": "local", "model": "", "sample_rate": rate}}
    async with http.post(f"{server_url()}/speak", json=body, headers=headers()) as response:
        assert response.status == 200, await response.text()
        return await response.read()


async def understood(http, samples, rate):
    """What the server hears in samples."""
    if len(samples) < rate // 5:
        return ""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, rate, 0, "NONE", ""))
        writer.writeframes(samples)
    form = aiohttp.FormData({"model": "local"})
    form.add_field("file", file.getvalue(), filename="heard.wav")
    async with http.post(f"{server_url()}/v1/audio/transcriptions", data=form, headers=headers()) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["text"]


async def hears(http, samples, rate, text, enough=0.6):
    """Waits until most of a text is in what was heard."""
    heard = ""
    for _ in range(PATIENCE):
        heard = await understood(http, samples(), rate)
        if share(text, heard) >= enough:
            return heard
        await asyncio.sleep(1)
    raise AssertionError(f"heard {heard!r} instead of {text!r}")


def program_of(readme, number, folder):
    """A program of a README as a module, saved as a file as it says."""
    file = Path(folder) / f"program_{number}.py"
    file.write_text(re.findall(r"```python\n(.*?)```", Path(readme).read_text(), re.DOTALL)[number])
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def until(condition, what):
    """Waits for something to become true; only what hangs reaches the limit."""
    for _ in range(PATIENCE * 20):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"waited in vain for {what}")


class ChatServer:
    """OpenAI's chat completions, streamed. Says what was said to it; asked for a story, tells a long one."""

    def __init__(self):
        self.requests = []
        self._application = web.Application()
        self._application.router.add_post("/v1/chat/completions", self._complete)

    async def __aenter__(self):
        self._runner = web.AppRunner(self._application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _complete(self, request):
        body = await request.json()
        self.requests.append(body["messages"])
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)

        async def send(delta, reason=None, **more):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            event = {
                "id": "chat",
                "object": "chat.completion.chunk",
                "created": 0,
                "model": body["model"],
                "choices": [choice],
            }
            await response.write(f"data: {json.dumps(event | more)}\n\n".encode())

        # A program that is interrupted goes away.
        with contextlib.suppress(ConnectionError):
            await send({"role": "assistant", "content": ""})
            for token in re.findall(r"\S+\s*", self.answer(body["messages"])):
                await send({"content": token})
                await asyncio.sleep(0)
            await send({}, "stop")
            await response.write(b"data: [DONE]\n\n")
        return response

    def answer(self, messages):
        said = self.said(messages[-1]) if messages[-1]["role"] == "user" else ""
        if not said:
            return "Hello, how can I help you?"
        return STORY if "story" in words(said) else f"You said: {said}"

    @staticmethod
    def said(message):
        content = message.get("content") or ""
        return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


class Proxy:
    """A connection to the server that can be cut."""

    async def __aenter__(self):
        host, _, port = server_url().partition("://")[2].partition(":")
        self._target = (host, int(port or 80))
        self._writers = set()
        self._tasks = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        self.cut()

    def cut(self):
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader, writer):
        there, back = await asyncio.open_connection(*self._target)
        self._writers |= {writer, back}

        async def copy(source, target):
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65536):
                    target.write(data)
                    await target.drain()
            target.transport.abort()

        await asyncio.gather(copy(reader, back), copy(there, writer))
