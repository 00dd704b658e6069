"""Text to speech: a session of the server that only speaks, or, for a whole text, its `/speak`.

Which of the two is a matter of what is known when. A *stream* gets the tokens of a language model: its sentences are spoken as
they become complete, over one socket that is open already, so that the first sound takes one message to ask for, words come with
their times, and one `clear` by id ends an utterance wherever it is, without a byte of it on the socket behind the answer. A
session's sound is paced: it comes in real time, a little (`socket.lead_ms`) ahead. The framework plays in real time, too. A *whole
text* comes from `/speak` as fast as it is made: who asks for that may not want to play it at all.
"""

from __future__ import annotations

import asyncio
import dataclasses
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from livekit.agents import (
    DEFAULT_API_CONNECT_OPTIONS,
    NOT_GIVEN,
    APIConnectionError,
    APIConnectOptions,
    APIError,
    APITimeoutError,
    NotGivenOr,
    tts,
    utils,
)
from livekit.agents.types import TimedString
from livekit.agents.utils import is_given

from ._session import Server, Session, error_of, error_of_response, http_session

# The server takes longer ones; they are dialled anew now and then so that load spreads over its replicas.
_SESSION_S = 3600.0


@dataclass
class _Options:
    provider: str
    model: str
    voice: str
    speed: float
    pronunciations: list[dict[str, str]]
    sample_rate: int
    word_timestamps: bool
    fallback: list[dict[str, Any]] = field(repr=False)
    auth: dict[str, Any] = field(repr=False)

    def tts_config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "provider": self.provider,
            "model": self.model,
            "speaking_rate": self.speed,
            "pronunciations": self.pronunciations,
            "audio_format": "linear16",
            "sample_rate": self.sample_rate,
        }
        optional = {"voice_id": self.voice, "auth": self.auth, "fallback": self.fallback}
        return config | {name: value for name, value in optional.items() if value}


