"""The agent of the README, as it is printed there, with a language model of the test."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

from support import FRAME, TOKEN, URL, WEATHER, Test, soon, spoken

README = Path(__file__).parent.parent / "README.md"


class Readme(Test):
    async def test_the_agent_hears_answers_and_ends(self) -> None:
        code = re.search(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
        assert code
        self.assertLessEqual(len(code[1].splitlines()), 30)
        asked: asyncio.Queue[list[dict[str, str]]] = asyncio.Queue()

        async def model(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            assert length
            asked.put_nowait(json.loads(await reader.readexactly(int(length[1])))["messages"])
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            for token in "It is sunny all day long .".split():
                delta = {"choices": [{"index": 0, "delta": {"content": token + " "}}]}
                writer.write(f"data: {json.dumps(delta)}\n\n".encode())
            writer.write(b"data: [DONE]\n\n")
            await writer.drain()
            writer.close()

        question = await spoken(WEATHER)
        server = await asyncio.start_server(model, "127.0.0.1", 0)
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "agent.py"
            script.write_text(code[1], "utf-8")
            port = server.sockets[0].getsockname()[1]
            more = {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}", "OPENAI_API_KEY": "none"}
            agent = await asyncio.create_subprocess_exec(
                sys.executable, str(script), env=os.environ | more | {"VIVAVOCE_URL": URL, "VIVAVOCE_TOKEN": TOKEN},
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert agent.stdin and agent.stdout and agent.stderr
            errors = asyncio.create_task(agent.stderr.read())
            heard = asyncio.create_task(self.speech_after(agent.stdout, asked, 24_000))
            said = 0
            while not heard.done():
                agent.stdin.write(question[said : said + FRAME].ljust(FRAME, b"\0"))
                # It speaks when the greeting has begun, and the agent listens meanwhile.
                said += FRAME
                await asyncio.sleep(0.02)
                self.assertLess(said, FRAME * 50 * 60, "the agent did not answer")
            messages = await heard
            self.assertEqual(messages[0]["role"], "system")
            self.assertSounds(messages[-1]["content"], WEATHER)
            agent.send_signal(signal.SIGINT)
            agent.stdin.close()
            await soon(agent.wait())
            self.assertEqual(await errors, b"")
        server.close()

    async def speech_after(
        self, stdout: asyncio.StreamReader, asked: asyncio.Queue[list[dict[str, str]]], length: int
    ) -> list[dict[str, str]]:
        """What the language model was asked, when this much sound came after that."""
        messages: list[dict[str, str]] = []
        sound = 0
        while sound < length:
            data = await stdout.read(65536)
            self.assertTrue(data, "the agent has ended")
            if messages:
                sound += len(data)
            elif not asked.empty():
                messages = asked.get_nowait()
        return messages
