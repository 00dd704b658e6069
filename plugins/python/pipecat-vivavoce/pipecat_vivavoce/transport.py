"""Rooms and telephone calls as a transport.

In a room the server itself hears and speaks: sound goes between it and the people there, and never through the pipeline. So the input
of this transport gives what was said, and its output takes text. Between them are the context and the language model, and nothing else:

    Pipeline([transport.input(), context.user(), llm, transport.output(), context.assistant()])

What that gains is the server's barge-in, at the sample that was heard: somebody who speaks over the bot makes it pause, and only what
turns out to be an interruption (not a cough, not "mhm") is one in the pipeline. The context gets the words that were heard.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from loguru import logger
from pipecat.audio.dtmf.types import KeypadEntry
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    CancelFrame,
    EndFrame,
    Frame,
    InputDTMFFrame,
    InputTransportMessageFrame,
    InterimTranscriptionFrame,
    InterruptionFrame,
    LLMAssistantPushAggregationFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    OutputDTMFFrame,
    OutputDTMFUrgentFrame,
    OutputTransportMessageFrame,
    OutputTransportMessageUrgentFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
    StartFrame,
    STTMetadataFrame,
    SystemFrame,
    TextFrame,
    TranscriptionFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor, FrameProcessorSetup
from pipecat.transports.base_transport import BaseTransport
from pipecat.turns.user_turn_strategies import ExternalUserTurnStrategies
from pipecat.utils.text.base_text_aggregator import TextType
from pipecat.utils.time import time_now_iso8601
from pydantic import BaseModel
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, WebSocketException

from ._server import EndpointingOptions, Server, category_of, given, parse
from .stt import _language

# What marks the framework's own messages to clients.
RTVI_LABEL = "rtvi-ai"
# How long a session waits for its client at the server (`socket.resume_seconds`).
_RESUME_S = 30.0
# How the server closes a session that is over. Any other end of a socket is one of the connection.
_OVER = {1000, 1008, 1013, 4404, 4408, 4410}


class Socket(Protocol):
    """A connection of `websockets`, either side's."""

    async def send(self, message: str) -> None:
        """Sends a text message."""

    async def close(self) -> None:
        """Closes with 1000."""

    def __aiter__(self) -> AsyncIterator[str | bytes]:
        """Messages, until the connection is closed."""


class VivavoceParams(BaseModel):
    """What a session in a room is.

    Parameters:
        identity: The participant that the people in the room hear.
        name: Its name.
        listen_participants: Whom to listen to, by identity; everybody where empty.
        stt: The server's `stt_config`: `provider`, `model`, `language`, `languages`, `keyterms`, `fallback` and so on.
        tts: The server's `tts_config`: `provider`, `model`, `voice_id`, `speaking_rate`, `pronunciations`, `fallback` and so on.
        endpointing: When speech begins and turns end.
        interruption: What the bot does while somebody speaks over it and it is not known yet whether that interrupts: it makes a
            `pause`, is quieter (`duck`), or stops at once (`off`).
        recording: Whether the session is recorded.
        rtvi: Whether clients in the room get the messages of RTVI: there are several for each word.
    """

    identity: str = "voice-agent"
    name: str = "Voice Agent"
    listen_participants: list[str] = []
    stt: dict[str, Any] = {"provider": "local"}
    tts: dict[str, Any] = {"provider": "local"}
    endpointing: EndpointingOptions = {}
    interruption: Literal["pause", "duck", "off"] = "pause"
    recording: bool = False
    rtvi: bool = False


