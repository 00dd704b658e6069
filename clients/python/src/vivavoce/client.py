"""The HTTP API: speech without a session, voices, rooms, recordings, telephone calls and sessions.

On the standard library, in threads: requests are few, and a session needs no HTTP client.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

from .errors import ConnectionFailed
from .messages import TextType, TtsConfig
from .resources import (
    Call,
    RecordingPage,
    RoomDetails,
    RoomSummary,
    RoomToken,
    SessionList,
    Transfer,
    Voice,
)
from .session import api_error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The server has none, and the token is for nobody else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Client:
    """A client of the HTTP API. Methods raise `ApiError`, or `ConnectionFailed`."""

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError("url: http(s)://host is needed")
        self._url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._token = token
        self._timeout = timeout
        self._opener = urllib.request.build_opener(_NoRedirects)

    def __repr__(self) -> str:
        return f"<Client of {self._url}>"

    async def speak(
        self, text: str, tts_config: TtsConfig | None = None, *, text_type: TextType = "plain"
    ) -> bytes:
        """The sound of a text, in the format of `tts_config`; by default a WAV file in the local voice."""
        config = tts_config or {"provider": "local", "model": "", "audio_format": "wav"}
        body = {"text": text, "tts_config": config, "text_type": text_type}
        return await self._request("POST", "/speak", body)

    async def voices(self, provider: str | None = None) -> dict[str, list[Voice]]:
        """The voices by provider."""
        return cast("dict[str, list[Voice]]", await self._json("GET", "/voices", query={"provider": provider}))

    async def room_token(
        self, room_name: str, participant_identity: str, participant_name: str | None = None
    ) -> RoomToken:
        """A token with which somebody joins a room."""
        body = {
            "room_name": room_name,
            "participant_identity": participant_identity,
            "participant_name": participant_name or participant_identity,
        }
        return cast(RoomToken, await self._json("POST", "/rtc/token", body))

    async def rooms(self) -> list[RoomSummary]:
        """The rooms of the caller."""
        return cast("list[RoomSummary]", (await self._json("GET", "/rtc/rooms"))["rooms"])

    async def room(self, room_name: str) -> RoomDetails:
        """A room and its participants."""
        return cast(RoomDetails, await self._json("GET", f"/rtc/rooms/{_quoted(room_name)}"))

    async def remove_participant(self, room_name: str, participant_identity: str) -> None:
        """Puts somebody out of a room."""
        body = {"room_name": room_name, "participant_identity": participant_identity}
        await self._json("DELETE", "/rtc/participant", body)

    async def mute_participant(
        self, room_name: str, participant_identity: str, track_sid: str, muted: bool = True
    ) -> None:
        """Mutes a track of a participant."""
        whose = {"room_name": room_name, "participant_identity": participant_identity}
        await self._json("POST", "/rtc/participant/mute", {**whose, "track_sid": track_sid, "muted": muted})

    async def recordings(self, *, limit: int | None = None, after: str | None = None) -> RecordingPage:
        """A page of recordings; its `next`, where there is one, is the `after` of the next page."""
        page = await self._json("GET", "/recordings", query={"limit": limit, "after": after})
        return cast(RecordingPage, page)

    async def recording(self, stream_id: str) -> bytes:
        """The sound of a recorded session, Ogg/Opus."""
        return await self._request("GET", f"/recording/{_quoted(stream_id)}")

    async def transcript(self, stream_id: str) -> list[dict[str, object]]:
        """The lines of a recorded session's transcript."""
        lines = await self._request("GET", f"/recording/{_quoted(stream_id)}/transcript")
        return [json.loads(line) for line in lines.splitlines()]

    async def delete_recording(self, stream_id: str) -> None:
        """Deletes a recording and its transcript."""
        await self._json("DELETE", f"/recording/{_quoted(stream_id)}")

    async def sip_call(
        self,
        room_name: str,
        *,
        to_phone_number: str,
        from_phone_number: str,
        participant_identity: str,
        participant_name: str | None = None,
        sip: Mapping[str, str] | None = None,
        classify: bool = False,
        wait_for_beep: bool = False,
    ) -> Call:
        """Calls a number, as a participant of a room. `sip` names a gateway of the caller's own. With `classify` a
        `call_classified` event tells who has answered, with `wait_for_beep` too a `beep` when a machine's is over."""
        body: dict[str, object] = {
            "room_name": room_name,
            "participant_identity": participant_identity,
            "participant_name": participant_name or participant_identity,
            "from_phone_number": from_phone_number,
            "to_phone_number": to_phone_number,
        }
        if sip:
            body["sip"] = dict(sip)
        if classify or wait_for_beep:
            body |= {"classify": classify, "wait_for_beep": wait_for_beep}
        return cast(Call, await self._json("POST", "/sip/call", body))

    async def sip_transfer(self, room_name: str, participant_identity: str, transfer_to: str) -> Transfer:
        """Begins to transfer a call."""
        whose = {"room_name": room_name, "participant_identity": participant_identity}
        return cast(Transfer, await self._json("POST", "/sip/transfer", {**whose, "transfer_to": transfer_to}))

    async def sessions(self) -> SessionList:
        """Live sessions and telephone calls."""
        return cast(SessionList, await self._json("GET", "/sessions"))

    async def end_session(self, stream_id: str) -> None:
        """Ends a session."""
        await self._json("DELETE", f"/sessions/{_quoted(stream_id)}")

    async def _json(
        self, method: str, path: str, body: object = None, query: Mapping[str, object] | None = None
    ) -> Any:
        return json.loads(await self._request(method, path, body, query))

    async def _request(
        self, method: str, path: str, body: object = None, query: Mapping[str, object] | None = None
    ) -> bytes:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        url = self._url + path + (f"?{urlencode(given)}" if given else "")
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=method)
        return await asyncio.to_thread(self._send, request)

    def _send(self, request: urllib.request.Request) -> bytes:
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                return cast(bytes, response.read())
        except urllib.error.HTTPError as error:
            with error:
                raise api_error(error.code, error.headers, error.read()) from None
        except OSError as error:
            raise ConnectionFailed(f"{self._url}: {error}") from error


def _quoted(name: str) -> str:
    return quote(name, safe="")



