"""Voice activity detection by the server."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal

import aiohttp
from livekit import rtc
from livekit.agents import DEFAULT_API_CONNECT_OPTIONS, APIConnectOptions, APIError, utils, vad

from ._session import Server, Session, error_of, http_session
from .log import logger
from .stt import STT, EndpointingOptions

_UPDATE_INTERVAL_S = 0.05


class VAD(vad.VAD):
    """Voice activity detection of a session.

    Give it the `STT` of the same agent: then it follows the activity that the server finds there anyway, and costs nothing.

        stt = vivavoce.STT()
        AgentSession(stt=stt, vad=vivavoce.VAD(stt=stt), turn_handling={"turn_detection": "stt"}, ...)

    An STT whose streams hear several people at once tells one such voice from another no better than they do. Without an STT
    each stream is a session of its own, in which the server's local recogniser runs beside the detector.

    Args:
        stt: Whose voice activity to follow.
        endpointing: Of sessions of its own: when speech begins and ends. With `stt` its options apply.
        base_url: The server's; `VIVAVOCE_URL`, or `http://127.0.0.1:3001`.
        api_key: A token of the server, where it wants one; `VIVAVOCE_API_KEY`.
        http_session: The job's where absent.
        conn_options: How often, and how long, to try to connect.
    """

    def __init__(
        self,
        *,
        stt: STT | None = None,
        endpointing: EndpointingOptions | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        http_session: aiohttp.ClientSession | None = None,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
    ) -> None:
        super().__init__(capabilities=vad.VADCapabilities(update_interval=_UPDATE_INTERVAL_S))
        self._stt = stt
        self._endpointing = stt._options.endpointing if stt else EndpointingOptions(**(endpointing or {}))
        self._server = Server.of(base_url, api_key)
        self._http = http_session
        self._conn_options = conn_options

    @property
    def provider(self) -> str:
        return "vivavoce"

    @property
    def min_silence_duration(self) -> float:
        """The silence that ends speech, in seconds: the framework's turn detectors ask for it."""
        return self._endpointing.get("silence_ms", 500) / 1000

    def stream(self) -> VADStream:
        stream = VADStream(self)
        if self._stt is not None:
            self._stt._listeners.add(stream)
        return stream


class VADStream(vad.VADStream):
    """The server tells when speech begins, pauses and goes on; this tells the framework, in its own steps."""

    def __init__(self, detector: VAD) -> None:
        self._vivavoce = detector
        self._state: Literal["silence", "speech", "pause"] = "silence"
        self._rate = 16_000
        self._samples = 0
        # Seconds that were pushed, and when in these the last change was.
        self._position = self._speech_began = self._pause_began = self._told = 0.0
        # Of speech, for `end_of_speech`; no more of it than a minute.
        self._frames: list[rtc.AudioFrame] = []
        self._frames_length = 0.0
        super().__init__(detector)

    async def _main_task(self) -> None:
        if self._vivavoce._stt is not None:
            async for item in self._input_ch:
                self._take(item)
            return
        async for item in self._input_ch:
            if isinstance(item, rtc.AudioFrame):
                return await self._listen(item)

    async def _listen(self, first: rtc.AudioFrame) -> None:
        """Has sessions of its own. What is pushed while there is none is not heard: it is too late for that."""
        options, failures = self._vivavoce._conn_options, 0
        while not self._input_ch.closed:
            try:
                config = {
                    "stt_config": {
                        "provider": "local",
                        "sample_rate": first.sample_rate,
                        "channels": first.num_channels,
                    },
                    "tts_config": {"provider": "local", "model": ""},
                    "vad": dict(self._vivavoce._endpointing),
                }
                session = await Session.open(
                    self._vivavoce._server, http_session(self._vivavoce._http), config, timeout=options.timeout
                )
                failures = 0
                receiving = asyncio.create_task(self._receive(session), name="vivavoce.vad.receive")
                sending = asyncio.create_task(self._send(session), name="vivavoce.vad.send")
                try:
                    await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_EXCEPTION)
                    for task in (receiving, sending):
                        if task.done():
                            task.result()
                    await receiving
                finally:
                    await utils.aio.cancel_and_wait(sending, receiving)
                    await session.close()
            except APIError as error:
                self._end_of_session()
                if not error.retryable or failures >= options.max_retry:
                    raise
                interval = options._interval_for_retry(failures)
                logger.warning("voice activity detection failed: %s, retrying in %ss", error, interval)
                await asyncio.sleep(interval)
                while not self._input_ch.empty():
                    self._input_ch.recv_nowait()
                failures += 1

    async def _send(self, session: Session) -> None:
        async for item in self._input_ch:
            if isinstance(item, rtc.AudioFrame):
                await session.send_audio(item.data.cast("B"))
            self._take(item)
        await session.end()

    async def _receive(self, session: Session) -> None:
        async for event in session.events():
            if isinstance(event, dict) and event["type"] == "vad_event":
                self._on_event(event)
            elif isinstance(event, dict) and event["type"] == "error":
                raise error_of(event)

    def _on_event(self, event: dict[str, Any]) -> None:
        """What the server has found in what was pushed a moment ago."""
        match event["event"], self._state:
            case (("speech_start" | "speech_resumed"), "silence"):
                self._state = "speech"
                self._speech_began = self._position
                self._frames, self._frames_length = [], 0.0
                self._tell(vad.VADEventType.START_OF_SPEECH)
            case (("speech_start" | "speech_resumed"), "pause"):
                self._state = "speech"
            case "silence_detected", "speech":
                self._state = "pause"
                self._pause_began = self._position
            case "turn_end", ("speech" | "pause"):
                self._end_of_speech((event.get("silence_duration_ms") or 0) / 1000)

    def _end_of_session(self) -> None:
        """Nothing more is known of what is being said."""
        if self._state != "silence" and not self._event_ch.closed:
            self._end_of_speech(0.0)

    def _end_of_speech(self, silence: float) -> None:
        self._tell(vad.VADEventType.END_OF_SPEECH, silence, self._frames)
        self._state = "silence"
        self._frames, self._frames_length = [], 0.0

    def _take(self, item: rtc.AudioFrame | vad.VADStream._FlushSentinel) -> None:
        if not isinstance(item, rtc.AudioFrame):
            # A boundary of segments: what goes on begins anew.
            self._state = "silence"
            return
        self._rate = item.sample_rate
        self._samples += item.samples_per_channel
        self._position += item.duration
        if self._state != "silence" and self._frames_length < 60.0:
            self._frames.append(item)
            self._frames_length += item.duration
        pause = self._position - self._pause_began if self._state == "pause" else 0.0
        if pause >= self._vivavoce.min_silence_duration:
            # The end of a turn may wait for its words, or for the model: this one does not.
            return self._end_of_speech(pause)
        if self._position - self._told >= _UPDATE_INTERVAL_S:
            self._told = self._position
            self._tell(vad.VADEventType.INFERENCE_DONE, pause, [item])

    def _tell(self, kind: vad.VADEventType, silence: float = 0.0, frames: list[rtc.AudioFrame] | None = None) -> None:
        speaking = self._state != "silence"
        speech = self._position - self._speech_began if speaking else 0.0
        self._event_ch.send_nowait(
            vad.VADEvent(
                type=kind,
                samples_index=self._samples,
                timestamp=time.time(),
                speech_duration=speech,
                silence_duration=silence,
                frames=frames or [],
                probability=1.0 if self._state == "speech" else 0.0,
                speaking=speaking,
                raw_accumulated_silence=silence,
                raw_accumulated_speech=speech if self._state == "speech" else 0.0,
            )
        )
