"""Text to speech: a session of the server that only speaks.

Sentences are spoken as they become complete, over one socket that is open already, so that the first sound takes one message to ask
for, words come with their times, and one `clear` by id ends what is said wherever it is, without a byte of it on the socket behind
the answer. A request of `/speak` per sentence would come faster than real time, which transports do not need, and would have neither.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipecat.frames.frames import ErrorFrame, Frame, TTSAudioRawFrame, TTSStoppedFrame
from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TextAggregationMode, WebsocketTTSService
from pipecat.utils.tracing.service_decorators import traced_tts
from pipecat.utils.types import NOT_GIVEN, NotGiven
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.protocol import State

from ._server import Server, category_of, given, parse


@dataclass
class VivavoceTTSSettings(TTSSettings):
    """What may change while a pipeline runs; what is being said goes on as it was begun.

    Parameters:
        provider: `local`, `deepgram`, `elevenlabs`, `google`, `azure`, `cartesia` or `openai`.
        speed: The speaking rate, 0.25 to 4; the pitch stays.
        pronunciations: `{"word": ..., "pronunciation": ...}`, substituted by the server for whole words.
    """

    provider: str | NotGiven = field(default_factory=lambda: NOT_GIVEN)
    speed: float | NotGiven = field(default_factory=lambda: NOT_GIVEN)
    pronunciations: list[dict[str, str]] | NotGiven = field(default_factory=lambda: NOT_GIVEN)


class VivavoceTTSService(WebsocketTTSService):
    """Text to speech by any provider that the server has: its local voices, or a cloud vendor.

    A voice is the `id` of one of `GET /voices`, and decides the language. Tokens of a language model are sent as they come: the server
    divides them into sentences.

    Event handlers: `on_connected`, `on_disconnected`, `on_connection_error`, `on_tts_request`.

    Example::

        tts = VivavoceTTSService(settings=VivavoceTTSService.Settings(provider="deepgram", voice="aura-2-thalia-en"))
    """

    Settings = VivavoceTTSSettings
    _settings: VivavoceTTSSettings

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        sample_rate: int | None = None,
        fallback: Sequence[dict[str, Any]] = (),
        auth: dict[str, Any] | None = None,
        text_aggregation_mode: TextAggregationMode = TextAggregationMode.TOKEN,
        settings: VivavoceTTSSettings | None = None,
        **kwargs: Any,
    ) -> None:
        """Initialize the service.

        Args:
            base_url: The server's; `VIVAVOCE_URL`, or `http://127.0.0.1:3001`.
            api_key: A token of the server, where it wants one; `VIVAVOCE_API_KEY`.
            sample_rate: The pipeline's where absent. The server makes it, nothing is resampled here.
            fallback: Configurations of the server's `tts_config.fallback`, at most 3, for when the provider fails.
            auth: The program's own credential for the provider; the server's where empty.
            text_aggregation_mode: Tokens as they come, or whole sentences, for transforms that need these.
            settings: What may change later.
            **kwargs: Of the base class.
        """
        every = VivavoceTTSSettings(
            model=None, voice=None, language=None, provider="local", speed=1.0, pronunciations=[]
        )
        if settings is not None:
            every.apply_update(settings)
        super().__init__(
            text_aggregation_mode=text_aggregation_mode,
            # Sentences that are sent one by one are one text at the server.
            append_trailing_space=True,
            # Words that were heard go into the context, with their times, instead of the text that was meant to be.
            push_text_frames=False,
            push_start_frame=True,
            sample_rate=sample_rate,
            settings=every,
            **kwargs,
        )
        self._server = Server.of(base_url, api_key)
        self._fixed = given(fallback=list(fallback), auth=auth)
        self._receive_task: asyncio.Task[None] | None = None
        self._ready = False
        # Sound carries no id: it belongs to the utterance that was started last.
        self._sounding = ""

    def can_generate_metrics(self) -> bool:
        """Metrics are generated."""
        return True

    async def setup(self, setup: FrameProcessorSetup) -> None:  # type: ignore[override]
        """Connects, so that the first utterance finds a session."""
        await super().setup(setup)
        await self._connect()

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
            await self._websocket.send(json.dumps(self._config()))
        except (OSError, TimeoutError, WebSocketException) as error:
            self._websocket = None
            await self._report_error(ErrorFrame(f"cannot connect to the server: {error}", exception=error))

    async def _disconnect_websocket(self) -> None:
        try:
            await self.stop_all_metrics()
            if self._websocket:
                await self._websocket.close()
        finally:
            self._websocket = None
            self._ready, self._sounding = False, ""
            await self._call_event_handler("on_disconnected")

    def _config(self) -> dict[str, Any]:
        return {
            "type": "config",
            # A session has a recogniser; one that is sent no sound recognises nothing. The local one costs no vendor's money.
            "stt_config": {"provider": "local"},
            "tts_config": self._fixed
            | self._tts_config(set(self._settings.given_fields()))
            | {"audio_format": "linear16", "sample_rate": self.sample_rate, "progress": True},
            "vad": {"enabled": False},
        }

    def _tts_config(self, fields: set[str]) -> dict[str, Any]:
        settings = self._settings
        config: dict[str, Any] = {"model": settings.model or ""} if "model" in fields else {}
        names = {
            "provider": "provider",
            "voice": "voice_id",
            "speed": "speaking_rate",
            "pronunciations": "pronunciations",
        }
        values = {wire: getattr(settings, name) for name, wire in names.items() if name in fields}
        return config | {name: value for name, value in values.items() if value is not None}

    async def _update_settings(self, delta: TTSSettings) -> dict[str, Any]:  # type: ignore[override]
        changed = await super()._update_settings(delta)
        if "provider" in changed:
            # Another provider brings its own default model and voice, and the server's credential.
            self._fixed.pop("auth", None)
            for name in {"model", "voice"} - set(changed):
                setattr(self._settings, name, None)
        if (config := self._tts_config(set(changed))) and self._websocket and self._websocket.state is State.OPEN:
            await self._websocket.send(json.dumps({"type": "update_config", "tts_config": config}))
        return changed

    @traced_tts
    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Sends text; its sound comes by the receive task."""
        try:
            await self._say(text, context_id, last=False)
            await self.start_tts_usage_metrics(text)
            yield None
        except (ConnectionError, ConnectionClosed) as error:
            # The receive task connects anew; what was to be said is not said late.
            yield ErrorFrame("the connection to the server is lost", exception=error)
            yield TTSStoppedFrame(context_id=context_id)

    async def _say(self, text: str, context_id: str, *, last: bool) -> None:
        if self._websocket is None:
            raise ConnectionError("not connected")
        await self._websocket.send(json.dumps({"type": "speak", "id": context_id, "text": text, "flush": last}))

    async def flush_audio(self, context_id: str | None = None) -> None:
        """Ends the text of an utterance."""
        if (context_id := context_id or self.get_active_audio_context_id()) and self._websocket:
            await self._say("", context_id, last=True)

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Cuts an utterance; text and sound of it that are on their way are dropped, by the server and here."""
        await self.stop_all_metrics()
        if self._websocket:
            await self._websocket.send(json.dumps({"type": "clear", "id": context_id}))
        await super().on_audio_context_interrupted(context_id)

    async def _receive_messages(self) -> None:
        if self._websocket is None:
            # The receive loop connects again.
            raise ConnectionError("not connected")
        async for message in self._websocket:
            if isinstance(message, str):
                await self._on_event(parse(message, self))
            elif self.audio_context_available(self._sounding):
                frame = TTSAudioRawFrame(message, self.sample_rate, 1, context_id=self._sounding)
                await self.append_to_audio_context(self._sounding, frame)

    async def _on_event(self, event: dict[str, Any]) -> None:
        context_id = event.get("id") or ""
        known = self.audio_context_available(context_id)
        match event["type"]:
            case "ready" if not self._ready:
                self._ready = True
                await self._call_event_handler("on_connected")
            case "tts_started":
                self._sounding = context_id
            case "tts_progress" if known:
                await self.add_word_timestamps([(event["text"], event["played_ms"] / 1000)], context_id)
            case "tts_playback_complete" | "tts_interrupted" if known:
                await self._end_context(context_id)
            case "error":
                await self._report_error(ErrorFrame(event["message"], category=category_of(event)))
                if known:
                    await self._end_context(context_id)

    async def _end_context(self, context_id: str) -> None:
        await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
        await self.remove_audio_context(context_id)
