"""The emulated vendors as other people's plugins find them, and what runs those. They hear and say tone-words: that a plugin has lost,
doubled or swapped something is counted exactly.

By hand: `vivavoce emulate --scripted` prints the addresses for EMULATE_URL (with http://), EMULATE_TLS and EMULATE_GRPC (without), the
path for GOOGLE_APPLICATION_CREDENTIALS, and that of the authority for SSL_CERT_FILE. Words of the command line pick tests by their names.
"""

import asyncio
import contextlib
import io
import json
import os
import re
import sys
import time
import traceback
import wave

import aiohttp
import grpc
from google.api_core import grpc_helpers, grpc_helpers_async

# Only what hangs reaches it.
PATIENCE = 60
# Most of a test is waiting; more of them at once would wait for the processor.
AT_ONCE = 4
WORDS = 5

# A test without emulators fails: it would promise nothing.
HTTP, TLS, GRPC = (os.environ[f"EMULATE_{name}"] for name in ("URL", "TLS", "GRPC"))
ACCOUNT, AUTHORITY = os.environ["GOOGLE_APPLICATION_CREDENTIALS"], os.environ["SSL_CERT_FILE"]
KEY = "any"


def socket(url):
    return url.replace("http", "ws", 1)


@contextlib.contextmanager
def google_here():
    """Google's clients take no address from the plugins: their channels lead to the emulators, with the credentials that they have."""
    with open(AUTHORITY, "rb") as file:
        authority = file.read()
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


class Sentence:
    """Words that no other test has, so that what is another's would be seen, too."""

    def __init__(self, number, http):
        self._words = [str(1000 + 10 * number + place) for place in range(WORDS)]
        self._http = http
        self.text = " ".join(self._words) + "."
        # Whether a plugin is known to lose the beginning.
        self.may_begin_late = False

    def is_over(self, text):
        return self._words[-1] in text

    def check(self, text):
        heard = re.findall(r"\d+", text)
        late = self._words[1:] if self.may_begin_late else None
        assert heard in (self._words, late), f"heard {text!r} instead of {self.text!r}"

    async def spoken(self, rate):
        """Samples of it, by an emulator's voice."""
        body = {"model": "tts-1", "voice": "alloy", "input": self.text, "response_format": "pcm"}
        samples = memoryview(await self._ask("speech", json=body)).cast("h")
        # PCM of this vendor has 24 kHz.
        picked = (samples[int(at * 24_000 / rate)] for at in range(int(len(samples) * rate / 24_000)))
        return b"".join(sample.to_bytes(2, "little", signed=True) for sample in picked)

    async def check_sound(self, samples, rate):
        """What an emulator hears in samples has to be this."""
        file = io.BytesIO()
        with wave.open(file, "wb") as writer:
            writer.setparams((1, 2, rate, 0, "NONE", ""))
            writer.writeframes(samples)
        form = aiohttp.FormData({"model": "whisper-1"})
        form.add_field("file", file.getvalue(), filename="heard.wav")
        self.check(json.loads(await self._ask("transcriptions", data=form))["text"])

    async def _ask(self, what, **body):
        headers = {"Authorization": f"Bearer {KEY}"}
        async with self._http.post(f"{HTTP}/v1/audio/{what}", headers=headers, **body) as response:
            answer = await response.read()
            assert response.status == 200, answer
            return answer


async def asked(http, name):
    """What the emulators were asked for by a test and those of its kind, in a few lines."""
    kind, vendor, *_ = name.split()
    direction = {"hears": "stt", "speaks": "tts"}[kind]
    async with http.get(f"{HTTP}/control/log") as response:
        connections = (await response.json())["connections"]
    lines = []
    for one in connections:
        if (one["vendor"], one["direction"]) in {(vendor, direction), ("unknown", "unknown")}:
            query = "&".join("=".join(pair) for pair in one["query"])
            asked = [text[:300] for text in one["asked"][:4]]
            lines.append(
                f"  {one['path']}?{query} asked={json.dumps(asked)} said={one['said']} heard={one['heard']} notes={one['notes']}"
            )
    return "\n".join(lines)


async def _run(tests):
    turns = asyncio.Semaphore(AT_ONCE)
    failed = []

    async def run(number, name, test):
        async with turns:
            began = time.monotonic()
            try:
                await asyncio.wait_for(test(Sentence(number, http), http), PATIENCE)
                print(f"{name} ... ok ({time.monotonic() - began:.1f} s)", flush=True)
            except Exception as failure:  # noqa: BLE001 -- whatever it is, it is told with what was asked for
                failed.append(name)
                told = "".join(traceback.format_exception(failure))
                print(f"{name} ... FAILED\n{told}{await asked(http, name)}", flush=True)

    with google_here():
        async with aiohttp.ClientSession() as http:
            await asyncio.gather(*(run(number, *test) for number, test in enumerate(tests.items())))
    return failed


async def run(tests):
    """Runs tests by their names, or those with a word of the command line in them. Fails with what failed."""
    some = {name: test for name, test in tests.items() if all(word in name for word in sys.argv[1:])}
    failed = await _run(some)
    print(f"{len(some)} tests, {len(failed)} failed", flush=True)
    sys.exit(not some or bool(failed))