class VivavoceTransport(BaseTransport):
    """A session of the server in one of its rooms, with people, their browsers, or telephone calls.

    Event handlers:

    - on_connected(transport): The session is in its room.
    - on_disconnected(transport): The session is over.
    - on_client_connected(transport, participant): Somebody is in the room, who was not before.
    - on_client_disconnected(transport, participant): Somebody has left.
    - on_call(transport, call): Which call it is, where the server has dialled this agent.
    - on_call_state_updated(transport, event): `sip_call`, `call_classified`, `beep`, `sip_transfer_complete` or
      `sip_transfer_error`.

    Example::

        transport = VivavoceTransport("kitchen")

        @transport.event_handler("on_client_connected")
        async def on_client_connected(transport, participant):
            await worker.queue_frames([TTSSpeakFrame("Hello!")])
    """

    def __init__(
        self,
        room_name: str | None = None,
        *,
        websocket: Socket | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        params: VivavoceParams | None = None,
        input_name: str | None = None,
        output_name: str | None = None,
    ) -> None:
        """Initialize the transport.

        Args:
            room_name: The room; it is created where there is none. May be left out with `websocket`.
            websocket: The connection of a server that has dialled this agent (`AGENT_URL`), accepted by `websockets`.
            base_url: The server's; `VIVAVOCE_URL`, or `http://127.0.0.1:3001`.
            api_key: A token of the server, where it wants one; `VIVAVOCE_API_KEY`.
            params: What the session is.
            input_name: Of the input processor.
            output_name: Of the output processor.
        """
        super().__init__(input_name=input_name, output_name=output_name)
        if room_name is None and websocket is None:
            raise ValueError("room_name is needed, unless the server has dialled this agent")
        self._session = _Session(Server.of(base_url, api_key), room_name, websocket, params or VivavoceParams())
        self._input = _Input(self, self._session, name=input_name)
        self._output = _Output(self._session, name=output_name)
        for event in ("on_connected", "on_disconnected", "on_client_connected", "on_client_disconnected", "on_call"):
            self._register_event_handler(event)
        self._register_event_handler("on_call_state_updated")

    def input(self) -> FrameProcessor:
        """What is said in the room."""
        return self._input

    def output(self) -> FrameProcessor:
        """What the bot says."""
        return self._output

    async def transfer(self, to: str, participant_identity: str | None = None) -> None:
        """Transfers the telephone call to a number; `on_call_state_updated` tells how that went."""
        await self._session.send("sip_transfer", transfer_to=to, participant_identity=participant_identity)

    async def hang_up(self, participant_identity: str | None = None) -> None:
        """Ends the telephone call."""
        await self._session.send("hangup", participant_identity=participant_identity)

    async def update(
        self,
        *,
        stt: dict[str, Any] | None = None,
        tts: dict[str, Any] | None = None,
        endpointing: EndpointingOptions | None = None,
    ) -> None:
        """Changes fields of `stt_config`, `tts_config` and `vad` while the session runs, without losing speech."""
        await self._session.send("update_config", stt_config=stt, tts_config=tts, vad=endpointing)

    async def _tell(self, event: str, *about: Any) -> None:
        await self._call_event_handler(event, *about)


class _Session:
    """The connection that both ends of the transport share. One that breaks is resumed: the session goes on in the room meanwhile."""

    def __init__(self, server: Server, room_name: str | None, websocket: Socket | None, params: VivavoceParams) -> None:
        self.params = params
        self._server = server
        self._room_name = room_name
        self._dialled = websocket is not None
        self._socket = websocket
        self._token, self._last_event = "", 0
        self._closing = False
        # Whether the bot is heard: whoever speaks then may or may not mean to interrupt.
        self.sounding = False

    async def open(self) -> None:
        if self._socket is None:
            self._socket = await self._connect()
        params = self.params
        await self.send(
            "config",
            stt_config=params.stt,
            tts_config={"model": ""} | params.tts | {"progress": True},
            vad=params.endpointing | {"interruption": params.interruption},
            recording=params.recording,
            resume=not self._dialled,
            rtc=given(
                room_name=self._room_name,
                service_participant_identity=params.identity,
                service_participant_name=params.name,
                listen_participants=params.listen_participants,
            ),
        )

    async def _connect(self) -> Socket:
        return await connect(self._server.socket_url, additional_headers=self._server.headers, max_size=4 << 20)

    async def send(self, kind: str, **fields: Any) -> None:
        if self._socket is None or self._closing:
            return
        message = {"type": kind} | {name: value for name, value in fields.items() if value is not None}
        try:
            await self._socket.send(json.dumps(message))
        except ConnectionClosed:
            # Whoever reads resumes the session. What was to be said while it was away would come late.
            logger.warning(f"{kind} was not sent: the connection to the server is lost")

    async def events(self, who: object) -> AsyncIterator[dict[str, Any]]:
        """What happens, until the session is over."""
        while self._socket is not None:
            try:
                async for message in self._socket:
                    if isinstance(message, str):
                        event = parse(message, who)
                        self._last_event = event.get("seq", self._last_event)
                        self._token = event.get("resume_token", self._token)
                        yield event
                return
            except ConnectionClosed as closed:
                code = closed.rcvd.code if closed.rcvd else 1006
                if self._closing or self._dialled or not self._token or code in _OVER:
                    return
                logger.warning(f"{who}: the connection to the server is lost ({code})")
                self._socket = await self._resumed()

    async def _resumed(self) -> Socket | None:
        pause, deadline = 0.1, asyncio.get_running_loop().time() + _RESUME_S
        while not self._closing and asyncio.get_running_loop().time() < deadline:
            try:
                socket = await self._connect()
                message = {"type": "resume", "token": self._token, "last_event": self._last_event, "received_bytes": 0}
                await socket.send(json.dumps(message))
                return socket
            except (OSError, InvalidHandshake, ConnectionClosed, TimeoutError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, 5.0)
        return None

    async def close(self) -> None:
        """Leaves the room."""
        self._closing = True
        if self._socket is not None:
            await self._socket.close()


