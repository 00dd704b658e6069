// Reads a room's event with LiveKit's own package, unmodified.
//
// usage: webhook_receiver.mjs KEY SECRET
//
// For each line {"body", "authorization"} on standard input prints what the package makes of it: {"event", "room"}, or
// {"error"}.

import { createRequire } from "node:module";
import readline from "node:readline";

const require = createRequire(`${process.env.NODE_CLIENTS ?? process.cwd()}/`);
const { WebhookReceiver } = require("livekit-server-sdk");

const receiver = new WebhookReceiver(process.argv[2], process.argv[3]);
for await (const line of readline.createInterface({ input: process.stdin })) {
  const { body, authorization } = JSON.parse(line);
  try {
    const event = await receiver.receive(body, authorization);
    console.log(JSON.stringify({ event: event.event, room: event.room?.name }));
  } catch (error) {
    console.log(JSON.stringify({ error: error.name }));
  }
}
