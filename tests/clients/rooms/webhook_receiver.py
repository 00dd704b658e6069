"""Reads a room's event with LiveKit's own package, unmodified.

usage: webhook_receiver.py KEY SECRET

For each line {"body", "authorization"} on standard input prints what the package makes of it: {"event", "room"}, or
{"error"}.
"""

import json
import sys

from livekit.api import TokenVerifier, WebhookReceiver

receiver = WebhookReceiver(TokenVerifier(sys.argv[1], sys.argv[2]))
for line in sys.stdin:
    posted = json.loads(line)
    try:
        event = receiver.receive(posted["body"], posted["authorization"])
        seen = {"event": event.event, "room": event.room.name}
    except Exception as error:  # whatever it throws is what a user would see
        seen = {"error": type(error).__name__}
    print(json.dumps(seen), flush=True)
