"""What a session says: utterances in the order of `say`, the tokens of a language model as one utterance, and how each has
ended. Text goes out one utterance after the other, because text with another id would end the one that is being written.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from xml.etree import ElementTree

from .errors import Overloaded, ServerError, VivavoceError
from .messages import ErrorMessage, SpeakMessage, TextType

logger = logging.getLogger("vivavoce")

#: As many as the server queues.
MAX_WAITING = 64
#: Seconds that a source of text may take to close.
CLOSE_TIMEOUT = 5.0

Text: TypeAlias = str | Iterable[str] | AsyncIterable[str]


@dataclass(frozen=True)
class Outcome:
    """How an utterance has ended."""

    status: Literal["complete", "interrupted", "failed"]
    #: What the listener has heard: what belongs in the history of a language model.
    heard_text: str
    #: How much was played, in milliseconds.
    played_ms: int
    #: Why it failed: a `ServerError`, a `SessionClosed`, or what the source of the text raised.
    error: Exception | None = None


class Utterance:
    """Something that is said. Awaiting it gives its `Outcome`; it never raises for the way an utterance ends."""

    def __init__(
        self, id: str, source: Text, text_type: TextType, allow_interruption: bool, cut: Callable[[str], None]
    ) -> None:
        #: Names it in events.
        self.id = id
        #: Whether `clear` and interruptions may cut it.
        self.allow_interruption = allow_interruption
        #: What was sent of it so far.
        self.text = ""
        self._source = source
        self._text_type: TextType = text_type
        self._cut = cut
        self._pump: asyncio.Task[None] | None = None
        self._is_cut = False
        self._begun = False
        self._written = False
        self._error: Exception | None = None
        self._ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def __await__(self) -> Generator[Any, None, Outcome]:
        # A waiter that is cancelled must not cancel it for others.
        return asyncio.shield(self._ended).__await__()

    def __repr__(self) -> str:
        state = self._ended.result().status if self.done() else "going on"
        return f"<Utterance {self.id!r}, {state}>"

    def done(self) -> bool:
        """Whether it has ended."""
        return self._ended.done()

    def _said(self) -> str:
        """All of its text as it is heard: without the tags of SSML, as the server reports it."""
        if self._text_type == "plain":
            return self.text
        return "".join(ElementTree.fromstring(self.text).itertext())

    def interrupt(self) -> None:
        """Cuts it: `clear` with its id. Await it to know what was heard."""
        if not self.done():
            self._cut(self.id)


class Speech:
    """The utterances of a session that have not ended."""

    def __init__(
        self,
        send: Callable[[SpeakMessage], None],
        room: Callable[[], Awaitable[None]],
        clear: Callable[[str], None],
        ended: Callable[[Utterance, Outcome], None],
    ) -> None:
        self._send = send
        self._room = room
        self._clear = clear
        self._tell_ended = ended
        self._utterances: dict[str, Utterance] = {}
        self._waiting: deque[Utterance] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._count = 0
        self._closing: asyncio.Future[None] | None = None

    def say(self, text: Text, id: str | None, text_type: TextType, allow_interruption: bool) -> Utterance:
        """Queues an utterance."""
        if len(self._waiting) >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} utterances wait to be said")
        if id is None:
            self._count += 1
            id = f"utterance-{self._count}"
        if id in self._utterances:
            raise ValueError(f"the utterance {id!r} has not ended")
        utterance = Utterance(id, text, text_type, allow_interruption, self._clear)
        self._utterances[id] = utterance
        self._waiting.append(utterance)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        return utterance

    async def _write_all(self) -> None:
        while self._waiting:
            utterance = self._waiting.popleft()
            if utterance.done():
                continue
            utterance._pump = asyncio.create_task(self._write(utterance))
            try:
                await asyncio.wait({utterance._pump})
                if not utterance._pump.cancelled() and (error := utterance._pump.exception()):
                    self._fail(utterance, error)
            finally:
                utterance._pump.cancel()
                await _close(utterance._source)
        self._writer = None

    async def _write(self, utterance: Utterance) -> None:
        source = utterance._source
        if isinstance(source, str):
            await self._room()
            self._speak(utterance, source, flush=True)
            return
        try:
            async for token in _tokens(source):
                if token:
                    await self._room()
                    self._speak(utterance, token, flush=False)
        except Exception as error:
            # Not what it says: that may be what people say, or a part of a credential. The outcome has it.
            logger.warning("the text of %s ended early: %s", utterance.id, type(error).__name__)
            utterance._error = error
        # Ends it; what came of it is played.
        self._speak(utterance, "", flush=True)

    def _speak(self, utterance: Utterance, text: str, flush: bool) -> None:
        message: SpeakMessage = {"type": "speak", "id": utterance.id, "text": text, "flush": flush}
        if utterance._text_type != "plain":
            message["text_type"] = utterance._text_type
        if not utterance.allow_interruption:
            message["allow_interruption"] = False
        utterance._begun = True
        utterance._written = flush
        utterance.text += text
        self._send(message)

    def cut(self, id: str | None = None) -> None:
        """The server cuts, or was told to: no more text goes out. It says itself how what it knew of has ended."""
        named = [self._utterances[id]] if id in self._utterances else []
        for utterance in named if id is not None else list(self._utterances.values()):
            if not utterance.allow_interruption or utterance._is_cut:
                continue
            utterance._is_cut = True
            if utterance._pump:
                utterance._pump.cancel()
            if not utterance._begun:
                self._end(utterance, Outcome("interrupted", "", 0))

    def complete(self, id: str | None, played_ms: int) -> None:
        """`tts_playback_complete`."""
        if utterance := self._utterances.get(id or ""):
            status: Literal["failed", "complete"] = "failed" if utterance._error else "complete"
            self._end(utterance, Outcome(status, utterance._said(), played_ms, utterance._error))

    def interrupted(self, id: str | None, heard_text: str, played_ms: int) -> None:
        """`tts_interrupted`."""
        if utterance := self._utterances.get(id or ""):
            self._end(utterance, Outcome("interrupted", heard_text, played_ms, utterance._error))

    def failed(self, event: ErrorMessage) -> None:
        """An `error` about an utterance: its end, or one text that was refused."""
        utterance = self._utterances.get(event.get("id") or "")
        if utterance is None or event.get("in_reply_to") == "clear":
            return
        error = utterance._error = ServerError(event)
        played = event.get("played_ms")
        if played is not None or utterance._written or not utterance._pump:
            self._end(utterance, Outcome("failed", event.get("heard_text") or "", played or 0, error))
        else:
            # A part was refused: a text with a hole in it is not gone on with.
            utterance._pump.cancel()
            try:
                self._speak(utterance, "", flush=True)
            except VivavoceError as failure:
                self._fail(utterance, failure)

    def _fail(self, utterance: Utterance, error: BaseException) -> None:
        """It could not be sent."""
        if not utterance.done():
            cause = error if isinstance(error, Exception) else None
            self._end(utterance, Outcome("failed", "", 0, cause))

    def close(self, error: Exception) -> None:
        """The session is over."""
        if self._writer:
            self._writer.cancel()
        self._waiting.clear()
        for utterance in list(self._utterances.values()):
            self._end(utterance, Outcome("failed", "", 0, error))

    def _end(self, utterance: Utterance, outcome: Outcome) -> None:
        del self._utterances[utterance.id]
        if utterance._pump:
            utterance._pump.cancel()
        elif not isinstance(utterance._source, str):
            self._closing = asyncio.ensure_future(_close(utterance._source))
        if utterance in self._waiting:
            self._waiting.remove(utterance)
        utterance._ended.set_result(outcome)
        self._tell_ended(utterance, outcome)


async def _tokens(source: Iterable[str] | AsyncIterable[str]) -> AsyncIterable[str]:
    if isinstance(source, AsyncIterable):
        async for token in source:
            yield token
    else:
        for token in source:
            yield token


async def _close(source: object) -> None:
    """Closes a generator or a stream, so that a language model stops."""
    close = getattr(source, "aclose", None) or getattr(source, "close", None)
    if close is None:
        return
    try:
        closing = close()
        if inspect.isawaitable(closing):
            # Others wait to be said.
            await asyncio.wait_for(closing, CLOSE_TIMEOUT)
    except Exception as error:
        logger.debug("closing a source of text: %s", type(error).__name__)
