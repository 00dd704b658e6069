"""A session: full-duplex speech over one WebSocket that is made anew when it breaks.

`Session` owns the socket and keeps the order of what goes out and comes in; utterances are in `speech`, the history of a
language model is in `history`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, cast
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_socket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from ._callbacks import Callbacks
from ._outbox import Outbox
from .errors import ApiError, CannotResume, ConnectionFailed, ServerError, SessionClosed, TransferError
from .events import AudioEvent, ClosedEvent, Event, ReconnectingEvent, ResumedEvent
from .messages import (
    ConfigMessage,
    ErrorMessage,
    LoadingAudio,
    ReadyMessage,
    RoomParticipant,
    RtcConfig,
    ServerMessage,
    SpeakMessage,
    SttConfig,
    TextType,
    TtsConfig,
    UpdateConfigSttConfig,
    UpdateConfigTtsConfig,
    UpdateConfigVad,
    VadConfig,
)
from .speech import Outcome, Speech, Text, Utterance

logger = logging.getLogger("vivavoce")
# Below that it logs headers and messages: credentials, and what people say.
socket_logger = logging.getLogger("vivavoce.socket")
socket_logger.setLevel(logging.INFO)

#: Events and sound that wait for an application that iterates. Beyond that the oldest are dropped.
MAX_UNREAD_EVENTS = 4096
MAX_UNREAD_BYTES = 16 << 20
#: The longest message of the server.
MAX_MESSAGE = 8 << 20
#: Sound is sent in pieces of this many bytes at most.
MAX_PIECE = 32 << 10
#: Seconds after which a server that neither takes nor refuses a configuration is given up: it waits for rooms and providers.
READY_TIMEOUT = 60.0
#: Close codes after which the session may wait at the server.
RESUMABLE = {1001, 1006, 1011, 1012, 4409}
#: HTTP answers to a handshake that may be others soon.
TRANSIENT = {429, 502, 503, 504}
#: Errors about `config` that do not refuse it.
HARMLESS = {"invalid_loading_audio"}


@dataclass(frozen=True)
class Reconnect:
    """How a session comes back after its connection broke."""

    #: Seconds after which it is given up; the server waits for 30 by default.
    timeout: float = 30.0
    #: Seconds before the second attempt at most, doubled with each further one. The first one follows at once.
    first_delay: float = 0.25
    #: Seconds between attempts at most.
    max_delay: float = 5.0
    #: Seconds of sound that are kept meanwhile.
    kept_audio: float = 10.0

    def delay(self, attempt: int) -> float:
        """Seconds before this attempt, by chance, so that clients do not come all at once."""
        if attempt == 1:
            return 0.0
        return random.uniform(0.05, min(self.max_delay, self.first_delay * 2.0 ** (attempt - 2)))


def socket_url(url: str) -> str:
    """The address of the socket: `http://host` as `ws://host/ws`."""
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    if scheme not in ("ws", "wss") or not parts.netloc:
        raise ValueError("url: http(s)://host or ws(s)://host/ws is needed")
    path = parts.path if parts.path.rstrip("/") else "/ws"
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


def bytes_per_second(stt: SttConfig | None) -> int:
    """Of what is sent; of Opus, which has no fixed rate, what speech takes at most."""
    stt = stt or cast(SttConfig, {})
    encoding = stt.get("encoding") or "linear16"
    if encoding in ("opus", "ogg_opus"):
        return 8_000
    samples = (stt.get("sample_rate") or 16_000) * (stt.get("channels") or 1)
    return samples * 2 if encoding == "linear16" else samples


class _Inbox:
    """Events that wait for an application that iterates."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._dropped = 0
        self._filled = asyncio.Event()

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._bytes += _size(event)
        while len(self._events) > MAX_UNREAD_EVENTS or self._bytes > MAX_UNREAD_BYTES:
            self._bytes -= _size(self._events.popleft())
            self._dropped += 1
        self._filled.set()

    def drop_audio(self) -> None:
        """What was cut is not played by an application that lags behind."""
        self._events = deque(event for event in self._events if event["type"] != "audio")
        self._bytes = 0

    async def take(self) -> Event:
        if self._dropped:
            logger.warning("%d events were dropped, as nobody read them", self._dropped)
            self._dropped = 0
        while not self._events:
            self._filled.clear()
            await self._filled.wait()
        event = self._events.popleft()
        self._bytes -= _size(event)
        return event


