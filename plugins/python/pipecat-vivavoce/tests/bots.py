"""The bots of the README, and what they need around them: a transport that has a microphone and a loudspeaker, and a room."""

import asyncio
import importlib.util
import re
from pathlib import Path

from livekit import rtc
from pipecat.frames.frames import InputAudioRawFrame, OutputAudioRawFrame
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import BaseTransport, TransportParams

from harness import PATIENCE, headers, server_url, share, spoken, understood

README = Path(__file__).parent.parent / "README.md"
RATE = 16_000
ROOM_RATE = 48_000


def bot_of_the_readme(folder, number):
    """A program of the README as a module, saved as a file."""
    file = Path(folder) / f"bot{number}.py"
    file.write_text(re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[number])
    spec = importlib.util.spec_from_file_location(f"bot{number}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def hears(http, samples, rate, text, enough=0.6):
    """Waits until most of a text is in what was heard."""
    heard = ""
    for _ in range(PATIENCE):
        heard = await understood(http, samples(), rate)
        if share(text, heard) >= enough:
            return heard
        await asyncio.sleep(1)
    raise AssertionError(f"heard {heard!r} instead of {text!r}")


class _Microphone(BaseInputTransport):
    def __init__(self, transport, params):
        super().__init__(params)
        self._transport = transport

    async def start(self, frame):
        await super().start(frame)
        await self.set_transport_ready(frame)
        self._listening = self.create_task(self._listen())
        await self._transport._call_event_handler("on_client_connected", self._transport)

    async def stop(self, frame):
        await super().stop(frame)
        await self.cancel_task(self._listening)

    async def cancel(self, frame):
        await super().cancel(frame)
        await self.cancel_task(self._listening)

    async def _listen(self):
        """Sound every 20 ms: what is said, else silence."""
        step = RATE // 50 * 2
        due = asyncio.get_running_loop().time()
        while True:
            said = self._transport.saying
            sound, said[:] = bytes(said[:step]).ljust(step, b"\0"), said[step:]
            await self.push_audio_frame(InputAudioRawFrame(sound, RATE, 1))
            due += 0.02
            await asyncio.sleep(due - asyncio.get_running_loop().time())


class _Loudspeaker(BaseOutputTransport):
    def __init__(self, transport, params):
        super().__init__(params)
        self._transport = transport
        self._due = 0.0

    async def start(self, frame):
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        self._transport.heard += frame.audio
        # A device takes sound as it plays it.
        now = asyncio.get_running_loop().time()
        self._due = max(now, self._due) + len(frame.audio) / 2 / frame.sample_rate
        await asyncio.sleep(self._due - now)
        return True


class Device(BaseTransport):
    """Somebody at this machine: `saying` is what they say, `heard` what they hear."""

    def __init__(self, http):
        super().__init__()
        self._http = http
        self.saying, self.heard = bytearray(), bytearray()
        params = TransportParams(
            audio_in_enabled=True,
            audio_in_sample_rate=RATE,
            audio_out_enabled=True,
            audio_out_sample_rate=RATE,
            audio_out_auto_silence=False,
            audio_out_end_silence_secs=0,
        )
        self._input, self._output = _Microphone(self, params), _Loudspeaker(self, params)
        self._register_event_handler("on_client_connected")
        self._register_event_handler("on_client_disconnected")

    def input(self):
        return self._input

    def output(self):
        return self._output

    async def say(self, text):
        self.saying += await spoken(self._http, text, RATE)
        while self.saying:
            await asyncio.sleep(0.02)

    async def hears(self, text, since, enough=0.6):
        return await hears(self._http, lambda: bytes(self.heard[since:]), RATE, text, enough)

    async def leave(self):
        await self._call_event_handler("on_client_disconnected", self)


class Person:
    """Somebody in a room of the server, with LiveKit's client."""

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
        self._source = rtc.AudioSource(ROOM_RATE, 1)
        track = rtc.LocalAudioTrack.create_audio_track("microphone", self._source)
        await self._room.local_participant.publish_track(
            track, rtc.TrackPublishOptions(source=rtc.TrackSource.SOURCE_MICROPHONE)
        )

    def _listen(self, track, *_):
        async def listen():
            async for event in rtc.AudioStream(track, sample_rate=ROOM_RATE, num_channels=1):
                self.heard += event.frame.data.tobytes()

        self._listening.append(asyncio.create_task(listen()))

    async def say(self, text):
        silence = bytes(ROOM_RATE // 5 * 2)
        samples = silence + await spoken(self._http, text, ROOM_RATE) + 6 * silence
        step = ROOM_RATE // 100 * 2
        for at in range(0, len(samples) - step + 1, step):
            await self._source.capture_frame(rtc.AudioFrame(samples[at : at + step], ROOM_RATE, 1, step // 2))

    async def hears(self, text, since, enough=0.6):
        return await hears(self._http, lambda: bytes(self.heard[since:]), ROOM_RATE, text, enough)

    async def leave(self):
        await self._room.disconnect()
        for task in self._listening:
            task.cancel()
