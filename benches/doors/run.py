#!/usr/bin/env python3
"""Instructions per request and per piece of sound that pass the doors, counted by callgrind (package valgrind).

The server of main.rs runs under callgrind, with one worker; this process asks it, and is the authentication service.
Every scenario runs twice, with different counts; the difference cancels start-up. Prints Markdown tables. Needs
openssl for keys. Usage, from the root of the repository:

    benches/doors/run.py
"""

import base64
import http.server
import json
import math
import os
import pathlib
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
import callgrind

TOKEN = "t" * 32
RUNS = 3
KEY_FILE = ["vivavoce::auth::signing::read", "vivavoce::auth::signing::digest"]
FRAME_SECONDS = 0.02
FRAME_SAMPLES = 320


class AuthService(http.server.BaseHTTPRequestHandler):
    """Says yes."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        answer = b'{"id": "a"}'
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(answer)}\r\n\r\n"
        self.wfile.write(head.encode() + answer)

    def log_message(self, *_):
        pass


class Connection:
    """To the server. Says and hears one thing after the other, so that nothing is done for two at once."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.input = self.socket.makefile("rb")

    def close(self):
        self.input.close()
        self.socket.close()

    def request(self, head, status):
        """The answer's body."""
        self.socket.sendall(head.replace("\n", "\r\n").encode() + b"\r\n")
        lines = list(iter(self.input.readline, b"\r\n"))
        assert lines and lines[0].split()[1] == status.encode(), lines
        length = [line.split(b":")[1] for line in lines if line.lower().startswith(b"content-length:")]
        return self.input.read(int(length[0])) if length else b""

    def send(self, opcode, payload):
        """A frame of RFC 6455, masked with noughts."""
        assert 126 <= len(payload) < 65536
        self.socket.sendall(struct.pack("!BBHI", 0x80 | opcode, 0xFE, len(payload), 0) + payload)

    def event(self):
        """The next event."""
        first, length = self.input.read(2)
        if length == 126:
            (length,) = struct.unpack("!H", self.input.read(2))
        payload = self.input.read(length)
        return json.loads(payload) if first == 0x81 else None


def requests(address, count):
    """Of the smallest protected endpoint. It asks no actor: whether one answers within the same poll is chance."""
    connection = Connection(address)
    for _ in range(count):
        connection.request(f"GET /sip/hooks HTTP/1.1\nhost: bench\nauthorization: Bearer {TOKEN}\n", "200")
    connection.close()


def frames(vad):
    """Frames of 16 kHz linear16 into a session, in their time: something like a vowel, heard by the recogniser `null`."""
    tone = [sum(math.sin(n / 16000 * math.tau * 140 * k) / k for k in range(1, 20)) for n in range(50 * FRAME_SAMPLES)]
    sound = struct.pack(f"<{len(tone)}h", *(int(sample * 6000) for sample in tone))
    pieces = [sound[at : at + 2 * FRAME_SAMPLES] for at in range(0, len(sound), 2 * FRAME_SAMPLES)]
    config = {
        "type": "config",
        "stt_config": {"provider": "null", "sample_rate": 16000},
        "tts_config": {"provider": "null", "model": "", "audio_format": "linear16", "sample_rate": 16000},
        "vad": {"enabled": vad},
    }

    def send(address, count):
        connection = Connection(address)
        connection.request(
            "GET /ws HTTP/1.1\nhost: bench\nconnection: upgrade\nupgrade: websocket\nsec-websocket-version: 13\n"
            "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\n", "101")
        connection.send(1, json.dumps(config).encode())
        answer = connection.event()
        assert answer["type"] == "ready", answer
        begun = time.monotonic()
        for number in range(count):
            time.sleep(max(0, begun + number * FRAME_SECONDS - time.monotonic()))
            connection.send(2, pieces[number % len(pieces)])
        time.sleep(0.5)
        connection.close()

    return send


def instructions(program, arguments, ask, counts, only=()):
    """For each of what `ask` asks for. The median of some, because hash seeds and timers differ."""
    def once():
        few, many = (run(program, arguments, ask, count, only) for count in counts)
        return (many - few) / (counts[1] - counts[0])

    return statistics.median(once() for _ in range(RUNS))