def _size(event: Event) -> int:
    return len(event["data"]) if event["type"] == "audio" else 0


class Session(Callbacks):
    """A session with a server; `connect` makes one.

    Iterate over it for its events, or call `on` for some of them:

        async for event in session:
            match event:
                case {"type": "audio", "data": sound}: ...
                case {"type": "stt_result", "is_speech_final": True, "turn_transcript": text}: ...

    The iteration ends with the session, and raises `SessionClosed` where neither side ended it in order.
    """

    def __init__(
        self, url: str, token: str | None, config: ConfigMessage, reconnect: Reconnect, open_timeout: float
    ) -> None:
        super().__init__()
        self._url = socket_url(url)
        self._token = token
        self._config = config
        self._reconnect = reconnect
        self._open_timeout = open_timeout
        self._outbox = Outbox(int(bytes_per_second(config.get("stt_config")) * reconnect.kept_audio))
        self._speech = Speech(self._put, self._room_for_text, self.clear, self._utterance_ended)
        self._inbox = _Inbox()
        self._socket: ClientConnection | None = None
        self._ready: ReadyMessage | None = None
        self._is_open = asyncio.Event()
        self._closing = False
        self._over: asyncio.Future[SessionClosed | None] = asyncio.get_running_loop().create_future()
        self._resume_token: str | None = None
        self._last_event = 0
        self._received_bytes = 0
        self._draining: int | None = None
        self._fatal: ServerError | None = None
        self._sounding: str | None = None
        self._participants: dict[str, RoomParticipant] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._reply: asyncio.Future[ReadyMessage] | None = None
        self._update: dict[str, object] | None = None
        self._transfer: asyncio.Future[None] | None = None
        self._one_update = asyncio.Lock()
        self._one_transfer = asyncio.Lock()

    def __repr__(self) -> str:
        state = "over" if self._over.done() else "open" if self._is_open.is_set() else "connecting"
        return f"<Session {self.stream_id or '?'}, {state}>"

    # What is known of it.

    @property
    def stream_id(self) -> str:
        """Its name: of its recording, and in `GET /sessions`."""
        return self._ready["stream_id"] if self._ready else ""

    @property
    def ready(self) -> ReadyMessage:
        """The last `ready`; with a room it says where clients join."""
        assert self._ready, "there is one from connect() on"
        return self._ready

    @property
    def participants(self) -> Mapping[str, RoomParticipant]:
        """Who else is in the room, by identity."""
        return self._participants

    @property
    def draining(self) -> int | None:
        """When the server ends the session because it stops (Unix time in milliseconds), once it has said so."""
        return self._draining

    @property
    def is_over(self) -> bool:
        """Whether the session has ended."""
        return self._over.done()

    # What it is told.

    def say(
        self,
        text: Text,
        *,
        id: str | None = None,
        text_type: TextType = "plain",
        allow_interruption: bool = True,
        replace: bool = False,
    ) -> Utterance:
        """Says a text, or the tokens of a language model as they come, as one utterance.

        Returns at once; await the result to know how it ended. Utterances are said in the order of calls. When one is cut
        its source of tokens is cancelled and closed. `replace` cuts what is being said and what waits.
        """
        self._check_open()
        if replace:
            self.clear()
        utterance = self._speech.say(text, id, text_type, allow_interruption)
        self._emit({"type": "utterance_queued", "utterance": utterance})
        return utterance

    def clear(self, id: str | None = None) -> None:
        """Cuts what is being said and what waits, or only the utterances with this id."""
        self._speech.cut(id)
        self._put({"type": "clear"} if id is None else {"type": "clear", "id": id})

    async def send_audio(self, sound: bytes) -> None:
        """Sends sound in the format of `stt_config`.

        Waits while much waits to be sent; in a gap of the connection it does not, and the last seconds are kept.
        """
        for at in range(0, len(sound), MAX_PIECE):
            self._check_open()
            self._outbox.put_audio(bytes(sound[at : at + MAX_PIECE]))
            await self._room_for_audio()

    async def update_config(
        self,
        *,
        stt_config: UpdateConfigSttConfig | None = None,
        tts_config: UpdateConfigTtsConfig | None = None,
        vad: UpdateConfigVad | None = None,
    ) -> ReadyMessage:
        """Changes language, voice, provider or turn detection; what is not given stays. Raises `ServerError` when refused."""
        parts = {"stt_config": stt_config, "tts_config": tts_config, "vad": vad}
        message: dict[str, object] = {"type": "update_config"}
        message |= {name: part for name, part in parts.items() if part is not None}
        async with self._one_update:
            self._reply = asyncio.get_running_loop().create_future()
            self._update = message
            try:
                self._put(message)
                return await self._reply
            finally:
                self._reply = self._update = None

    def loading_start(self) -> None:
        """Plays the loading sound until `loading_stop`."""
        self._put({"type": "loading_start"})

    def loading_stop(self) -> None:
        """Ends the loading sound."""
        self._put({"type": "loading_stop"})

    def send_message(
        self, message: str, role: str = "assistant", *, topic: str | None = None, debug: object = None
    ) -> None:
        """Sends a message into the room."""
        more = {name: value for name, value in (("topic", topic), ("debug", debug)) if value is not None}
        self._put({"type": "send_message", "message": message, "role": role, **more})

    def send_dtmf(self, digits: str, participant_identity: str | None = None) -> None:
        """Presses keys on a telephone call, the first one by default."""
        self._put(_to("send_dtmf", participant_identity, digits=digits))

    def hangup(self, participant_identity: str | None = None) -> None:
        """Ends a telephone call, the first one by default; a `sip_call` event tells its end."""
        self._put(_to("hangup", participant_identity))

    async def sip_transfer(self, transfer_to: str, participant_identity: str | None = None) -> None:
        """Transfers a telephone call, the first one by default, and waits for the outcome.

        Raises `TransferError`, after which the call goes on as before.
        """
        async with self._one_transfer:
            self._transfer = asyncio.get_running_loop().create_future()
            try:
                self._put(_to("sip_transfer", participant_identity, transfer_to=transfer_to))
                await self._transfer
            finally:
                self._transfer = None

    async def close(self) -> None:
        """Ends the session in order. What was queued before is sent."""
        if not self._closing and self._is_open.is_set() and not self._over.done():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._flushed(), 2)
        self._closing = True
        if self._socket:
            await self._socket.close(1000)
        self._finish(None)
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def wait_closed(self) -> None:
        """Waits for the end of the session. Raises `SessionClosed` where neither side ended it in order."""
        if error := await asyncio.shield(self._over):
            raise error

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            event = await self._inbox.take()
            yield event
            if event["type"] == "closed":
                # For whoever iterates once more.
                self._inbox.put(event)
                if event["error"]:
                    raise event["error"]
                return

    # Going out.

    def _check_open(self) -> None:
        if self._over.done():
            raise self._over.result() or SessionClosed(1000, "")

    def _put(self, message: Mapping[str, object] | SpeakMessage) -> None:
        self._check_open()
        self._outbox.put(json.dumps(message))

    async def _room_for_text(self) -> None:
        """Waits until few commands wait to be sent."""
        while self._outbox.has_many_commands and not self._over.done():
            await self._outbox.changed()

    async def _room_for_audio(self) -> None:
        """The same for sound; not in a gap, in which it gives way by age."""
        while self._outbox.has_much_audio and self._is_open.is_set():
            await self._outbox.changed()

    async def _flushed(self) -> None:
        while len(self._outbox):
            await self._outbox.changed()

    async def _send_all(self, socket: ClientConnection) -> None:
        await self._is_open.wait()
        while True:
            item = await self._outbox.take()
            try:
                await socket.send(item)
            except ConnectionClosed:
                self._outbox.put_back(item)
                return

    # The connection.

    async def _dial(self) -> ClientConnection:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            return await connect_socket(
                self._url,
                additional_headers=headers,
                open_timeout=self._open_timeout,
                # A broken network is found out before the speaker gives up.
                ping_interval=5,
                ping_timeout=10,
                close_timeout=5,
                max_size=MAX_MESSAGE,
                compression=None,
                logger=socket_logger,
            )
        except InvalidStatus as error:
            response = error.response
            raise api_error(response.status_code, response.headers, bytes(response.body or b"")) from None
        except (OSError, asyncio.TimeoutError, InvalidHandshake, EOFError) as error:
            raise ConnectionFailed(f"{_without_query(self._url)}: {error or type(error).__name__}") from error

    async def _open(self) -> None:
        """Connects for the first time."""
        self._socket = await self._dial()
        self._reply = reply = asyncio.get_running_loop().create_future()
        self._spawn(self._run(self._socket))
        try:
            await self._socket.send(json.dumps(self._config))
            await asyncio.wait_for(reply, READY_TIMEOUT)
        except BaseException as error:
            await self.close()
            if isinstance(error, asyncio.TimeoutError):
                raise ConnectionFailed("the configuration was not answered in time") from None
            if isinstance(error, ConnectionClosed):
                raise await self._over or SessionClosed(1006, "") from None
            raise
        finally:
            self._reply = None

    async def _run(self, socket: ClientConnection) -> None:
        """Serves one connection after the other."""
        try:
            while True:
                closed = await self._serve(socket)
                if not self._may_resume(closed):
                    break
                socket = self._socket = await self._resume(closed)
            in_order = self._closing or (closed.code == 1000 and not closed.error)
            self._finish(None if in_order else closed, closed)
        except SessionClosed as error:
            self._finish(None if self._closing else error)
        except asyncio.CancelledError:
            self._finish(None)
            raise
        except Exception as error:
            logger.exception("the session ends")
            self._finish(SessionClosed(1011, type(error).__name__))
            if self._socket:
                await self._socket.close(1011)

    async def _serve(self, socket: ClientConnection) -> SessionClosed:
        """Until the connection ends; says how."""
        sender = asyncio.create_task(self._send_all(socket))
        try:
            with suppress(ConnectionClosed):
                while True:
                    self._receive(await socket.recv())
        finally:
            self._is_open.clear()
            self._outbox.wake()
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
        code = socket.close_code if socket.close_code is not None else 1006
        return SessionClosed(code, socket.close_reason or "", self._fatal)

    def _may_resume(self, closed: SessionClosed) -> bool:
        asked = bool(self._config.get("resume")) and self._resume_token is not None and self._ready is not None
        ended = self._closing or self._fatal is not None or (closed.code == 1001 and self._draining is not None)
        return asked and not ended and closed.code in RESUMABLE

    async def _resume(self, closed: SessionClosed) -> ClientConnection:
        """Another connection on which the session has been asked for; `ready` on it opens it."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._reconnect.timeout
        reason, attempt = closed.reason or "the connection broke", 0
        dropped = self._outbox.dropped_bytes
        while True:
            attempt += 1
            delay = self._reconnect.delay(attempt)
            if loop.time() + delay >= give_up:
                raise CannotResume(closed.code, reason, closed.error)
            told: ReconnectingEvent = {
                "type": "reconnecting", "attempt": attempt, "delay": delay, "reason": reason
            }
            logger.info("reconnecting, attempt %d: %s", attempt, reason)
            self._emit(told)
            await asyncio.sleep(delay)
            try:
                socket = await asyncio.wait_for(self._dial(), max(0.1, give_up - loop.time()))
            except ApiError as error:
                if error.status not in TRANSIENT:
                    raise CannotResume(closed.code, str(error), closed.error) from error
                reason = str(error)
                continue
            except (ConnectionFailed, asyncio.TimeoutError) as error:
                reason = str(error) or "no answer in time"
                continue
            self._socket = socket
            try:
                await self._ask_to_resume(socket, give_up - loop.time())
            except ServerError as error:
                await socket.close(1000)
                raise CannotResume(closed.code, error.message, error) from None
            except (ConnectionClosed, asyncio.TimeoutError) as error:
                await socket.close()
                if self._closing or socket.close_code in (1008, 4404):
                    raise CannotResume(socket.close_code or 1006, socket.close_reason or "") from None
                reason = str(error) or "no answer in time"
                continue
            resumed: ResumedEvent = {
                "type": "resumed",
                "attempts": attempt,
                "dropped_bytes": self._outbox.dropped_bytes - dropped,
            }
            self._emit(resumed)
            return socket

    async def _ask_to_resume(self, socket: ClientConnection, patience: float) -> None:
        """Takes what was missed, up to `ready`."""
        resume = {
            "type": "resume",
            "token": self._resume_token,
            "last_event": self._last_event,
            "received_bytes": self._received_bytes,
        }
        await socket.send(json.dumps(resume))

        async def until_ready() -> None:
            token = self._resume_token
            while self._resume_token == token:
                frame = await socket.recv()
                event = json.loads(frame) if isinstance(frame, str) else None
                if event and event["type"] == "error" and event["code"] == "cannot_resume":
                    raise ServerError(event)
                self._receive(frame)

        await asyncio.wait_for(until_ready(), max(0.1, patience))
        if self._update:
            # It may have been lost on its way, and has the same effect twice.
            self._put(self._update)

    def _finish(self, error: SessionClosed | None, closed: SessionClosed | None = None) -> None:
        if self._over.done():
            return
        self._over.set_result(error)
        self._is_open.clear()
        self._outbox.wake()
        why = error or SessionClosed(1000, "")
        for waiting in (self._reply, self._transfer):
            if waiting and not waiting.done():
                waiting.set_exception(why)
        self._speech.close(why)
        of = closed or why
        told: ClosedEvent = {"type": "closed", "code": of.code, "reason": of.reason, "error": error}
        self._emit(told)

    # Coming in.

    def _receive(self, frame: str | bytes) -> None:
        if isinstance(frame, bytes):
            self._received_bytes += len(frame)
            sound: AudioEvent = {"type": "audio", "data": frame}
            self._emit(sound)
            return
        event = cast(ServerMessage, json.loads(frame))
        self._last_event = max(self._last_event, event.get("seq", 0))
        # Those who are told of an event see the session as it is after it.
        self._take(event)
        self._emit(event)

    def _take(self, event: ServerMessage) -> None:
        if event["type"] == "ready":
            self._ready = event
            self._resume_token = event["resume_token"]
            self._is_open.set()
            if self._reply and not self._reply.done():
                self._reply.set_result(event)
        elif event["type"] == "error":
            self._take_error(event)
        elif event["type"] == "warning":
            logger.warning("%s: %s", event["code"], event["message"])
        elif event["type"] == "draining":
            self._draining = event["deadline"]
        elif event["type"] == "tts_started":
            self._sounding = event["id"]
        elif event["type"] == "tts_playback_complete":
            self._speech.complete(event["id"], event["duration_ms"])
        elif event["type"] == "tts_interrupted":
            if event["id"] == self._sounding:
                self._inbox.drop_audio()
            self._speech.interrupted(event["id"], event["heard_text"], event["played_ms"])
        elif event["type"] == "interruption" and event["state"] == "confirmed":
            # The server has cut everything; so is what it does not know yet.
            self._speech.cut()
        elif event["type"] == "participant_connected":
            self._participants[event["participant"]["identity"]] = event["participant"]
        elif event["type"] == "participant_disconnected":
            self._participants.pop(event["participant"]["identity"], None)
        elif event["type"] == "sip_transfer_complete":
            if self._transfer and not self._transfer.done():
                self._transfer.set_result(None)
        elif event["type"] == "sip_transfer_error":
            if self._transfer and not self._transfer.done():
                self._transfer.set_exception(TransferError(event["code"], event["message"]))

    def _take_error(self, event: ErrorMessage) -> None:
        error, to = ServerError(event), event.get("in_reply_to")
        logger.warning("%s", error)
        if error.fatal:
            self._fatal = error
        refuses = error.fatal or (to in ("config", "update_config") and error.code not in HARMLESS)
        if refuses and self._reply and not self._reply.done():
            self._reply.set_exception(error)
        elif to == "sip_transfer" and self._transfer and not self._transfer.done():
            self._transfer.set_exception(error)
        elif error.id is not None:
            self._speech.failed(event)

    def _utterance_ended(self, utterance: Utterance, outcome: Outcome) -> None:
        self._emit({"type": "utterance_ended", "utterance": utterance, "outcome": outcome})

    def _emit(self, event: Event) -> None:
        self._inbox.put(event)
        for callback in list(self._callbacks.get(event["type"], ())):
            try:
                result = callback(event)
                if inspect.isawaitable(result):
                    self._spawn(result)
            except Exception:
                logger.exception("a callback for %s failed", event["type"])

    def _spawn(self, work: Awaitable[object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("a callback failed", exc_info=error)


class connect:
    """Opens a session: `async with connect(url, ...) as session`, or `session = await connect(url, ...)`.

    Args:
        url: The server, `http(s)://host`, or its socket, `ws(s)://host/ws`.
        token: Sent as `Authorization: Bearer`.
        stt_config: How to listen. By default with the server's local recogniser, at 16 kHz.
        tts_config: How to speak. By default with the server's local voice, at 24 kHz.
        audio: Whether the session hears and speaks.
        rtc: The room to join.
        vad: Voice activity, turns and interruptions.
        loading_audio: The loading sound.
        recording: Whether it is recorded; see `Client.recording`.
        stream_id: Its name; one is made by default.
        strict: Whether messages with unknown fields are refused.
        resume: Whether it outlives a connection that breaks.
        reconnect: How it comes back then.
        open_timeout: Seconds that connecting may take.

    Raises:
        ConnectionFailed: The server cannot be reached.
        ApiError: It refuses the connection, for example for the token.
        ServerError: It refuses the configuration.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        stt_config: SttConfig | None = None,
        tts_config: TtsConfig | None = None,
        audio: bool = True,
        rtc: RtcConfig | None = None,
        vad: VadConfig | None = None,
        loading_audio: LoadingAudio | None = None,
        recording: bool = False,
        stream_id: str | None = None,
        strict: bool = False,
        resume: bool = True,
        reconnect: Reconnect | None = None,
        open_timeout: float = 10.0,
    ) -> None:
        config: dict[str, object] = {"type": "config", "resume": resume}
        if audio:
            config["stt_config"] = stt_config or {"provider": "local"}
            config["tts_config"] = tts_config or {"provider": "local", "model": ""}
        optional = {
            "audio": None if audio else False,
            "rtc": rtc,
            "vad": vad,
            "loading_audio": loading_audio,
            "recording": recording or None,
            "stream_id": stream_id,
            "strict": strict or None,
        }
        config |= {name: value for name, value in optional.items() if value is not None}
        self._make: Callable[[], Session] = lambda: Session(
            url, token, cast(ConfigMessage, config), reconnect or Reconnect(), open_timeout
        )
        self._session: Session | None = None

    async def _connect(self) -> Session:
        self._session = self._make()
        await self._session._open()
        return self._session

    def __await__(self) -> Generator[Any, None, Session]:
        return self._connect().__await__()

    async def __aenter__(self) -> Session:
        return await self._connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session:
            await self._session.close()


class _Headers(Protocol):
    def get(self, name: str, /) -> str | None: ...


def api_error(status: int, headers: _Headers, body: bytes) -> ApiError:
    """What an HTTP answer says was wrong."""
    try:
        said = json.loads(body)
        code, message = str(said["error"]), str(said["message"])
    except (ValueError, KeyError, TypeError):
        code, message = "HTTP_ERROR", body[:200].decode("utf-8", "replace").strip()
    return ApiError(status, code, message, headers.get("x-request-id"))


def _to(type: str, participant_identity: str | None, **more: object) -> dict[str, object]:
    whom = {} if participant_identity is None else {"participant_identity": participant_identity}
    return {"type": type, **more, **whom}


def _without_query(url: str) -> str:
    return url.partition("?")[0]