class _Input(FrameProcessor):
    """What people say, and when."""

    def __init__(self, transport: VivavoceTransport, session: _Session, *, name: str | None) -> None:
        super().__init__(name=name)
        self._transport = transport
        self._session = session
        self._reading: asyncio.Task[None] | None = None
        self._connected = False
        self._turn_open = False

    async def setup(self, setup: FrameProcessorSetup) -> None:  # type: ignore[override]
        await super().setup(setup)
        try:
            await self._session.open()
        except (OSError, TimeoutError, WebSocketException) as error:
            await self.push_error("cannot connect to the server", exception=error, force_treat_as_permanent=True)

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._stop_reading()

    async def _stop_reading(self) -> None:
        await self._session.close()
        if self._reading is not None:
            await self.cancel_task(self._reading)
            self._reading = None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, CancelFrame):
            await self._stop_reading()
        await self.push_frame(frame, direction)
        if isinstance(frame, StartFrame):
            # The server ends turns: the pipeline needs no detector of its own.
            await self.broadcast_frame(
                STTMetadataFrame,
                service_name=self.name,
                ttfs_p99_latency=0.0,
                user_turn_strategies=ExternalUserTurnStrategies(),
            )
            self._reading = self.create_task(self._read())

    async def _read(self) -> None:
        async for event in self._session.events(self):
            await self._on_event(event)
            await self._transport._output.on_event(event)
        await self._end_turn()
        await self._transport._output.on_end()
        await self._transport._tell("on_disconnected")

    async def _on_event(self, event: dict[str, Any]) -> None:
        tell = self._transport._tell
        match event["type"]:
            case "ready" if not self._connected:
                self._connected = True
                await tell("on_connected")
            case "vad_event":
                await self._on_voice(event["event"])
            case "interruption":
                # `ended`: the bot had nothing more to say, and somebody speaks.
                if event["state"] == "confirmed" or event["reason"] == "ended":
                    await self._begin_turn()
            case "stt_result":
                await self._on_result(event)
            case "participant_connected":
                await tell("on_client_connected", event["participant"])
            case "participant_disconnected":
                await tell("on_client_disconnected", event["participant"])
            case "call":
                await tell("on_call", event)
            case "sip_call" | "call_classified" | "beep" | "sip_transfer_complete" | "sip_transfer_error":
                await tell("on_call_state_updated", event)
            case "dtmf":
                await self.push_frame(InputDTMFFrame(button=KeypadEntry(event["digit"])))
            case "message":
                await self.broadcast_frame(InputTransportMessageFrame, message=event["message"])
            case "error" if event.get("in_reply_to") == "send_message":
                # The framework tells clients of errors by messages.
                logger.warning(f"{self}: a message was not sent: {event['message']}")
            case "error":
                category = category_of(event)
                permanent = event["fatal"] or (
                    category.is_permanent and event.get("in_reply_to") in ("config", "resume")
                )
                await self.push_error(event["message"], category=category, force_treat_as_permanent=permanent)

    async def _on_voice(self, event: str) -> None:
        if event == "speech_start":
            # Over the bot's voice the server decides whether it is an interruption.
            if not self._session.sounding or self._session.params.interruption == "off":
                await self._begin_turn()
        elif event == "turn_end":
            await self._end_turn()

    async def _begin_turn(self) -> None:
        if not self._turn_open:
            self._turn_open = True
            await self.broadcast_frame(ProposedUserStartedSpeakingFrame)

    async def _end_turn(self) -> None:
        if self._turn_open:
            self._turn_open = False
            await self.broadcast_frame(ProposedUserStoppedSpeakingFrame)

    async def _on_result(self, event: dict[str, Any]) -> None:
        text, who = event["transcript"], event.get("identity") or ""
        if not text or event.get("backchannel"):
            return
        language = _language(event.get("language") or self._session.params.stt.get("language", "en-US"))
        if not event["is_final"]:
            frame: Frame = InterimTranscriptionFrame(text, who, time_now_iso8601(), language, result=event)
        else:
            frame = TranscriptionFrame(
                text, who, time_now_iso8601(), language, result=event, finalized=event["is_speech_final"]
            )
        await self.push_frame(frame)


@dataclass
class _Utterance:
    """What is being said, or waits to be. Frames that came after it wait in the queue behind it."""

    id: str
    append_to_context: bool = True
    # Text that no answer of a model surrounds is added to the context when it has been said.
    alone: bool = False
    sounding: bool = False