def run(program, arguments, ask, count, only):
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/errors", "w+") as errors:
        command = callgrind.command(program, [*arguments, f"data_dir={folder}"], f"{folder}/out", only)
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        ask(server.stdout.readline().strip(), count)
        server.stdin.close()
        server.wait()
        errors.seek(0)
        return callgrind.collected(errors.read())


def keys(folder):
    """A private key of each kind: algorithm and file."""
    kinds = {"RS256": ["RSA", "rsa_keygen_bits:2048"], "ES256": ["EC", "ec_paramgen_curve:P-256"]}
    for algorithm, (kind, option) in kinds.items():
        file = f"{folder}/{algorithm}.pem"
        command = ["openssl", "genpkey", "-quiet", "-algorithm", kind, "-pkeyopt", option, "-out", file]
        subprocess.run(command, check=True)
        yield algorithm, file


def row(name, count, whole):
    print(f"| {name} | {count:,.0f} | {100 * count / whole:.1f} % |", flush=True)


def observing(program):
    """What is told of every request."""
    steps = [
        ("not observed at all", ["--silent", "--unobserved"]),
        ("id and metrics", ["--silent"]),
        ("the same, and a span", ["log.level=warn"]),
        ("the same, and the line of the access log: as by default", []),
        ("the same in JSON", ["log.format=json"]),
    ]
    counts = [(name, instructions(program, options, requests, (200, 1200))) for name, options in steps]
    print("| GET /sip/hooks, no authentication | instructions | of the whole |\n|---|---:|---:|")
    for name, count in counts:
        row(name, count, counts[3][1])
    return counts[3][1]


def authentication(program, plain):
    """What it costs beside a request without it."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), AuthService)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    secrets = [{"id": f"tenant-{n}", "secret": f"{n:032}"} for n in range(99)]
    with tempfile.TemporaryDirectory() as folder:
        files = dict(keys(folder))

        def asked(algorithm, *others):
            return [f"auth.service_url=http://127.0.0.1:{server.server_port}",
                    f"auth.signing_key_path={files[algorithm]}", *others]

        print("\n| authentication of GET /sip/hooks | instructions | of the whole |\n|---|---:|---:|")
        for name, options in [
            ("one secret", [f"auth.api_secret={TOKEN}"]),
            ("100 secrets", [f"auth.api_secret={TOKEN}", f"auth.api_secrets_json={json.dumps(secrets)}"]),
            ("service, its decision known", asked("RS256", "auth.cache_seconds=3600")),
        ]:
            whole = instructions(program, ["auth.required=true", *options], requests, (200, 1200))
            row(name, whole - plain, whole)
        for algorithm, signer in [("RS256", "*RsaSigner*sign*"), ("ES256", "*EcdsaSigner*sign*")]:
            def count(*only):
                return instructions(program, ["auth.required=true", *asked(algorithm)], requests, (20, 120), only)

            whole, signature, file = count(), count(signer), count(*KEY_FILE)
            row(f"service asked, {algorithm}", whole - plain, whole)
            row("– its signature", signature, whole)
            row("– the key file, read and compared", file, whole)
            row("– the question and the HTTP round trip", whole - plain - signature - file, whole)


def tracing(program, untraced):
    """What instrumentation that is off costs a piece of sound."""
    print("\n| 20 ms of sound through a session | instructions | without tracing compiled in | difference |")
    print("|---|---:|---:|---:|")
    for name, vad in [("voice activity detection on", True), ("off", False)]:
        options = ["providers.null.enabled=true"]
        with_it, without = (instructions(built, options, frames(vad), (50, 550)) for built in (program, untraced))
        print(f"| {name} | {with_it:,.0f} | {without:,.0f} | {100 * (with_it / without - 1):+.2f} % |", flush=True)


def main():
    program = callgrind.build("doors")
    authentication(program, observing(program))
    tracing(program, callgrind.build("doors", ["tracing/release_max_level_off"]))


if __name__ == "__main__":
    os.environ["RUST_BACKTRACE"] = "0"
    main()
