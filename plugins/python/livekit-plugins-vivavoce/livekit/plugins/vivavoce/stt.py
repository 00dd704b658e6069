"""Speech to text: a session of the server that only hears, or, for a recording, its transcription endpoint."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import aiohttp
from livekit import rtc
from livekit.agents import (
    DEFAULT_API_CONNECT_OPTIONS,
    NOT_GIVEN,
    APIConnectionError,
    APIConnectOptions,
    APITimeoutError,
    LanguageCode,
    NotGivenOr,
    stt,
    utils,
)
from livekit.agents.types import TimedString
from livekit.agents.utils import AudioBuffer, is_given

from ._session import Server, Session, error_of, error_of_response, http_session
from .log import logger

if TYPE_CHECKING:
    from .vad import VADStream

_T = TypeVar("_T")

# It is no low one, as 0 would be.
_UNKNOWN_CONFIDENCE = 1.0


class EndpointingOptions(TypedDict, total=False):
    """When speech begins and a turn ends: the `vad` object of the server's `config`. What is left out has its default there."""

    enabled: bool
    """Whether voice activity is looked for (true)."""
    threshold: float
    """The score from which sound is speech (0.65); 0.85 where other people talk in the room."""
    silence_ms: int
    """Silence that may end a turn (500)."""
    min_speech_ms: int
    """Speech shorter than this is none (100)."""
    speech_final_timeout_ms: int
    """How long after the last words a turn ends by itself (1800)."""
    max_turn_ms: int
    """The longest turn; 0 is none."""
    turn_model: str
    """`smart-turn`, a model that hears whether the speaker has finished, or `silence`. The model where the server has it."""
    noise_suppression: bool
    """Whether noise is suppressed (false)."""


@dataclass
class _Options:
    provider: str
    model: str
    language: str
    languages: list[str]
    keyterms: list[str]
    session_keyterms: list[str]
    punctuate: bool
    diarize: bool
    min_confidence: float
    endpointing: EndpointingOptions
    fallback: list[dict[str, Any]] = field(repr=False)
    auth: dict[str, Any] = field(repr=False)

    def all_keyterms(self) -> list[str]:
        return list(dict.fromkeys([*self.keyterms, *self.session_keyterms]))

    def stt_config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "provider": self.provider,
            "model": self.model,
            "language": self.language,
            "languages": self.languages,
            "keyterms": self.all_keyterms(),
            "punctuation": self.punctuate,
            "diarize": self.diarize,
            "min_confidence": self.min_confidence,
        }
        # `{}` and no fallback are the server's defaults.
        return (
            config | ({"auth": self.auth} if self.auth else {}) | ({"fallback": self.fallback} if self.fallback else {})
        )


