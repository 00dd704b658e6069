"""The emulators (`vivavoce emulate`) as the vendors' plugins find them, and what a test needs of them."""

import asyncio
import contextlib
import io
import json
import os
import wave
from pathlib import Path

import aiohttp
import grpc
from google.api_core import grpc_helpers, grpc_helpers_async

PATIENCE = 20
SENTENCE = "Please call me back on Monday morning."

HTTP = os.environ.get("EMULATE_URL", "")
GRPC = os.environ.get("EMULATE_GRPC", "")
KEY = "any"


def required():
    """A test without emulators fails: it would promise nothing."""
    for name in ("EMULATE_URL", "EMULATE_GRPC", "GOOGLE_APPLICATION_CREDENTIALS"):
        assert os.environ.get(name), f"{name} has to be as `vivavoce emulate` prints it"


@contextlib.contextmanager
def google_here():
    """Google's clients take no address from the plugins: their channels lead to the emulators, with the credentials that they have."""
    # The emulators' authority lies beside the account that they have made.
    authority = Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]).with_name("ca.pem").read_bytes()
    modules = grpc_helpers, grpc_helpers_async
    before = [module.create_channel for module in modules]

    def here(create):
        def create_here(target, *, ssl_credentials=None, **options):
            return create(GRPC, ssl_credentials=grpc.ssl_channel_credentials(authority), **options)

        return create_here

    for module, create in zip(modules, before, strict=True):
        module.create_channel = here(create)
    try:
        yield
    finally:
        for module, create in zip(modules, before, strict=True):
            module.create_channel = create


async def spoken(rate):
    """Samples of the sentence, by an emulator's voice."""
    body = {"model": "tts-1", "voice": "alloy", "input": SENTENCE, "response_format": "wav"}
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.request("POST", f"{HTTP}/v1/audio/speech", json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        sound = await response.read()
    # The header of a stream does not say how long it is.
    with wave.open(io.BytesIO(sound)) as reader:
        assert reader.getframerate() == 24_000
    samples = memoryview(sound[44 : len(sound) // 2 * 2]).cast("h")
    picked = (samples[int(at * 24_000 / rate)] for at in range(int(len(samples) * rate / 24_000)))
    return b"".join(sample.to_bytes(2, "little", signed=True) for sample in picked)


async def log():
    """What the emulators were asked for since the last time."""
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{HTTP}/control/log") as response:
            connections = (await response.json())["connections"]
        await (await http.delete(f"{HTTP}/control/log")).read()
    return connections


def shown(connections):
    """The log in a few lines."""
    lines = []
    for one in connections:
        query = "&".join("=".join(pair) for pair in one["query"])
        asked = [text[:300] for text in one["asked"][:4]]
        lines.append(
            f"{one['vendor']} {one['direction']} {one['path']}?{query} asked={json.dumps(asked)} notes={one['notes']}"
        )
    return "\n".join(lines)


async def within(coroutine, seconds=PATIENCE):
    return await asyncio.wait_for(coroutine, seconds)