class _Output(FrameProcessor):
    """Says text, and passes frames on when what came before them has been heard."""

    def __init__(self, session: _Session, *, name: str | None) -> None:
        super().__init__(name=name)
        self._session = session
        self._answer: _Utterance | None = None
        # The server refuses more than 64 utterances: each is answered, and leaves the queue with what is behind it.
        self._queue: deque[_Utterance | Frame] = deque()
        self._idle = asyncio.Event()
        self._idle.set()

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._session.close()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction is FrameDirection.UPSTREAM:
            await self.push_frame(frame, direction)
            return
        match frame:
            case InterruptionFrame():
                await self._interrupt()
                await self.push_frame(frame)
            case CancelFrame():
                await self._session.close()
                await self.push_frame(frame)
            case EndFrame():
                await self._idle.wait()
                await self._session.close()
                await self.push_frame(frame)
            case OutputDTMFFrame() | OutputDTMFUrgentFrame():
                digits = "".join(button.value for button in frame.buttons or [])
                await self._session.send("send_dtmf", digits=digits)
            case OutputTransportMessageFrame() | OutputTransportMessageUrgentFrame():
                await self._send_message(frame.message)
            case LLMFullResponseStartFrame():
                self._answer = _Utterance(str(uuid.uuid4()))
                await self._put(frame)
            case LLMFullResponseEndFrame():
                if self._answer is not None and self._answer in self._queue:
                    await self._session.send("speak", id=self._answer.id, text="", flush=True)
                self._answer = None
                await self._put(frame)
            case TTSSpeakFrame():
                utterance = _Utterance(str(uuid.uuid4()), frame.append_to_context, alone=self._answer is None)
                self._begin(utterance)
                await self._session.send("speak", id=utterance.id, text=frame.text, flush=True)
            case TextFrame() if not frame.skip_tts and not isinstance(
                frame, TranscriptionFrame | InterimTranscriptionFrame
            ):
                await self._say(frame.text)
            case _ if isinstance(frame, SystemFrame):
                await self.push_frame(frame)
            case _:
                await self._put(frame)

    async def _send_message(self, message: Any) -> None:
        if isinstance(message, dict) and message.get("label") == RTVI_LABEL and not self._session.params.rtvi:
            return
        text = message if isinstance(message, str) else json.dumps(message)
        await self._session.send("send_message", message=text, role="assistant")

    async def _say(self, text: str) -> None:
        answer = self._answer or _Utterance(str(uuid.uuid4()), alone=True)
        if answer not in self._queue:
            self._begin(answer)
        await self._session.send("speak", id=answer.id, text=text, flush=answer is not self._answer)

    def _begin(self, utterance: _Utterance) -> None:
        self._queue.append(utterance)
        self._idle.clear()

    async def _put(self, frame: Frame) -> None:
        if self._queue:
            self._queue.append(frame)
        else:
            await self.push_frame(frame)

    async def _interrupt(self) -> None:
        """Ends everything that is being said and waits; frames that must not be lost pass."""
        items, self._queue = list(self._queue), deque()
        self._answer = None
        for item in items:
            if isinstance(item, _Utterance):
                await self._session.send("clear", id=item.id)
                await self._silent(item)
            elif not item.interruptible:
                await self.push_frame(item)
        self._idle.set()

    async def on_event(self, event: dict[str, Any]) -> None:
        """An event of the session; those of utterances that were interrupted find nothing."""
        utterance = next((u for u in self._queue if isinstance(u, _Utterance) and u.id == event.get("id")), None)
        if utterance is None:
            return
        match event["type"]:
            case "tts_started":
                utterance.sounding = self._session.sounding = True
                started = TTSStartedFrame(context_id=utterance.id)
                started.append_to_context = utterance.append_to_context
                await self.push_frame(started)
                await self.broadcast_frame(BotStartedSpeakingFrame)
            case "tts_progress":
                word = TTSTextFrame(event["text"], text_type=TextType.WORD, context_id=utterance.id)
                word.append_to_context = utterance.append_to_context
                await self.push_frame(word)
            case "tts_playback_complete" | "tts_interrupted" | "error":
                await self._ended(utterance)

    async def on_end(self) -> None:
        """The session is over: nothing more is said."""
        for item in list(self._queue):
            if isinstance(item, _Utterance):
                await self._ended(item)

    async def _ended(self, utterance: _Utterance) -> None:
        await self._silent(utterance)
        if utterance.alone and utterance.append_to_context:
            await self.push_frame(LLMAssistantPushAggregationFrame())
        if utterance in self._queue:
            self._queue.remove(utterance)
        while self._queue and isinstance(frame := self._queue[0], Frame):
            self._queue.popleft()
            await self.push_frame(frame)
        if not self._queue:
            self._idle.set()

    async def _silent(self, utterance: _Utterance) -> None:
        if utterance.sounding:
            utterance.sounding = self._session.sounding = False
            await self.push_frame(TTSStoppedFrame(context_id=utterance.id))
            await self.broadcast_frame(BotStoppedSpeakingFrame)