class TTS(tts.TTS[Any]):
    """Text to speech by any provider that the server has: its local voices, or a cloud vendor.

    With `word_timestamps` each word comes with its time when it is about to be heard, for transcripts that go along with the voice
    (`AgentSession(use_tts_aligned_transcript=True)`).

    Args:
        provider: `local`, `deepgram`, `elevenlabs`, `google`, `azure`, `cartesia` or `openai`.
        model: A model of the provider; its default where empty.
        voice: The `id` of a voice of `GET /voices`, which also decides the language; the provider's default where empty.
        speed: The speaking rate, 0.25 to 4; the pitch stays.
        pronunciations: `{"word": ..., "pronunciation": ...}`, substituted by the server for whole words.
        sample_rate: Any rate from 8000 to 48000: the server makes it, nothing is resampled here.
        word_timestamps: Whether words come with times.
        fallback: Configurations of the server's `tts_config.fallback`, at most 3, for when the provider fails.
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
        voice: str = "",
        speed: float = 1.0,
        pronunciations: Sequence[dict[str, str]] = (),
        sample_rate: int = 24_000,
        word_timestamps: bool = True,
        fallback: Sequence[dict[str, Any]] = (),
        auth: dict[str, Any] | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        http_session: aiohttp.ClientSession | None = None,
    ) -> None:
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=word_timestamps),
            sample_rate=sample_rate,
            num_channels=1,
        )
        self._server = Server.of(base_url, api_key)
        self._http = http_session
        self._options = _Options(
            provider=provider,
            model=model,
            voice=voice,
            speed=speed,
            pronunciations=list(pronunciations),
            sample_rate=sample_rate,
            word_timestamps=word_timestamps,
            fallback=list(fallback),
            auth=dict(auth or {}),
        )
        self._pool = utils.ConnectionPool[_Voice](
            connect_cb=self._connect, close_cb=_Voice.close, max_session_duration=_SESSION_S, mark_refreshed_on_get=True
        )
        self._streams = weakref.WeakSet[SynthesizeStream]()

    @property
    def model(self) -> str:
        return self._options.model or "default"

    @property
    def provider(self) -> str:
        return f"vivavoce/{self._options.provider}"

    async def _connect(self, timeout: float) -> _Voice:
        config = {
            # A session has a recogniser; one that is sent no sound recognises nothing. The local one costs no vendor's money.
            "stt_config": {"provider": "local"},
            "tts_config": self._options.tts_config() | {"progress": self._options.word_timestamps},
            "vad": {"enabled": False},
        }
        return _Voice(await Session.open(self._server, http_session(self._http), config, timeout=timeout))

    async def _voice(self, timeout: float) -> tuple[_Voice, float, bool]:
        """A session to speak in: one that is open already, if there is one."""
        while (voice := await self._pool.get(timeout=timeout)).closed:
            self._pool.remove(voice)
        return voice, self._pool.last_acquire_time, self._pool.last_connection_reused

    def prewarm(self) -> None:
        """Opens a session, so that the first utterance finds one."""
        self._pool.prewarm()

    def update_options(
        self,
        *,
        provider: NotGivenOr[str] = NOT_GIVEN,
        model: NotGivenOr[str] = NOT_GIVEN,
        voice: NotGivenOr[str] = NOT_GIVEN,
        speed: NotGivenOr[float] = NOT_GIVEN,
        pronunciations: NotGivenOr[Sequence[dict[str, str]]] = NOT_GIVEN,
    ) -> None:
        """Changes options for what is said from now on; what is being said goes on as it was begun."""
        options = self._options
        if is_given(provider):
            # Another provider brings its own default model and voice, and the server's credential.
            options.provider, options.model, options.voice, options.auth = provider, "", "", {}
        if is_given(model):
            options.model = model
        if is_given(voice):
            options.voice = voice
        if is_given(speed):
            options.speed = speed
        if is_given(pronunciations):
            options.pronunciations = list(pronunciations)
        self._pool.invalidate()

    def synthesize(self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> ChunkedStream:
        return ChunkedStream(tts=self, input_text=text, conn_options=conn_options)

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> SynthesizeStream:
        stream = SynthesizeStream(tts=self, conn_options=conn_options)
        self._streams.add(stream)
        return stream

    async def aclose(self) -> None:
        for stream in list(self._streams):
            await stream.aclose()
        self._streams.clear()
        await self._pool.aclose()


class _Utterance:
    """What is said under one id, and where its sound and words go."""

    def __init__(self, output: tts.AudioEmitter) -> None:
        self.id = utils.shortuuid("utterance_")
        self.output = output
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, error: APIError | None = None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
            # Whoever waits is told; nobody waits for an utterance that was cut.
            self.ended.exception()


class _Voice:
    """A session that says one utterance at a time. Sound carries no id: it belongs to the utterance that was started last."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._utterance: _Utterance | None = None
        self._sounding = ""
        # Reads also while nothing is said: pings are answered by reading.
        self._reading = asyncio.create_task(self._read(), name="vivavoce.tts.read")

    @property
    def closed(self) -> bool:
        return self._session.closed or self._reading.done()

    async def _read(self) -> None:
        try:
            async for event in self._session.events():
                if (utterance := self._utterance) is not None:
                    self._on_event(event, utterance)
                elif isinstance(event, dict) and event["type"] == "tts_started":
                    self._sounding = event["id"]
            error: APIError = APIConnectionError("the server ended the session")
        except APIError as failed:
            error = failed
        if self._utterance is not None:
            self._utterance.end(error)

    def _on_event(self, event: dict[str, Any] | bytes, utterance: _Utterance) -> None:
        if isinstance(event, bytes):
            if self._sounding == utterance.id:
                utterance.output.push(event)
            return
        if event["type"] == "tts_started":
            self._sounding = event["id"]
        elif event["type"] == "error" and event["fatal"]:
            utterance.end(error_of(event))
        elif event.get("id") == utterance.id:
            match event["type"]:
                case "tts_progress":
                    word = TimedString(event["text"] + " ", start_time=event["played_ms"] / 1000)
                    utterance.output.push_timed_transcript(word)
                case "tts_playback_complete" | "tts_interrupted":
                    utterance.end()
                case "error":
                    utterance.end(error_of(event))

    def begin(self, utterance: _Utterance) -> None:
        self._utterance = utterance

    async def say(self, text: str, *, last: bool = False) -> None:
        assert self._utterance is not None
        await self._session.send({"type": "speak", "id": self._utterance.id, "text": text, "flush": last})

    async def release(self) -> None:
        """Leaves the utterance. Nothing of it is heard any more: what is on its way is dropped here, the rest by the server."""
        utterance, self._utterance = self._utterance, None
        if utterance is not None and not utterance.ended.done():
            utterance.end()
            await self._session.send({"type": "clear", "id": utterance.id})

    async def close(self) -> None:
        await self._session.close()
        await utils.aio.cancel_and_wait(self._reading)


