"""A session of the server as its clients see it: one WebSocket, configured by its first message.

What the messages mean is left to the speech classes. Errors are those of the framework, so that it knows what to try again.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from livekit.agents import APIConnectionError, APIError, APIStatusError, APITimeoutError, utils

from .log import logger

DEFAULT_URL = "http://127.0.0.1:3001"

# A binary message may have 1 MiB; frames are usually far smaller.
_LARGEST_BINARY = 256 * 1024
# A session that hears and speaks nothing is kept by pings; a server that does not answer them is gone.
_HEARTBEAT_S = 20.0

# The statuses that REST has for the same failures: the framework derives from them whether to try again.
_STATUS = {
    "invalid_message": 400,
    "unsupported_provider": 400,
    "invalid_provider_auth": 400,
    "provider_rejected": 400,
    "not_configured": 400,
    "audio_disabled": 400,
    "stream_id_in_use": 409,
    "missing_provider_auth": 401,
    "provider_auth": 401,
    "unauthorized": 401,
    "provider_rate_limited": 429,
    "overloaded": 503,
    "provider_unavailable": 503,
    "provider_timeout": 504,
}


def error_of(event: dict[str, Any]) -> APIError:
    """The framework's error for an `error` of the socket."""
    code, message = str(event.get("code", "internal")), str(event.get("message", ""))
    if code == "provider_timeout":
        return APITimeoutError(message)
    return APIStatusError(message, status_code=_STATUS.get(code, 500), body={"code": code})


async def error_of_response(response: aiohttp.ClientResponse) -> APIError:
    """The framework's error for a REST response that is not 2xx, in either shape that the server has."""
    message, code = response.reason or "", ""
    try:
        body = await response.json(content_type=None)
        if isinstance(error := body.get("error"), dict):
            message, code = str(error.get("message")), str(error.get("code"))
        else:
            message, code = str(body.get("message")), str(error)
    except (ValueError, AttributeError, aiohttp.ClientError):
        pass
    return APIStatusError(
        message,
        status_code=response.status,
        request_id=response.headers.get("x-request-id"),
        body={"code": code},
        # The server's credential of a vendor does not come to be by asking again.
        retryable=code.upper() != "PROVIDER_AUTH",
    )


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


class Session:
    """One open session. `events()` is read by exactly one task; it answers pings, too."""

    def __init__(self, server: Server, http: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._server = server
        self._http = http
        self._socket = socket
        self.stream_id = ""
        # Of each `config` and `update_config` that is not answered yet, in their order.
        self._answers: deque[asyncio.Future[None]] = deque()

    @classmethod
    async def open(
        cls, server: Server, http: aiohttp.ClientSession, config: dict[str, Any], *, timeout: float
    ) -> Session:
        """Connects, sends `config`, and waits for `ready`."""
        try:
            return await asyncio.wait_for(cls._open(server, http, config), timeout)
        except asyncio.TimeoutError:
            raise APITimeoutError("the server did not open a session in time") from None
        except aiohttp.WSServerHandshakeError as error:
            # Its request has the key in a header: nothing of that may be shown, here and below.
            raise APIStatusError("the server refused to open a session", status_code=error.status) from None
        except (aiohttp.ClientError, OSError) as error:
            raise APIConnectionError(f"cannot connect to the server: {type(error).__name__}") from None

    @classmethod
    async def _open(cls, server: Server, http: aiohttp.ClientSession, config: dict[str, Any]) -> Session:
        socket = await http.ws_connect(
            server.socket_url, headers=server.headers, heartbeat=_HEARTBEAT_S, max_msg_size=4 << 20
        )
        session = cls(server, http, socket)
        try:
            await session.send({"type": "config", **config})
            async for event in session.events():
                if isinstance(event, dict) and event["type"] == "ready":
                    session.stream_id = event["stream_id"]
                    return session
                if isinstance(event, dict) and event["type"] == "error":
                    raise error_of(event)
            raise APIConnectionError("the session was closed before it was ready")
        except BaseException:
            await session.close()
            raise

    @property
    def closed(self) -> bool:
        return self._socket.closed

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] in ("config", "update_config"):
            self._answers.append(asyncio.get_running_loop().create_future())
        try:
            await self._socket.send_str(json.dumps(message))
        except (aiohttp.ClientError, ConnectionError) as error:
            raise APIConnectionError("the connection to the server is lost") from error

    async def send_audio(self, audio: bytes | memoryview) -> None:
        try:
            for start in range(0, len(audio), _LARGEST_BINARY):
                await self._socket.send_bytes(bytes(audio[start : start + _LARGEST_BINARY]))
        except (aiohttp.ClientError, ConnectionError) as error:
            raise APIConnectionError("the connection to the server is lost") from error

    async def events(self) -> AsyncIterator[dict[str, Any] | bytes]:
        """What the server sends, until it has closed with 1000; any other end is an error.

        Warnings, and what befalls the provider, go to the log: they are for whoever writes the program.
        """
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                yield message.data
            elif message.type is aiohttp.WSMsgType.TEXT:
                event: dict[str, Any] = json.loads(message.data)
                if event["type"] == "warning":
                    logger.warning("%s (%s)", event["message"], event["code"])
                elif event["type"] == "provider_event":
                    logger.warning("%s %s: %s", event["provider"], event["state"], event["message"])
                elif event["type"] == "draining":
                    logger.info("the server is going to stop")
                if event["type"] == "ready" or event.get("in_reply_to") in ("config", "update_config"):
                    self._on_answer(event)
                yield event
        match self._socket.close_code:
            case 1000:
                return
            case 1008:
                raise APIStatusError("the session is not allowed any more", status_code=401)
            case code:
                raise APIConnectionError(f"the server closed the session ({code})")

    def _on_answer(self, event: dict[str, Any]) -> None:
        if event["type"] in ("ready", "error") and self._answers and not (answer := self._answers.popleft()).done():
            answer.set_result(None)

    async def end(self) -> None:
        """Ends the session as its end is meant: what was said last is still recognised and sent, then the socket closes.

        That is asked for beside the socket, and must not overtake the sound on it: the answer to a message that changes nothing
        tells that the server has read what came before.
        """
        await self.send({"type": "update_config"})
        await self._answers[-1]
        url = f"{self._server.url}/sessions/{self.stream_id}"
        try:
            async with self._http.delete(url, headers=self._server.headers) as response:
                # 404: it has ended already.
                if response.status not in (200, 404):
                    raise await error_of_response(response)
        except (aiohttp.ClientError, ConnectionError) as error:
            raise APIConnectionError("the connection to the server is lost") from error

    async def close(self) -> None:
        await self._socket.close()


def http_session(given: aiohttp.ClientSession | None) -> aiohttp.ClientSession:
    """The HTTP session of the job, unless the program has given one."""
    return given or utils.http_context.http_session()
