"""What can go wrong, as types. Messages are for people, codes for programs; no error holds a credential."""

from __future__ import annotations

from .messages import ErrorCode, ErrorMessage


class VivavoceError(Exception):
    """The base of all errors of this library."""


class ConnectionFailed(VivavoceError):
    """The server cannot be reached."""


class Overloaded(VivavoceError):
    """A queue of the client is full: more was asked for than could be sent."""


class ApiError(VivavoceError):
    """The server refused an HTTP request, or the handshake of a session."""

    def __init__(self, status: int, code: str, message: str, request_id: str | None = None) -> None:
        super().__init__(f"{status} {code}: {message}")
        #: The HTTP status.
        self.status = status
        #: For programs, for example `ROOM_NOT_FOUND` or `unauthorized`.
        self.code = code
        #: For people.
        self.message = message
        #: What the server's log calls the request.
        self.request_id = request_id


class ServerError(VivavoceError):
    """The server refused a message of the session, or an utterance has failed: an `error` event."""

    def __init__(self, event: ErrorMessage) -> None:
        super().__init__(f"{event['code']}: {event['message']}")
        #: For programs.
        self.code: ErrorCode = event["code"]
        #: For people.
        self.message: str = event["message"]
        #: The `type` of the message that was refused, `binary` for sound.
        self.in_reply_to: str | None = event.get("in_reply_to")
        #: The utterance, where it is about one.
        self.id: str | None = event.get("id")
        #: Whether the session ends.
        self.fatal: bool = event["fatal"]


class TransferError(VivavoceError):
    """A telephone call was not transferred; it goes on as it was."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        #: For example `destination_not_allowed`.
        self.code = code
        #: For people.
        self.message = message


class SessionClosed(VivavoceError):
    """The session is over."""

    def __init__(self, code: int, reason: str, error: ServerError | None = None) -> None:
        why = str(error) if error else reason
        super().__init__(f"the session has ended ({code}){': ' + why if why else ''}")
        #: The close code of the socket; 1006 where it broke.
        self.code = code
        #: The reason in its close frame.
        self.reason = reason
        #: The fatal error that was told before.
        self.error = error


class CannotResume(SessionClosed):
    """The connection broke, and the session could not be resumed."""