class SynthesizeStream(tts.SynthesizeStream):
    """One utterance, whose text comes piece by piece."""

    def __init__(self, *, tts: TTS, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=tts, conn_options=conn_options)
        self._vivavoce = tts

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        output_emitter.initialize(
            request_id=utils.shortuuid(),
            sample_rate=self._vivavoce.sample_rate,
            num_channels=1,
            mime_type="audio/pcm",
            stream=True,
        )
        # A stream may wait long for its first text, and should not keep a session from others meanwhile.
        first = ""
        while not first.strip():
            try:
                item = await self._input_ch.recv()
            except utils.aio.ChanClosed:
                return
            first += item if isinstance(item, str) else ""
        voice, self._acquire_time, self._connection_reused = await self._vivavoce._voice(self._conn_options.timeout)
        utterance = _Utterance(output_emitter)
        output_emitter.start_segment(segment_id=utterance.id)
        voice.begin(utterance)
        saying = asyncio.create_task(self._say(voice, first), name="vivavoce.tts.say")
        try:
            await asyncio.wait((saying, utterance.ended), return_when=asyncio.FIRST_EXCEPTION)
            if utterance.ended.done():
                utterance.ended.result()
            saying.result()
            await utterance.ended
            output_emitter.end_segment()
        finally:
            await utils.aio.cancel_and_wait(saying)
            await self._release(voice)

    async def _release(self, voice: _Voice) -> None:
        try:
            await voice.release()
        except APIError:
            # A lost session is no failure of an utterance that was cut.
            self._vivavoce._pool.remove(voice)
        except BaseException:
            self._vivavoce._pool.remove(voice)
            raise
        else:
            self._vivavoce._pool.put(voice)

    async def _say(self, voice: _Voice, first: str) -> None:
        self._mark_started()
        await voice.say(first)
        async for item in self._input_ch:
            if not isinstance(item, str):
                # The framework has one segment per stream.
                break
            await voice.say(item)
        await voice.say("", last=True)


class ChunkedStream(tts.ChunkedStream):
    """A whole text by `/speak`, as fast as it is made. Closing the response ends the synthesis."""

    def __init__(self, *, tts: TTS, input_text: str, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=tts, input_text=input_text, conn_options=conn_options)
        self._vivavoce = tts
        self._options = dataclasses.replace(tts._options)

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        server = self._vivavoce._server
        try:
            async with http_session(self._vivavoce._http).post(
                f"{server.url}/speak",
                params={"stream": "true"},
                json={"text": self._input_text, "tts_config": self._options.tts_config()},
                headers=server.headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._conn_options.timeout, sock_read=60),
            ) as response:
                if response.status != 200:
                    raise await error_of_response(response)
                output_emitter.initialize(
                    request_id=response.headers.get("x-request-id", utils.shortuuid()),
                    sample_rate=self._options.sample_rate,
                    num_channels=1,
                    mime_type="audio/pcm",
                )
                async for chunk in response.content.iter_any():
                    output_emitter.push(chunk)
                output_emitter.flush()
        except asyncio.TimeoutError:
            raise APITimeoutError() from None
        except aiohttp.ClientError as error:
            raise APIConnectionError(f"cannot reach the server: {type(error).__name__}") from None
