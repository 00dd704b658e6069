"""The agent of the README in a room of the server: it greets, answers, and stops when somebody speaks."""

import asyncio
import logging
import os
import tempfile
import unittest
import uuid
from pathlib import Path
from unittest import mock

from livekit.agents import JobExecutorType

from conversation import converse
from harness import Case, ChatServer, program_of, server_url
from room import Person

README = Path(__file__).parent.parent / "README.md"


class Agent(Case):
    async def asyncSetUp(self):
        for name in ("LIVEKIT_API_KEY", "LIVEKIT_API_SECRET"):
            assert os.environ.get(name), f"{name} has to be the server's {name.replace('LIVEKIT', 'RTC')}"
        await super().asyncSetUp()
        self.chat = await self.enterAsyncContext(ChatServer())
        settings = {
            "LIVEKIT_URL": server_url().replace("http", "ws", 1),
            "OPENAI_BASE_URL": self.chat.url,
            "OPENAI_API_KEY": "any",
        }
        self.enterContext(mock.patch.dict(os.environ, settings))
        self.agent = program_of(README, 0, self.enterContext(tempfile.TemporaryDirectory()))
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

    async def test_an_agent_greets_answers_and_is_interrupted(self):
        ann = Person(self.http, "ann")
        await ann.join(f"kitchen-{uuid.uuid4().hex[:8]}")
        self.addAsyncCleanup(ann.leave)
        await converse(self, self.chat, ann)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    unittest.main()