class STT(stt.STT[Any]):
    """Speech to text by any provider that the server has: its local models, or a cloud vendor.

    A stream is one session of the server, whose end of turn is the framework's `END_OF_SPEECH`. Let the server decide when a
    turn is over, with its pauses and its end-of-turn model:

        AgentSession(stt=vivavoce.STT(), turn_handling={"turn_detection": "stt"}, ...)

    Args:
        provider: `local`, `deepgram`, `elevenlabs`, `google`, `azure`, `cartesia` or `openai`.
        model: A model of the provider; its default where empty.
        language: BCP-47.
        languages: Further languages that may be spoken, where the provider can tell them.
        keyterms: Words and phrases to listen for, where the provider can.
        punctuate: Whether punctuation is wanted.
        diarize: Whether speakers shall be told apart, where the provider can.
        min_confidence: Finals whose confidence is below it are dropped.
        endpointing: When speech begins and turns end.
        fallback: Configurations of the server's `stt_config.fallback`, at most 3, for when the provider fails.
        auth: The program's own credential for the provider; the server's where empty.
        base_url: The server's; `VIVAVOCE_URL`, or `http://127.0.0.1:3001`.
        api_key: A token of the server, where it wants one; `VIVAVOCE_API_KEY`.
        http_session: The job's where absent.
    """

    def __init__(
        self,
        *,
        provider: str = "local",
        model: str = "",
        language: str = "en-US",
        languages: Sequence[str] = (),
        keyterms: Sequence[str] = (),
        punctuate: bool = True,
        diarize: bool = False,
        min_confidence: float = 0.0,
        endpointing: EndpointingOptions | None = None,
        fallback: Sequence[dict[str, Any]] = (),
        auth: dict[str, Any] | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        http_session: aiohttp.ClientSession | None = None,
    ) -> None:
        super().__init__(
            capabilities=stt.STTCapabilities(
                streaming=True,
                interim_results=True,
                diarization=diarize,
                aligned_transcript="word",
                keyterms=True,
                manual_flush=True,
            )
        )
        self._server = Server.of(base_url, api_key)
        self._http = http_session
        self._options = _Options(
            provider=provider,
            model=model,
            language=language,
            languages=list(languages),
            keyterms=list(keyterms),
            session_keyterms=[],
            punctuate=punctuate,
            diarize=diarize,
            min_confidence=min_confidence,
            endpointing=EndpointingOptions(**(endpointing or {})),
            fallback=list(fallback),
            auth=dict(auth or {}),
        )
        self._streams = weakref.WeakSet[SpeechStream]()
        # Those that follow the voice activity of these streams instead of having sessions of their own: `VAD(stt=...)`.
        self._listeners: weakref.WeakSet[VADStream] = weakref.WeakSet()

    @property
    def model(self) -> str:
        return self._options.model or "default"

    @property
    def provider(self) -> str:
        return f"vivavoce/{self._options.provider}"

    def stream(
        self,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
    ) -> SpeechStream:
        options = dataclasses.replace(self._options)
        if is_given(language):
            options.language = language
        stream = SpeechStream(stt=self, options=options, conn_options=conn_options)
        self._streams.add(stream)
        return stream

    def update_options(
        self,
        *,
        provider: NotGivenOr[str] = NOT_GIVEN,
        model: NotGivenOr[str] = NOT_GIVEN,
        language: NotGivenOr[str] = NOT_GIVEN,
        languages: NotGivenOr[Sequence[str]] = NOT_GIVEN,
        keyterms: NotGivenOr[Sequence[str]] = NOT_GIVEN,
        endpointing: NotGivenOr[EndpointingOptions] = NOT_GIVEN,
    ) -> None:
        """Changes options, of running streams too: the server changes the recogniser between two words, and loses none."""
        stt_config: dict[str, Any] = {}
        if is_given(provider):
            # Another provider brings its own default model and the server's credential.
            self._options.provider, self._options.model, self._options.auth = provider, "", {}
            stt_config["provider"] = provider
        if is_given(model):
            self._options.model = stt_config["model"] = model
        if is_given(language):
            self._options.language = stt_config["language"] = language
        if is_given(languages):
            self._options.languages = stt_config["languages"] = list(languages)
        if is_given(keyterms):
            self._options.keyterms = list(keyterms)
            stt_config["keyterms"] = self._options.all_keyterms()
        if is_given(endpointing):
            self._options.endpointing.update(endpointing)
        self._update_streams(stt_config, endpointing if is_given(endpointing) else None)

    def _update_session_keyterms(self, keyterms: list[str]) -> None:
        if keyterms != self._options.session_keyterms:
            self._options.session_keyterms = list(keyterms)
            self._update_streams({"keyterms": self._options.all_keyterms()}, None)

    def _update_streams(self, stt_config: dict[str, Any], vad: EndpointingOptions | None) -> None:
        update: dict[str, Any] = {"type": "update_config"}
        update |= ({"stt_config": stt_config} if stt_config else {}) | ({"vad": dict(vad)} if vad else {})
        for stream in self._streams:
            stream._update(dataclasses.replace(self._options, language=self._language_of(stream, stt_config)), update)

    def _language_of(self, stream: SpeechStream, stt_config: dict[str, Any]) -> str:
        """A stream that was opened for another language keeps it, until the language is what is changed."""
        return self._options.language if "language" in stt_config else stream._options.language

    async def _recognize_impl(
        self,
        buffer: AudioBuffer,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions,
    ) -> stt.SpeechEvent:
        options = self._options
        frame = rtc.combine_audio_frames(buffer)
        form = aiohttp.FormData()
        form.add_field("file", frame.to_wav_bytes(), filename="speech.wav", content_type="audio/wav")
        form.add_field("model", f"{options.provider}/{options.model}" if options.model else options.provider)
        form.add_field("language", language if is_given(language) else options.language)
        form.add_field("response_format", "verbose_json")
        for granularity in ("segment", "word"):
            form.add_field("timestamp_granularities[]", granularity)
        for other in options.languages:
            form.add_field("languages[]", other)
        for keyterm in options.all_keyterms():
            form.add_field("keywords[]", keyterm)
        try:
            async with http_session(self._http).post(
                f"{self._server.url}/v1/audio/transcriptions",
                data=form,
                headers=self._server.headers,
                # How long the recognition of a file may take depends on the file; the framework has no limit for it.
                timeout=aiohttp.ClientTimeout(total=600, sock_connect=conn_options.timeout),
            ) as response:
                if response.status != 200:
                    raise await error_of_response(response)
                body = await response.json()
                request_id = response.headers.get("x-request-id", "")
        except asyncio.TimeoutError:
            raise APITimeoutError() from None
        except aiohttp.ClientError as error:
            raise APIConnectionError(f"cannot reach the server: {type(error).__name__}") from None
        words = [TimedString(word["word"], word["start"], word["end"]) for word in body.get("words", [])]
        segments = body.get("segments", [])
        return stt.SpeechEvent(
            type=stt.SpeechEventType.FINAL_TRANSCRIPT,
            request_id=request_id,
            alternatives=[
                stt.SpeechData(
                    language=LanguageCode(body.get("language") or options.language),
                    text=body["text"],
                    start_time=segments[0]["start"] if segments else 0.0,
                    end_time=segments[-1]["end"] if segments else 0.0,
                    confidence=_UNKNOWN_CONFIDENCE,
                    words=words or None,
                )
            ],
        )

    async def aclose(self) -> None:
        for stream in list(self._streams):
            await stream.aclose()
        self._streams.clear()


