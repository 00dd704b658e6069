"""The bots of the README: they greet, answer, and stop when somebody speaks."""

import asyncio
import os
import tempfile
import unittest
import uuid
from unittest import mock

import aiohttp

from bots import RATE, ROOM_RATE, Device, Person, bot_of_the_readme
from harness import SENTENCE, STORY, ChatServer, share, words


class Bot(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.http = aiohttp.ClientSession()
        self.addAsyncCleanup(self.http.close)
        self.chat = await self.enterAsyncContext(ChatServer())
        self.enterContext(mock.patch.dict(os.environ, {"OPENAI_BASE_URL": self.chat.url, "OPENAI_API_KEY": "any"}))
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

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

    async def converse(self, person, rate):
        await person.hears("Hello, how can I help you?", 0)
        since = len(person.heard)
        await self.tells(person, SENTENCE)
        await person.hears("You said please call me", since)

        # A story of a minute and a half, in which somebody speaks.
        since = len(person.heard)
        await self.tells(person, "Tell me a long story.")
        await person.hears("There is a letter for you on the kitchen table", since)
        await self.tells(person, "We are going to the market this afternoon.")
        since = max(0, len(person.heard) - 4 * rate)
        heard = await person.hears("You said we are going to the market", since, 0.5)
        self.assertLess(words(heard).count("kitchen"), 3, heard)
        # What the model is told that it said is what was heard of it.
        told = [self.chat.said(m) for m in self.chat.requests[-1] if m["role"] == "assistant"]
        self.assertTrue(any("Hello" in said for said in told), told)
        self.assertTrue(any(said.startswith("You said") for said in told), told)
        stories = [said for said in told if "kitchen" in said]
        self.assertTrue(stories)
        self.assertTrue(all(len(story) < len(STORY) / 2 for story in stories), stories)

    async def test_services_hear_and_speak_for_a_bot_with_another_transport(self):
        device = Device(self.http)
        running = asyncio.create_task(bot_of_the_readme(self.folder, 0).run_bot(device))
        await self.converse(device, RATE)
        await device.leave()
        await running

    async def test_a_room_is_a_transport(self):
        room_name = f"kitchen-{uuid.uuid4().hex[:8]}"
        running = asyncio.create_task(bot_of_the_readme(self.folder, 1).run_bot(room_name))
        ann = Person(self.http, "ann")
        await ann.join(room_name)
        await self.converse(ann, ROOM_RATE)
        await ann.leave()
        # Nobody is left: the bot ends.
        await running


if __name__ == "__main__":
    unittest.main()
