"""A receiver of webhooks that checks signatures as a user's program would, with nothing but Python's own library.

usage: webhook_receiver.py PORT SECRET FAILURES [WORD]

Prints "ready PORT", then one JSON object for each request: its event id, whether its signature is good, the status that
it was answered, and its body. The first FAILURES requests are answered with 500. Headers are named X-WORD-…, X-Service-… without one.
"""

import hashlib
import hmac
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

port, secret, failures = int(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3])
word = sys.argv[4] if len(sys.argv) > 4 else "Service"

# Each request has a thread of its own, and `print` writes a line and its end one after the other.
printing = threading.Lock()


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        global failures
        body = self.rfile.read(int(self.headers["content-length"]))
        timestamp, event = self.headers[f"X-{word}-Timestamp"], self.headers[f"X-{word}-Event-Id"]
        signed = f"v1:{timestamp}:{event}:".encode() + body
        expected = "v1=" + hmac.new(secret, signed, hashlib.sha256).hexdigest()
        good = (
            hmac.compare_digest(expected, self.headers[f"X-{word}-Signature"])
            and self.headers[f"X-{word}-Signature-Version"] == "v1"
            and abs(time.time() - int(timestamp)) < 300
        )
        status = 500 if failures > 0 else 204
        failures -= 1
        seen = {"id": event, "good": good, "status": status, "body": json.loads(body)}
        with printing:
            print(json.dumps(seen), flush=True)
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", port), Receiver)
print("ready", server.server_port, flush=True)
server.serve_forever()
