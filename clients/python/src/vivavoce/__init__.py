"""The client library of Vivavoce, a real-time voice server.

`connect` opens a session, `History` keeps what a language model should know of it, `Client` is the HTTP API. The types of
all messages are in `vivavoce.messages`, those of the HTTP API in `vivavoce.resources`.
"""

from . import messages, resources
from .client import Client
from .errors import (
    ApiError,
    CannotResume,
    ConnectionFailed,
    Overloaded,
    ServerError,
    SessionClosed,
    TransferError,
    VivavoceError,
)
from .events import (
    AudioEvent,
    ClosedEvent,
    Event,
    ReconnectingEvent,
    ResumedEvent,
    UtteranceEndedEvent,
    UtteranceQueuedEvent,
)
from .history import ChatMessage, History
from .session import Reconnect, Session, connect
from .speech import Outcome, Utterance

__version__ = "0.2.0"

__all__ = [
    "ApiError",
    "AudioEvent",
    "CannotResume",
    "ChatMessage",
    "Client",
    "ClosedEvent",
    "ConnectionFailed",
    "Event",
    "History",
    "Outcome",
    "Overloaded",
    "Reconnect",
    "ReconnectingEvent",
    "ResumedEvent",
    "ServerError",
    "Session",
    "SessionClosed",
    "TransferError",
    "Utterance",
    "UtteranceEndedEvent",
    "UtteranceQueuedEvent",
    "VivavoceError",
    "connect",
    "messages",
    "resources",
]
