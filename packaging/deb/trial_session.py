"""A session that is recorded and talks on, for the trial of a package: trial_session.py NAME prints what it is told, one
message a line."""

import base64
import json
import os
import socket
import struct
import sys

server = socket.create_connection(("127.0.0.1", 3001))
key = base64.b64encode(os.urandom(16)).decode()
server.sendall(
    f"GET /ws HTTP/1.1\r\nhost: 127.0.0.1:3001\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    f"sec-websocket-key: {key}\r\nsec-websocket-version: 13\r\n\r\n".encode()
)
stream = server.makefile("rb")
while stream.readline().strip():
    pass


def send(text: str) -> None:
    mask = os.urandom(4)
    payload = bytes(byte ^ mask[i % 4] for i, byte in enumerate(text.encode()))
    length = len(payload)
    head = bytes([0x81, 0x80 | length]) if length < 126 else bytes([0x81, 0xFE]) + struct.pack(">H", length)
    server.sendall(head + mask + payload)


def say() -> None:
    send(json.dumps({"type": "speak", "text": "One two three four five."}))


voice = {"provider": "local", "model": "espeak-ng"}
config = {"stream_id": sys.argv[1], "recording": True, "stt_config": {"provider": "null"}, "tts_config": voice}
send(json.dumps({"type": "config"} | config))
while True:
    head = stream.read(2)
    if len(head) < 2:
        sys.exit("the socket broke")
    kind, length = head[0] & 0x0F, head[1] & 0x7F
    if length == 126:
        (length,) = struct.unpack(">H", stream.read(2))
    elif length == 127:
        (length,) = struct.unpack(">Q", stream.read(8))
    payload = stream.read(length)
    if kind == 8:
        print("closed", struct.unpack(">H", payload[:2])[0], flush=True)
        break
    if kind == 9:
        # A pong, so that the server does not take us for dead.
        mask = os.urandom(4)
        server.sendall(bytes([0x8A, 0x80 | length]) + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(payload)))
    elif kind == 1:
        told = json.loads(payload)["type"]
        print(told, flush=True)
        if told in ("ready", "tts_playback_complete"):
            say()
