"""Where the server is, and what its messages mean that are the same for hearing, speaking and rooms."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from loguru import logger
from pipecat.utils.errors import ErrorCategory
from typing_extensions import TypedDict

DEFAULT_URL = "http://127.0.0.1:3001"

# What no other try changes is refused for good: the framework gives such a service no more work.
_CATEGORIES = {
    "invalid_message": ErrorCategory.INVALID_REQUEST,
    "unsupported_provider": ErrorCategory.INVALID_REQUEST,
    "invalid_provider_auth": ErrorCategory.INVALID_REQUEST,
    "provider_rejected": ErrorCategory.INVALID_REQUEST,
    "missing_provider_auth": ErrorCategory.AUTHENTICATION,
    "provider_auth": ErrorCategory.AUTHENTICATION,
    "unauthorized": ErrorCategory.AUTHENTICATION,
    "room_access_denied": ErrorCategory.AUTHORIZATION,
    "provider_rate_limited": ErrorCategory.RATE_LIMIT,
    "overloaded": ErrorCategory.RATE_LIMIT,
    "provider_unavailable": ErrorCategory.CONNECTIVITY,
    "provider_timeout": ErrorCategory.CONNECTIVITY,
}


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


@dataclass(frozen=True)
class Server:
    """Where the server is, and who asks."""

    url: str
    api_key: str | None = field(repr=False)

    @classmethod
    def of(cls, base_url: str | None, api_key: str | None) -> Server:
        """`VIVAVOCE_URL` and `VIVAVOCE_API_KEY` are taken where nothing is given. The URL is that of the server, or of its `/ws`."""
        url = (base_url or os.getenv("VIVAVOCE_URL") or DEFAULT_URL).rstrip("/").removesuffix("/ws")
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in ("http", "https", "ws", "wss"):
            raise ValueError("base_url (VIVAVOCE_URL) has to begin with http://, https://, ws:// or wss://")
        return cls(scheme.replace("ws", "http") + "://" + rest, api_key or os.getenv("VIVAVOCE_API_KEY") or None)

    @property
    def socket_url(self) -> str:
        return "ws" + self.url.removeprefix("http") + "/ws"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    async def end_session(self, stream_id: str) -> None:
        """Ends a session as its end is meant: what was said last is still recognised and sent, then its socket closes."""
        url = f"{self.url}/sessions/{stream_id}"
        async with aiohttp.ClientSession(headers=self.headers) as http, http.delete(url) as response:
            # 404: it has ended already.
            if response.status not in (200, 404):
                raise ConnectionError(f"the session was not ended: {response.status}")


def category_of(event: dict[str, Any]) -> ErrorCategory:
    """The framework's category of an `error` of the socket."""
    return _CATEGORIES.get(str(event.get("code")), ErrorCategory.SERVER)


def parse(message: str | bytes, who: object) -> dict[str, Any]:
    """An event. Warnings, and what befalls the provider, go to the log: they are for whoever writes the program."""
    event: dict[str, Any] = json.loads(message)
    match event["type"]:
        case "warning":
            logger.warning(f"{who}: {event['message']} ({event['code']})")
        case "provider_event":
            logger.warning(f"{who}: {event['provider']} {event['state']}: {event['message']}")
        case "draining":
            logger.info(f"{who}: the server is going to stop")
    return event


def given(**fields: Any) -> dict[str, Any]:
    """Fields that say something; the others have the server's defaults."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], {}, ())}
