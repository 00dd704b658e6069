"""What needs no server: bounds of queues, back-off, and a server of our own that stops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from support import PATIENCE, Test, soon
from vivavoce import Overloaded, Reconnect, ServerError, SessionClosed, connect
from vivavoce._outbox import MAX_COMMANDS, Outbox
from vivavoce.session import bytes_per_second, socket_url
from websockets.asyncio.server import ServerConnection, serve


class Bounds(Test):
    async def test_the_oldest_sound_gives_way_and_commands_stay(self) -> None:
        outbox = Outbox(max_audio_bytes=100)
        outbox.put("one")
        for number in range(30):
            outbox.put_audio(bytes([number]) * 10)
        outbox.put("two")
        kept = [await outbox.take() for _ in range(len(outbox))]
        self.assertEqual(kept, ["one", *(bytes([number]) * 10 for number in range(20, 30)), "two"])
        self.assertEqual(outbox.dropped_bytes, 200)

    async def test_commands_have_a_bound(self) -> None:
        outbox = Outbox(0)
        for _ in range(MAX_COMMANDS):
            outbox.put("")
        with self.assertRaises(Overloaded):
            outbox.put("")

    def test_attempts_come_later_and_later(self) -> None:
        reconnect = Reconnect(first_delay=1, max_delay=4)
        self.assertEqual(reconnect.delay(1), 0)
        for attempt in range(2, 20):
            self.assertLessEqual(reconnect.delay(attempt), min(4, 2.0 ** (attempt - 2)))

    def test_addresses(self) -> None:
        self.assertEqual(socket_url("http://host:3001"), "ws://host:3001/ws")
        self.assertEqual(socket_url("https://host/"), "wss://host/ws")
        self.assertEqual(socket_url("wss://host/voice/ws"), "wss://host/voice/ws")
        self.assertEqual(bytes_per_second(None), 32_000)
        self.assertEqual(bytes_per_second({"provider": "local", "encoding": "mulaw", "sample_rate": 8000}), 8_000)
        with self.assertRaises(ValueError):
            socket_url("host:3001")

    async def test_a_server_that_stops_says_so_and_is_not_asked_to_resume(self) -> None:
        connections = 0

        async def stopping(socket: ServerConnection) -> None:
            nonlocal connections
            connections += 1
            await socket.recv()
            ready = {"type": "ready", "stream_id": "s", "resume_token": "t", "seq": 1}
            await socket.send(json.dumps(ready))
            await socket.send(json.dumps({"type": "draining", "deadline": 7, "seq": 2}))
            await socket.close(1001, "draining")

        async with serve(stopping, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            async with connect(f"http://127.0.0.1:{port}") as session:
                with self.assertRaises(SessionClosed) as ended:
                    await soon(session.wait_closed())
                self.assertEqual((ended.exception.code, session.draining), (1001, 7))
        self.assertEqual(connections, 1)

    async def test_a_text_with_a_hole_in_it_is_not_gone_on_with(self) -> None:
        texts: list[tuple[str, bool]] = []

        async def refusing(socket: ServerConnection) -> None:
            await socket.recv()
            await socket.send(json.dumps({"type": "ready", "stream_id": "s", "resume_token": "t"}))
            async for message in socket:
                speak = json.loads(message)
                texts.append((speak["text"], speak["flush"]))
                about = {"id": speak["id"], "timestamp": 0, "message": "", "fatal": False, "in_reply_to": "speak"}
                if speak["text"] == "two ":
                    await socket.send(json.dumps({"type": "error", "code": "overloaded", **about}))
                if speak["flush"]:
                    await socket.send(json.dumps({"type": "tts_playback_complete", "duration_ms": 5, **about}))

        async def model() -> AsyncIterator[str]:
            yield "one "
            yield "two "
            await asyncio.sleep(PATIENCE)

        async with serve(refusing, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            async with connect(f"http://127.0.0.1:{port}") as session:
                with self.assertLogs("vivavoce"):
                    outcome = await soon(session.say(model()))
                assert isinstance(outcome.error, ServerError)
                self.assertEqual((outcome.status, outcome.error.code), ("failed", "overloaded"))
                self.assertEqual(texts, [("one ", False), ("two ", False), ("", True)])
                self.assertEqual((await soon(session.say("three"))).status, "complete")

    async def test_a_failing_callback_does_not_end_the_session(self) -> None:
        async def polite(socket: ServerConnection) -> None:
            await socket.recv()
            await socket.send(json.dumps({"type": "ready", "stream_id": "s", "resume_token": "t"}))
            await socket.recv()
            await socket.send(json.dumps({"type": "something_new"}))
            await socket.send(b"sound")
            await socket.wait_closed()

        async with serve(polite, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            async with connect(f"http://127.0.0.1:{port}") as session:
                heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

                async def fails(_: object) -> None:
                    raise ValueError

                session.on("audio", fails)
                session.on("audio", lambda event: heard.set_result(event["data"]))
                session.loading_start()
                with self.assertLogs("vivavoce", "ERROR"):
                    self.assertEqual(await soon(heard), b"sound")
                    await asyncio.sleep(0.01)
