"""Speech to text: a session of the server that only hears, and that decides when a turn is over."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InterimTranscriptionFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
    STTMetadataFrame,
    TranscriptionFrame,
)
from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import WebsocketSTTService
from pipecat.transcriptions.language import Language
from pipecat.turns.user_turn_strategies import ExternalUserTurnStrategies
from pipecat.utils.time import time_now_iso8601
from pipecat.utils.tracing.service_decorators import traced_stt
from pipecat.utils.types import NOT_GIVEN, NotGiven
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.protocol import State

from ._server import EndpointingOptions, Server, category_of, given, parse

# Sound that comes while there is no connection is kept, the last of it, and sent when there is one again.
_HELD_S = 10
# The end of a session waits for the words that the recogniser owes.
_END_TIMEOUT_S = 10.0


@dataclass
class VivavoceSTTSettings(STTSettings):
    """What may change while a pipeline runs: the server changes the recogniser between two words, and loses none.

    Parameters:
        provider: `local`, `deepgram`, `elevenlabs`, `google`, `azure`, `cartesia` or `openai`.
        languages: Further languages that may be spoken, where the provider can tell them.
        keyterms: Words and phrases to listen for, where the provider can.
        endpointing: When speech begins and turns end.
    """

    provider: str | NotGiven = field(default_factory=lambda: NOT_GIVEN)
    languages: list[str] | NotGiven = field(default_factory=lambda: NOT_GIVEN)
    keyterms: list[str] | NotGiven = field(default_factory=lambda: NOT_GIVEN)
    endpointing: EndpointingOptions | NotGiven = field(default_factory=lambda: NOT_GIVEN)


class VivavoceSTTService(WebsocketSTTService):
    """Speech to text by any provider that the server has: its local models, or a cloud vendor.

    The server finds where turns begin and end, with its voice activity detection and its end-of-turn model. The service recommends
    to leave that to it, so that a pipeline needs neither a VAD nor a turn analyzer of its own; `user_turn_strategies` of the
    aggregator say otherwise. A `TranscriptionFrame` has the words with times and confidences in `result`.

    Event handlers: `on_connected`, `on_disconnected`, `on_connection_error`.

    Example::

        stt = VivavoceSTTService(settings=VivavoceSTTService.Settings(provider="deepgram", language="de-DE"))
    """

    Settings = VivavoceSTTSettings
    _settings: VivavoceSTTSettings

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        sample_rate: int | None = None,
        punctuate: bool = True,
        diarize: bool = False,
        min_confidence: float = 0.0,
        fallback: Sequence[dict[str, Any]] = (),
        auth: dict[str, Any] | None = None,
        should_interrupt: bool = True,
        settings: VivavoceSTTSettings | None = None,
        **kwargs: Any,
    ) -> None:
        """Initialize the service.

        Args:
            base_url: The server's; `VIVAVOCE_URL`, or `http://127.0.0.1:3001`.
            api_key: A token of the server, where it wants one; `VIVAVOCE_API_KEY`.
            sample_rate: The pipeline's where absent. The server converts, nothing is resampled here.
            punctuate: Whether punctuation is wanted.
            diarize: Whether speakers shall be told apart, where the provider can.
            min_confidence: Finals whose confidence is below it are dropped.
            fallback: Configurations of the server's `stt_config.fallback`, at most 3, for when the provider fails.
            auth: The program's own credential for the provider; the server's where empty.
            should_interrupt: Whether somebody who speaks interrupts the bot.
            settings: What may change later.
            **kwargs: Of the base class.
        """
        every = VivavoceSTTSettings(
            model=None,
            language="en-US",
            provider="local",
            languages=[],
            keyterms=[],
            endpointing=EndpointingOptions(),
        )
        if settings is not None:
            every.apply_update(settings)
        super().__init__(sample_rate=sample_rate, settings=every, **kwargs)
        self._server = Server.of(base_url, api_key)
        self._fixed = given(
            fallback=list(fallback), auth=auth, diarize=diarize or None, min_confidence=min_confidence or None
        )
        self._fixed["punctuation"] = punctuate
        self._should_interrupt = should_interrupt
        self._receive_task: asyncio.Task[None] | None = None
        self._stream_id = ""
        self._turn_open = False
        # How many `config` and `update_config` were sent on this connection and are not answered yet.
        self._unanswered = 0
        self._all_answered = asyncio.Event()
        self._held: deque[bytes] = deque()
        self._held_bytes = 0

    def can_generate_metrics(self) -> bool:
        """Metrics are generated."""
        return True

    @property
    def supports_ttfs(self) -> bool:
        """The server defines the boundaries of turns: there is nothing to wait for after them."""
        return False

    def service_metadata_frame(self) -> STTMetadataFrame:
        """Recommends to leave the boundaries of turns to the server."""
        frame = super().service_metadata_frame()
        frame.user_turn_strategies = ExternalUserTurnStrategies(enable_interruptions=self._should_interrupt)
        return frame

    def language_to_service_language(self, language: Language) -> str | None:
        """The server takes BCP-47, which the framework's languages are."""
        return str(language)

    async def setup(self, setup: FrameProcessorSetup) -> None:  # type: ignore[override]
        """Connects, so that the first word finds a recogniser."""
        await super().setup(setup)
        await self._connect()

    async def stop(self, frame: EndFrame) -> None:
        """Ends the session; what was said last is still transcribed."""
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self._end_session()
        except (TimeoutError, OSError, ConnectionClosed) as error:
            logger.warning(f"{self}: the last words may be missing: {type(error).__name__}")
        await super().stop(frame)

    async def _end_session(self) -> None:
        if self._websocket is None or self._receive_task is None or not self._stream_id:
            return
        self._disconnecting = True  # What ends now shall not be connected anew.
        # The end is asked for beside the socket, and must not overtake the sound on it: the answer to a message that changes
        # nothing tells that the server has read what came before.
        await self._send_config({"type": "update_config"})
        await self._all_answered.wait()
        await self._server.end_session(self._stream_id)
        await asyncio.wait([self._receive_task])

    async def _connect(self) -> None:
        await super()._connect()
        await self._connect_websocket()
        if not self._receive_task:
            self._receive_task = self.create_task(self._receive_task_handler(self._report_error))

    async def _disconnect(self) -> None:
        await super()._disconnect()
        if self._receive_task:
            await self.cancel_task(self._receive_task)
            self._receive_task = None
        await self._disconnect_websocket()

    async def _connect_websocket(self) -> None:
        try:
            if self._websocket and self._websocket.state is State.OPEN:
                return
            self._websocket = await self._websocket_connect(
                self._server.socket_url, additional_headers=self._server.headers, max_size=4 << 20
            )
            self._unanswered = 0
            await self._send_config(self._config())
            while self._held:
                await self._websocket.send(self._held.popleft())
            self._held_bytes = 0
        except (OSError, TimeoutError, WebSocketException) as error:
            self._websocket = None
            await self._report_error(ErrorFrame(f"cannot connect to the server: {error}", exception=error))

    async def _disconnect_websocket(self) -> None:
        try:
            if self._websocket:
                await self._websocket.close()
        finally:
            self._websocket = None
            self._stream_id = ""
            await self._end_turn()
            await self._call_event_handler("on_disconnected")

    async def _send_config(self, message: dict[str, Any]) -> None:
        assert self._websocket is not None
        self._unanswered += 1
        self._all_answered.clear()
        await self._websocket.send(json.dumps(message))

    def _on_answer(self) -> None:
        self._unanswered = max(0, self._unanswered - 1)
        if not self._unanswered:
            self._all_answered.set()

    def _config(self) -> dict[str, Any]:
        stt_config = self._fixed | self._stt_config(set(self._settings.given_fields()))
        return {
            "type": "config",
            "stt_config": stt_config | {"sample_rate": self.sample_rate},
            # A session has a voice; one that is told nothing to say costs nothing.
            "tts_config": {"provider": "local", "model": ""},
            "vad": self._settings.endpointing,
        }

    def _stt_config(self, fields: set[str]) -> dict[str, Any]:
        names = fields & {"provider", "model", "language", "languages", "keyterms"}
        return {name: value for name in names if (value := getattr(self._settings, name)) is not None}

    async def _update_settings(self, delta: STTSettings) -> dict[str, Any]:  # type: ignore[override]
        changed = await super()._update_settings(delta)
        if "provider" in changed:
            # Another provider brings its own default model, and the server's credential.
            self._fixed.pop("auth", None)
            if "model" not in changed:
                self._settings.model = None
        if changed and self._websocket and self._websocket.state is State.OPEN:
            update: dict[str, Any] = {"type": "update_config"}
            update |= given(stt_config=self._stt_config(set(changed)))
            if "endpointing" in changed:
                update["vad"] = self._settings.endpointing
            await self._send_config(update)
        return changed

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        """Sends sound; what is heard in it comes by the receive task."""
        if self._websocket and self._websocket.state is State.OPEN:
            try:
                await self._websocket.send(audio)
            except ConnectionClosed:
                # The receive task reports it, and connects anew.
                self._hold(audio)
        else:
            self._hold(audio)
        yield None

    def _hold(self, audio: bytes) -> None:
        self._held.append(audio)
        self._held_bytes += len(audio)
        while self._held_bytes > 2 * self.sample_rate * _HELD_S:
            self._held_bytes -= len(self._held.popleft())

    async def _receive_messages(self) -> None:
        if self._websocket is None:
            # The receive loop connects again.
            raise ConnectionError("not connected")
        async for message in self._websocket:
            if isinstance(message, str):
                await self._on_event(parse(message, self))

    async def _on_event(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "ready":
                first, self._stream_id = not self._stream_id, event["stream_id"]
                self._on_answer()
                if first:
                    await self._call_event_handler("on_connected")
            case "vad_event":
                await self._on_voice(event["event"])
            case "stt_result":
                await self._on_result(event)
            case "error":
                category = category_of(event)
                if event.get("in_reply_to") in ("config", "update_config"):
                    self._on_answer()
                # A change that was refused leaves everything as it was.
                refused_change = event.get("in_reply_to") == "update_config"
                if refused_change and category.is_permanent:
                    logger.error(f"{self}: settings were not changed: {event['message']}")
                else:
                    await self._report_error(ErrorFrame(event["message"], category=category))

    async def _on_voice(self, event: str) -> None:
        if event == "speech_start" and not self._turn_open:
            self._turn_open = True
            await self.broadcast_frame(ProposedUserStartedSpeakingFrame)
        elif event == "turn_end":
            await self._end_turn()

    async def _end_turn(self) -> None:
        """A turn that nobody ends, as that of a lost connection, would keep the bot waiting."""
        if self._turn_open:
            self._turn_open = False
            await self.broadcast_frame(ProposedUserStoppedSpeakingFrame)

    async def _on_result(self, event: dict[str, Any]) -> None:
        text = event["transcript"]
        if not text:
            # Only the end of the turn, which `turn_end` tells, or an interim result that is taken back.
            return
        language = _language(event.get("language") or self._settings.language)
        if not event["is_final"]:
            await self.push_frame(
                InterimTranscriptionFrame(text, self._user_id, time_now_iso8601(), language, result=event)
            )
            return
        await self.emit_stt_usage_metrics()
        await self.push_frame(
            TranscriptionFrame(
                text, self._user_id, time_now_iso8601(), language, result=event, finalized=event["is_speech_final"]
            )
        )
        await self._trace(text, True, language)

    @traced_stt
    async def _trace(self, transcript: str, is_final: bool, language: Language | None = None) -> None:
        """Ends the span of what was said."""


def _language(code: Any) -> Language | None:
    try:
        return Language(code)
    except ValueError:
        return None
