"""The history that a language model is given: what was said to the agent, and what the caller has heard of its answers."""

from __future__ import annotations

from typing import Literal, TypedDict

from .events import UtteranceEndedEvent, UtteranceQueuedEvent
from .messages import SttResultMessage
from .session import Session
from .speech import Utterance


class ChatMessage(TypedDict):
    """A message in the form that chat APIs take."""

    role: Literal["system", "user", "assistant"]
    content: str


class History:
    """The conversation of a session, from when it is made.

    The user's messages are whole turns, without backchannels. The assistant's are what was heard: all of an utterance that
    was played, the beginning of one that was interrupted, and nothing of one that goes on.
    """

    def __init__(self, session: Session, *, system: str | None = None, max_messages: int = 1000) -> None:
        self._system = system
        self._max = max_messages
        # An utterance has its place from when it is said, however late it ends.
        self._entries: list[ChatMessage | Utterance] = []
        self._removers = [
            session.on("stt_result", self._heard),
            session.on("utterance_queued", self._queued),
            session.on("utterance_ended", self._ended),
        ]

    @property
    def messages(self) -> list[ChatMessage]:
        """A copy of it, with the system's message first."""
        head: list[ChatMessage] = [{"role": "system", "content": self._system}] if self._system else []
        return head + [entry for entry in self._entries if not isinstance(entry, Utterance)]

    def add(self, role: Literal["system", "user", "assistant"], content: str) -> None:
        """Adds a message: what somebody typed, say."""
        self._entries.append({"role": role, "content": content})
        del self._entries[: -self._max]

    def detach(self) -> None:
        """It grows no more."""
        for remove in self._removers:
            remove()
        self._removers = []

    def _heard(self, event: SttResultMessage) -> None:
        text = event.get("turn_transcript")
        if event["is_speech_final"] and text and not event.get("backchannel"):
            self.add("user", text)

    def _queued(self, event: UtteranceQueuedEvent) -> None:
        self._entries.append(event["utterance"])
        del self._entries[: -self._max]

    def _ended(self, event: UtteranceEndedEvent) -> None:
        heard = event["outcome"].heard_text.strip()
        said: list[ChatMessage] = [{"role": "assistant", "content": heard}] if heard else []
        for at, entry in enumerate(self._entries):
            if entry is event["utterance"]:
                self._entries[at : at + 1] = said
                return
