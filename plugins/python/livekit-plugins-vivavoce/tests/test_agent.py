"""The agent of the README in a room of the server: it greets, answers, and stops when somebody speaks."""

import asyncio
import importlib.util
import logging
import os
import re
import tempfile
import unittest
import uuid
from pathlib import Path
from unittest import mock

import aiohttp
from livekit import rtc
from livekit.agents import JobExecutorType

from harness import PATIENCE, SENTENCE, STORY, ChatServer, headers, server_url, share, spoken, understood, words

RATE = 48_000
README = Path(__file__).parent.parent / "README.md"


def agent_of_the_readme(folder):
    """The README's program as a module, saved as it says."""
    file = Path(folder) / "agent.py"
    file.write_text(re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL).group(1))
    spec = importlib.util.spec_from_file_location("agent", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Person:
    """Somebody in the room, with a microphone and ears."""

    def __init__(self, http, name):
        self.http, self.name = http, name
        self.heard = bytearray()
        self._listening = []

    async def join(self, room_name):
        body = {"room_name": room_name, "participant_identity": self.name, "participant_name": self.name}
        async with self.http.post(f"{server_url()}/rtc/token", json=body, headers=headers()) as response:
            assert response.status == 200, await response.text()
            admission = await response.json()
        self.room = rtc.Room()
        self.room.on("track_subscribed", self._listen)
        await self.room.connect(admission["rtc_url"], admission["token"])
        self._source = rtc.AudioSource(RATE, 1)
        track = rtc.LocalAudioTrack.create_audio_track("microphone", self._source)
        await self.room.local_participant.publish_track(
            track, rtc.TrackPublishOptions(source=rtc.TrackSource.SOURCE_MICROPHONE)
        )

    def _listen(self, track, *_):
        async def listen():
            async for event in rtc.AudioStream(track, sample_rate=RATE, num_channels=1):
                self.heard += event.frame.data.tobytes()

        self._listening.append(asyncio.create_task(listen()))

    async def say(self, text):
        samples = bytes(RATE // 5 * 2) + await spoken(self.http, text, RATE) + bytes(3 * RATE)
        step = RATE // 100 * 2
        for at in range(0, len(samples) - step + 1, step):
            await self._source.capture_frame(rtc.AudioFrame(samples[at : at + step], RATE, 1, step // 2))

    async def hears(self, text, since, enough=0.6):
        """Waits until most of a text was heard."""
        heard = ""
        for _ in range(PATIENCE):
            heard = await understood(self.http, bytes(self.heard[since:]), RATE)
            if share(text, heard) >= enough:
                return heard
            await asyncio.sleep(1)
        raise AssertionError(f"heard {heard!r} instead of {text!r}")

    async def leave(self):
        for task in self._listening:
            task.cancel()
        await self.room.disconnect()


class Agent(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        for name in ("LIVEKIT_API_KEY", "LIVEKIT_API_SECRET"):
            assert os.environ.get(name), f"{name} has to be the server's {name.replace('LIVEKIT', 'RTC')}"
        self.http = aiohttp.ClientSession()
        self.addAsyncCleanup(self.http.close)
        self.chat = await self.enterAsyncContext(ChatServer())
        settings = {
            "LIVEKIT_URL": server_url().replace("http", "ws", 1),
            "OPENAI_BASE_URL": self.chat.url,
            "OPENAI_API_KEY": "any",
        }
        self.enterContext(mock.patch.dict(os.environ, settings))
        self.agent = agent_of_the_readme(self.enterContext(tempfile.TemporaryDirectory()))
        # In this process, and on no fixed port: several tests may run on a machine, which may be busy.
        self.agent.server.update_options(
            job_executor_type=JobExecutorType.THREAD, num_idle_processes=0, load_threshold=float("inf")
        )
        self.agent.server._port = 0
        running = asyncio.create_task(self.agent.server.run(devmode=False))
        self.addAsyncCleanup(self.stop, running)

    async def stop(self, running):
        await self.agent.server.aclose()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def tells(self, person, text):
        """Says something until it is understood: a busy machine makes holes in a microphone's sound."""
        before = len(self.chat.requests)
        for _ in range(4):
            await person.say(text)
            for _ in range(100):
                new = [self.chat.said(m[-1]) for m in self.chat.requests[before:] if m[-1]["role"] == "user"]
                if new and share(text, " ".join(new)) >= 0.6:
                    return
                await asyncio.sleep(0.1)
        raise AssertionError(f"{text!r} was not understood: {self.chat.requests[before:]}")

    async def test_an_agent_greets_answers_and_is_interrupted(self):
        ann = Person(self.http, "ann")
        await ann.join(f"kitchen-{uuid.uuid4().hex[:8]}")
        self.addAsyncCleanup(ann.leave)
        await ann.hears("Hello, how can I help you?", 0)

        since = len(ann.heard)
        await self.tells(ann, SENTENCE)
        await ann.hears("You said please call me", since)

        # A story of a minute and a half, in which somebody speaks.
        since = len(ann.heard)
        await self.tells(ann, "Tell me a long story.")
        await ann.hears("There is a letter for you on the kitchen table", since)
        await self.tells(ann, "We are going to the market this afternoon.")
        since = len(ann.heard)
        heard = await ann.hears("You said we are going to the market", max(0, since - 2 * RATE), 0.5)
        self.assertLess(words(heard).count("kitchen"), 3, heard)
        # What the model is told that it said is what was heard of it.
        told = [m for m in self.chat.requests[-1] if m["role"] == "assistant"]
        stories = [self.chat.said(m) for m in told if "kitchen" in self.chat.said(m)]
        self.assertTrue(all(len(story) < len(STORY) / 2 for story in stories), stories)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    unittest.main()
