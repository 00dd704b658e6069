"""The events of a session: what the server sends, and what the library itself tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, Union

from .messages import ServerMessage

if TYPE_CHECKING:
    from .errors import SessionClosed
    from .speech import Outcome, Utterance


class AudioEvent(TypedDict):
    """Sound to be played, in the format of `tts_config`."""

    type: Literal["audio"]
    data: bytes


class ReconnectingEvent(TypedDict):
    """The connection broke, or could not be made again; another attempt follows after `delay` seconds."""

    type: Literal["reconnecting"]
    attempt: int
    """From 1, in each gap."""
    delay: float
    reason: str


class ResumedEvent(TypedDict):
    """The session goes on at another connection."""

    type: Literal["resumed"]
    attempts: int
    dropped_bytes: int
    """Sound that was not kept in the gap, as it was too long."""


class UtteranceQueuedEvent(TypedDict):
    """`Session.say` was called."""

    type: Literal["utterance_queued"]
    utterance: Utterance


class UtteranceEndedEvent(TypedDict):
    """An utterance has ended."""

    type: Literal["utterance_ended"]
    utterance: Utterance
    outcome: Outcome


class ClosedEvent(TypedDict):
    """The session is over. The last event."""

    type: Literal["closed"]
    code: int
    reason: str
    error: SessionClosed | None
    """Absent where client or server ended it in order."""


LocalEvent: TypeAlias = Union[
    AudioEvent, ReconnectingEvent, ResumedEvent, UtteranceQueuedEvent, UtteranceEndedEvent, ClosedEvent
]

Event: TypeAlias = Union[ServerMessage, LocalEvent]
"""Anything that a session tells. `event["type"]` says which."""