class SpeechStream(stt.RecognizeStream):
    """A session that hears. It is opened by the first frame, at the rate of that: the server converts, nothing is resampled here."""

    def __init__(self, *, stt: STT, options: _Options, conn_options: APIConnectOptions) -> None:
        super().__init__(stt=stt, conn_options=conn_options)
        self._vivavoce = stt
        self._options = options
        self._session: Session | None = None
        self._first: rtc.AudioFrame | None = None
        self._updates: set[asyncio.Task[None]] = set()
        self._request_id = ""
        self._begin_attempt()

    def _begin_attempt(self) -> None:
        self._speaking = False
        self._heard = 0.0  # Seconds that were sent, without inserted silence.
        self._reported = 0.0
        # Silence that `flush` has inserted: where, in seconds of what the server has heard, and how much.
        self._inserted: list[tuple[float, float]] = []

    async def _run(self) -> None:
        self._begin_attempt()
        if self._first is None:
            async for item in self._input_ch:
                if isinstance(item, rtc.AudioFrame):
                    self._first = item
                    break
            if self._first is None:
                return
        first = self._first
        loop = asyncio.get_running_loop()
        began = loop.time()
        session = await Session.open(
            self._vivavoce._server,
            http_session(self._vivavoce._http),
            {
                "stt_config": self._options.stt_config()
                | {"sample_rate": first.sample_rate, "channels": first.num_channels},
                # A session has a voice; one that is told nothing to say costs nothing.
                "tts_config": {"provider": "local", "model": ""},
                "vad": dict(self._options.endpointing),
            },
            timeout=self._conn_options.timeout,
        )
        self._report_connection_acquired(loop.time() - began, False)
        self._session, self._request_id = session, session.stream_id
        # Times of the server count from the first sample, which is sent now.
        self.start_time = time.time()
        sending = asyncio.create_task(self._send(session, first), name="vivavoce.stt.send")
        receiving = asyncio.create_task(self._receive(session), name="vivavoce.stt.receive")
        try:
            # The receiving task ends when the session has: after the end of the input, or with an error.
            await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_EXCEPTION)
            if receiving.done():
                receiving.result()
            sending.result()
            await receiving
        finally:
            self._session = None
            await utils.aio.cancel_and_wait(sending, receiving)
            await session.close()
            for listener in self._vivavoce._listeners:
                listener._end_of_session()

    async def _send(self, session: Session, first: rtc.AudioFrame) -> None:
        async def send(frame: rtc.AudioFrame) -> None:
            self._heard += frame.duration
            await session.send_audio(frame.data.cast("B"))

        await send(first)
        # It belongs to this attempt: another one begins with what comes then.
        self._first = None
        async for item in self._input_ch:
            if isinstance(item, rtc.AudioFrame):
                await send(item)
            elif not self._input_ch.closed:
                await self._insert_silence(session, first)
        await session.end()

    async def _insert_silence(self, session: Session, like: rtc.AudioFrame) -> None:
        """Ends what is being said. Silence is what the server knows ends of turns by, and it is heard faster than real time."""
        milliseconds = self._options.endpointing.get("speech_final_timeout_ms", 1800) + 200
        samples = like.sample_rate * milliseconds // 1000
        self._inserted.append((self._heard + sum(length for _, length in self._inserted), milliseconds / 1000))
        # Only the latest matter: what was said before an hour of flushes is not reported any more.
        del self._inserted[:-1000]
        await session.send_audio(bytes(2 * samples * like.num_channels))

    def _time(self, seconds: float) -> float:
        """A time of the server's on the framework's clock, on which nothing was inserted."""
        inserted = sum(min(length, max(0.0, seconds - at)) for at, length in self._inserted)
        return seconds - inserted + self.start_time_offset

    async def _receive(self, session: Session) -> None:
        async for event in session.events():
            if isinstance(event, bytes):
                continue
            match event["type"]:
                case "stt_result":
                    self._on_result(event)
                case "vad_event":
                    self._on_voice(event)
                case "error" if event.get("in_reply_to") == "update_config":
                    logger.error("options were not changed: %s", event["message"])
                case "error":
                    raise error_of(event)
        self._report_usage()

    def _on_voice(self, event: dict[str, Any]) -> None:
        # Voice activity first: the framework forgives a voice that ends before its turn, and warns of the other order.
        for listener in self._vivavoce._listeners:
            listener._on_event(event)
        match event["event"]:
            case "speech_start":
                self._start_speaking(event["timestamp_ms"] / 1000)
            case "turn_end" if self._speaking:
                self._speaking = False
                self._report_usage()
                ended = (event["timestamp_ms"] - (event.get("silence_duration_ms") or 0)) / 1000
                self._emit(stt.SpeechEventType.END_OF_SPEECH, speech_end_time=self._wall_clock(ended))

    def _start_speaking(self, at: float) -> None:
        if not self._speaking:
            self._speaking = True
            self._emit(stt.SpeechEventType.START_OF_SPEECH, speech_start_time=self._wall_clock(at))

    def _wall_clock(self, seconds: float) -> float:
        return self.start_time + self._time(seconds) - self.start_time_offset

    def _on_result(self, event: dict[str, Any]) -> None:
        final, text = event["is_final"], event["transcript"]
        if final and not text:
            # Only the end of the turn, which `turn_end` tells.
            return
        words = [
            TimedString(
                word["word"],
                self._time(word["start"]),
                self._time(word["end"]),
                word.get("confidence") if word.get("confidence") is not None else NOT_GIVEN,
                self.start_time_offset,
                word.get("speaker"),
            )
            for word in event.get("words") or []
        ]
        speakers = [word.speaker_id for word in words if word.speaker_id]
        data = stt.SpeechData(
            language=LanguageCode(event.get("language") or self._options.language),
            text=text,
            start_time=_or(words[0].start_time, 0.0) if words else 0.0,
            end_time=_or(words[-1].end_time, 0.0) if words else 0.0,
            confidence=_UNKNOWN_CONFIDENCE if event["confidence"] is None else event["confidence"],
            speaker_id=max(set(speakers), key=speakers.count) if speakers else None,
            words=words or None,
        )
        if not final and text:
            # Voice activity may be switched off, or not hear what the recogniser hears.
            self._start_speaking(self._heard + sum(length for _, length in self._inserted))
        kind = stt.SpeechEventType.FINAL_TRANSCRIPT if final else stt.SpeechEventType.INTERIM_TRANSCRIPT
        self._emit(kind, alternatives=[data])

    def _report_usage(self) -> None:
        if (seconds := self._heard - self._reported) > 0:
            self._reported = self._heard
            usage = stt.RecognitionUsage(audio_duration=seconds)
            self._emit(stt.SpeechEventType.RECOGNITION_USAGE, recognition_usage=usage)

    def _emit(self, kind: stt.SpeechEventType, **fields: Any) -> None:
        self._event_ch.send_nowait(stt.SpeechEvent(type=kind, request_id=self._request_id, **fields))

    def _update(self, options: _Options, update: dict[str, Any]) -> None:
        self._options = options
        if self._session is not None:
            # A connection that is lost meanwhile is reported by whoever reads it; the next one begins with the new options.
            task = asyncio.create_task(self._session.send(update))
            self._updates.add(task)
            task.add_done_callback(self._updates.discard)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())


def _or(value: NotGivenOr[_T], default: _T) -> _T:
    return value if is_given(value) else default
