"""The HTTP API of a running server."""

from __future__ import annotations

import asyncio

from support import TOKEN, URL, Test, soon
from vivavoce import ApiError, Client, ConnectionFailed, connect


class Http(Test):
    def setUp(self) -> None:
        self.client = Client(URL, token=TOKEN)

    async def refused(self, status: int, code: str, request: object) -> None:
        with self.assertRaises(ApiError) as refused:
            await soon(request)  # type: ignore[arg-type]
        error = refused.exception
        self.assertEqual((error.status, error.code), (status, code))
        self.assertTrue(error.message and error.request_id)

    async def test_speech_and_voices(self) -> None:
        self.assertEqual((await self.client.speak("Good morning."))[:4], b"RIFF")
        voices = await self.client.voices("local")
        self.assertTrue(voices["local"][0]["id"])

    async def test_rooms(self) -> None:
        token = await self.client.room_token("clients-python-http", "ann")
        self.assertEqual(token["participant_identity"], "ann")
        async with connect(URL, token=TOKEN, rtc={"room_name": "clients-python-http"}):
            self.assertIn("clients-python-http", [room["name"] for room in await self.client.rooms()])
            room = await self.client.room("clients-python-http")
            self.assertEqual([one["identity"] for one in room["participants"]], ["voice-agent"])
            await self.refused(
                404, "PARTICIPANT_NOT_FOUND", self.client.remove_participant("clients-python-http", "nobody")
            )
        await self.refused(404, "ROOM_NOT_FOUND", self.client.room("no such / room?"))

    async def test_a_recording(self) -> None:
        async with connect(URL, token=TOKEN, recording=True) as session:
            await soon(session.say("Good morning."))
            listed = await self.client.sessions()
            self.assertIn(session.stream_id, [one["stream_id"] for one in listed["sessions"]])

        async def stored() -> bytes:
            while True:
                try:
                    return await self.client.recording(session.stream_id)
                except ApiError as error:
                    self.assertEqual(error.code, "RECORDING_NOT_FOUND")
                    await asyncio.sleep(0.1)

        self.assertEqual((await soon(stored()))[:4], b"OggS")
        lines = await self.client.transcript(session.stream_id)
        self.assertIn("Good morning.", [line.get("text") for line in lines])
        listed, after = [], None
        while True:
            page = await self.client.recordings(limit=500, after=after)
            listed += [one["stream_id"] for one in page["recordings"]]
            if not (after := page.get("next")):
                break
        self.assertIn(session.stream_id, listed)
        await self.client.delete_recording(session.stream_id)
        await self.refused(404, "RECORDING_NOT_FOUND", self.client.recording(session.stream_id))

    async def test_a_session_can_be_ended(self) -> None:
        session = await connect(URL, token=TOKEN)
        await self.client.end_session(session.stream_id)
        await soon(session.wait_closed())
        self.assertEqual([event async for event in session][-1]["type"], "closed")

    async def test_telephone(self) -> None:
        number = {"from_phone_number": "+14155550100", "participant_identity": "ann"}
        await self.refused(
            400, "INVALID_PHONE_NUMBER", self.client.sip_call("kitchen", to_phone_number="+1", **number)
        )
        await self.refused(404, "ROOM_NOT_FOUND", self.client.sip_transfer("nowhere", "ann", "+14155550100"))

    async def test_refusals(self) -> None:
        await self.refused(401, "unauthorized", Client(URL, token="wrong").voices())
        await self.refused(400, "UNSUPPORTED_PROVIDER", self.client.voices("nobody"))
        with self.assertRaises(ConnectionFailed):
            await soon(Client("http://127.0.0.1:1").voices())
