"""The bots of the README: they greet, answer, and stop when somebody speaks."""

import asyncio
import os
import tempfile
import unittest
import uuid
from pathlib import Path
from unittest import mock


from conversation import converse
from device import Device
from harness import PATIENCE, Case, ChatServer, program_of
from room import Person

README = Path(__file__).parent.parent / "README.md"


class Bot(Case):
    async def asyncSetUp(self):
        await super().asyncSetUp()
        self.chat = await self.enterAsyncContext(ChatServer())
        self.enterContext(mock.patch.dict(os.environ, {"OPENAI_BASE_URL": self.chat.url, "OPENAI_API_KEY": "any"}))
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    async def test_services_hear_and_speak_for_a_bot_with_another_transport(self):
        device = Device(self.http)
        running = asyncio.create_task(program_of(README, 0, self.folder).run_bot(device))
        try:
            await converse(self, self.chat, device)
        finally:
            # Nobody is left: the bot ends.
            await device.leave()
            await asyncio.wait_for(running, PATIENCE)

    async def test_a_room_is_a_transport(self):
        room_name = f"kitchen-{uuid.uuid4().hex[:8]}"
        running = asyncio.create_task(program_of(README, 1, self.folder).run_bot(room_name))
        ann = Person(self.http, "ann")
        await ann.join(room_name)
        try:
            await converse(self, self.chat, ann)
        finally:
            await ann.leave()
            await asyncio.wait_for(running, PATIENCE)


if __name__ == "__main__":
    unittest.main()
