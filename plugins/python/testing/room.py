"""Somebody in a room of the server, with LiveKit's client: a microphone and ears."""

import asyncio

from livekit import rtc

from harness import headers, hears, server_url, spoken

RATE = 48_000


class Person:
    rate = RATE

    def __init__(self, http, name):
        self._http, self._name = http, name
        self.heard = bytearray()
        self._listening = []

    async def join(self, room_name):
        body = {"room_name": room_name, "participant_identity": self._name, "participant_name": self._name}
        async with self._http.post(f"{server_url()}/rtc/token", json=body, headers=headers()) as response:
            assert response.status == 200, await response.text()
            admission = await response.json()
        self._room = rtc.Room()
        self._room.on("track_subscribed", self._listen)
        await self._room.connect(admission["rtc_url"], admission["token"])
        self._source = rtc.AudioSource(RATE, 1)
        track = rtc.LocalAudioTrack.create_audio_track("microphone", self._source)
        await self._room.local_participant.publish_track(
            track, rtc.TrackPublishOptions(source=rtc.TrackSource.SOURCE_MICROPHONE)
        )

    def _listen(self, track, *_):
        async def listen():
            async for event in rtc.AudioStream(track, sample_rate=RATE, num_channels=1):
                self.heard += event.frame.data.tobytes()

        self._listening.append(asyncio.create_task(listen()))

    async def say(self, text):
        silence = bytes(RATE // 5 * 2)
        samples = silence + await spoken(self._http, text, RATE) + 6 * silence
        step = RATE // 100 * 2
        for at in range(0, len(samples) - step + 1, step):
            await self._source.capture_frame(rtc.AudioFrame(samples[at : at + step], RATE, 1, step // 2))

    async def hears(self, text, since, enough=0.6):
        return await hears(self._http, lambda: bytes(self.heard[since:]), RATE, text, enough)

    async def leave(self):
        await self._room.disconnect()
        for task in self._listening:
            task.cancel()
