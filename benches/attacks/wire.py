"""What both sides of the drill say on the wire: HTTP and WebSocket over plain sockets, LiveKit's signalling, SIP and RTP.

Plain sockets, because an attacker says what no library would, and because whoever measures gaps must not wait for a
library's own tasks. What is said, when and how often is for attacks.py and innocent.py.
"""

import base64
import gzip
import json
import math
import os
import re
import resource
import select
import socket
import struct
import time

from livekit.protocol import rtc as proto

HOST = "127.0.0.1"


def many_files():
    """As many open files as this process may have; gives how many."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def connect(port, source=HOST, timeout=10.0):
    """A TCP connection from this loopback address."""
    stream = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    stream.settimeout(timeout)
    try:
        stream.bind((source, 0))
        stream.connect((HOST, port))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        stream.close()
        raise
    return stream


def head(method, path, port, token=None, **headers):
    """The head of a request, with its empty line."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {HOST}:{port}"]
    if token:
        lines.append(f"authorization: Bearer {token}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Answer:
    """Of a request: its status, how long its first and its last byte took, and its body."""

    def __init__(self, status, first_s, whole_s, body):
        self.status, self.first_s, self.whole_s, self.body = status, first_s, whole_s, body

    def json(self):
        return json.loads(self.body)


def ask(port, method, path, token=None, body=None, source=HOST, timeout=10.0):
    """A request on a connection of its own. `timeout` is for all of it; raises TimeoutError beyond it,
    with how many bytes there were."""
    began = time.monotonic()
    until = began + timeout
    text = json.dumps(body).encode() if body is not None else b""
    more = {"content_type": "application/json", "content_length": len(text)} if text else {}
    with connect(port, source, timeout) as stream:
        stream.sendall(head(method, path, port, token, connection="close", **more) + text)
        got, first = b"", None
        start = None
        while True:
            left = until - time.monotonic()
            stream.settimeout(max(0.001, left))
            try:
                part = stream.recv(65_536)
            except TimeoutError:
                left = 0
            if left <= 0:
                raise TimeoutError(len(got))
            if not part:
                break
            got += part
            if start is None and b"\r\n\r\n" in got:
                start = got.index(b"\r\n\r\n") + 4
            # Sound counts from its first byte: a head may come long before.
            if first is None and start is not None and (len(got) > start or not text):
                first = time.monotonic() - began
    if not got.startswith(b"HTTP/1.1 "):
        raise ConnectionError("cut without an answer")
    whole = time.monotonic() - began
    lines, _, content = got.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in lines.lower():
        content = unchunked(content)
    return Answer(int(got[9:12]), first if first is not None else whole, whole, content)


def unchunked(content):
    body = b""
    while content:
        size, _, content = content.partition(b"\r\n")
        length = int(size.split(b";")[0] or b"0", 16)
        if not length:
            break
        body, content = body + content[:length], content[length + 2 :]
    return body


class Web:
    """A WebSocket client whose frames are masked with noughts, so that sending costs next to nothing."""

    def __init__(self, port, path, token=None, source=HOST, timeout=10.0):
        self.stream = connect(port, source, timeout)
        handshake = head(
            "GET", path, port, token, connection="Upgrade", upgrade="websocket",
            sec_websocket_version=13, sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==",
        )
        try:
            self.stream.sendall(handshake)
            got = b""
            while b"\r\n\r\n" not in got:
                part = self.stream.recv(4_096)
                if not part:
                    raise ConnectionError("cut during the handshake")
                got += part
        except OSError:
            self.stream.close()
            raise
        self.status = int(got[9:12])
        # Answers to pings that are not sent yet, where others send.
        self.owed = b""
        self.buffer = bytearray(got[got.index(b"\r\n\r\n") + 4 :])
        if self.status != 101:
            self.stream.close()

    @staticmethod
    def frame(opcode, payload):
        length = len(payload)
        if length < 126:
            return struct.pack("!BBI", 0x80 | opcode, 0x80 | length, 0) + payload
        if length < 65_536:
            return struct.pack("!BBHI", 0x80 | opcode, 0xFE, length, 0) + payload
        return struct.pack("!BBQI", 0x80 | opcode, 0xFF, length, 0) + payload

    def send(self, value):
        """JSON, or bytes as they are."""
        if isinstance(value, bytes):
            self.stream.sendall(self.frame(2, value))
        else:
            self.stream.sendall(self.frame(1, json.dumps(value).encode()))

    def take(self):
        """A frame that is there already, or None."""
        have = self.buffer
        if len(have) < 2:
            return None
        length, at = have[1] & 0x7F, 2
        if length == 126:
            if len(have) < 4:
                return None
            length, at = struct.unpack_from("!H", have, 2)[0], 4
        elif length == 127:
            if len(have) < 10:
                return None
            length, at = struct.unpack_from("!Q", have, 2)[0], 10
        if len(have) < at + length:
            return None
        opcode, payload = have[0] & 0x0F, bytes(have[at : at + length])
        del have[: at + length]
        return opcode, payload

    def next(self, timeout=None):
        """The next message as (opcode, payload); pings are answered. None when the socket has ended."""
        self.stream.settimeout(timeout)
        while True:
            got = self.take()
            if got is None:
                part = self.stream.recv(262_144)
                if not part:
                    return None
                self.buffer += part
            elif got[0] == 9:
                self.stream.sendall(self.frame(10, got[1]))
            elif got[0] == 8:
                return None
            elif got[0] in (1, 2):
                return got

    def until(self, kind, timeout=10.0):
        """The next event of this type (or an error), for sessions."""
        until = time.monotonic() + timeout
        while (left := until - time.monotonic()) > 0:
            got = self.next(left)
            if got is None:
                raise ConnectionError("the socket has ended")
            if got[0] == 1:
                event = json.loads(got[1])
                if event["type"] == kind:
                    return event
                if event["type"] == "error":
                    raise ConnectionError(event["message"])
        raise TimeoutError(kind)

    def close(self):
        self.stream.close()


# LiveKit's signalling.


def room_token(port, token, room, identity, source=HOST, timeout=10.0):
    """A token for a room, as a tenant asks for it."""
    wish = {"room_name": room, "participant_identity": identity, "participant_name": identity}
    answer = ask(port, "POST", "/rtc/token", token, wish, source, timeout)
    if answer.status != 200:
        raise ConnectionError(f"/rtc/token {answer.status} {answer.body[:200]}")
    return answer.json()["token"]


def wrapped(join_request, packed=False):
    """The parameter `join_request` with these bytes in it."""
    outer = proto.WrappedJoinRequest(
        compression=proto.WrappedJoinRequest.GZIP if packed else proto.WrappedJoinRequest.NONE,
        join_request=gzip.compress(join_request, 9) if packed else join_request,
    )
    return base64.urlsafe_b64encode(outer.SerializeToString()).decode()


def join(port, room_pass, source=HOST, timeout=10.0):
    """A bare signalling connection in a room; its `status` says whether it was let in."""
    path = f"/rtc/v1?access_token={room_pass}&join_request={wrapped(b'')}"
    return Web(port, path, source=source, timeout=timeout)


# SIP and RTP.

SDP = (
    "v=0\r\no=- 1 1 IN IP4 {host}\r\ns=-\r\nc=IN IP4 {host}\r\nt=0 0\r\nm=audio {port} RTP/AVP 0 101\r\n"
    "a=rtpmap:0 PCMU/8000\r\na=rtpmap:101 telephone-event/8000\r\n"
)


def sip(method, number, port, local, call, sequence=1, to_tag="", body="", branch=None):
    """A request of a telephone at `local` (host:port)."""
    kind = "Content-Type: application/sdp\r\n" if body else ""
    return (
        f"{method} sip:{number}@{HOST}:{port} SIP/2.0\r\n"
        f"Via: SIP/2.0/UDP {local};branch=z9hG4bK{branch or call + method};rport\r\nMax-Forwards: 70\r\n"
        f"From: <sip:caller@{local}>;tag=1\r\nTo: <sip:{number}@{HOST}>{to_tag}\r\nCall-ID: {call}\r\n"
        f"CSeq: {sequence} {method}\r\nContact: <sip:caller@{local}>\r\n{kind}Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def field(text, name):
    found = re.search(rf"(?im)^{name}:\s*(.*?)\r?$", text)
    return found[1] if found else ""


def ulaw(sample):
    """A sample of 16 bits in G.711 µ-law."""
    sign = 0x80 if sample < 0 else 0
    sample = min(abs(sample), 32_635) + 132
    exponent = sample.bit_length() - 8
    return ~(sign | exponent << 4 | sample >> exponent + 3 & 0x0F) & 0xFF


# 400 Hz: eight periods in 20 ms, so that every packet is the same.
TONE = bytes(ulaw(int(8_000 * math.sin(2 * math.pi * 400 * n / 8_000))) for n in range(160))


def rtp(sequence, source, payload=TONE, kind=0):
    return struct.pack("!BBHII", 0x80, kind, sequence & 0xFFFF, sequence * 160 & 0xFFFFFFFF, source) + payload


class Call:
    """A call that this telephone makes. Its sound arrives at `media`, with the kernel's time."""

    def __init__(self, port, number, name, source=HOST):
        self.port, self.number, self.source = port, number, source
        self.id = f"{name}-{os.getpid()}-{time.monotonic_ns()}"
        self.signalling = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.signalling.bind((source, 0))
        self.signalling.connect((HOST, port))
        self.local = "%s:%d" % self.signalling.getsockname()
        self.media = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.media.bind((source, 0))
        self.there = None
        self.to_tag = ""
        self.status = 0

    def invite(self):
        sdp = SDP.format(host=self.source, port=self.media.getsockname()[1])
        return sip("INVITE", self.number, self.port, self.local, self.id, body=sdp)

    def make(self, patience=5.0):
        """Calls, as a telephone does: asks again until something is answered. Gives the final status, 0 for none."""
        began = time.monotonic()
        again, pause, provisional = began, 0.5, False
        while (now := time.monotonic()) < began + patience:
            if now >= again and not provisional:
                self.signalling.send(self.invite())
                again, pause = now + pause, 2 * pause
            wait = began + patience - now if provisional else min(again, began + patience) - now
            if not select.select([self.signalling], [], [], max(0.0, wait))[0]:
                continue
            try:
                text = self.signalling.recv(65_536).decode(errors="replace")
            except ConnectionError:
                continue
            if not text.startswith("SIP/2.0 ") or self.id not in text:
                continue
            status = int(text[8:11])
            provisional = True
            if status >= 200:
                self.status = status
                self.to_tag = "".join(re.findall(r";tag=[^;>\s]+", field(text, "To")))
                if status < 300:
                    media = re.search(r"(?m)^m=audio (\d+)", text)
                    self.there = int(media[1])
                    branch = self.id + "ACK"
                else:
                    branch = self.id + "INVITE"
                self.signalling.send(self.request("ACK", 1, branch))
                break
        return self.status

    def request(self, method, sequence, branch=None):
        return sip(method, self.number, self.port, self.local, self.id, sequence, self.to_tag, branch=branch)

    def end(self):
        if self.there:
            try:
                self.signalling.send(self.request("BYE", 2))
            except OSError:
                pass
        self.signalling.close()
        self.media.close()
