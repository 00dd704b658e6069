"""A transport that has a microphone and a loudspeaker, as far as Pipecat can tell."""

import asyncio

from pipecat.frames.frames import InputAudioRawFrame, OutputAudioRawFrame
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import BaseTransport, TransportParams

from harness import hears, spoken

RATE = 16_000


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

    rate = RATE

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
