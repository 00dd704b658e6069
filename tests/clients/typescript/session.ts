// A session driven with types that json-schema-to-typescript made of the socket's schema: says a sentence, hears it
// end, and prints the types of what came. `node session.js WS_URL`

import { WebSocket } from "ws";
import type { ClientMessage, ServerMessage } from "./socket_messages.js";

const socket = new WebSocket(process.argv[2] ?? "");
const send = (message: ClientMessage): void => socket.send(JSON.stringify(message));
let sound = 0;

function take(message: ServerMessage): void {
  console.log(message.type);
  switch (message.type) {
    case "ready": {
      const name: string = message.stream_id;
      send({ type: "speak", text: "Good morning.", id: name });
      break;
    }
    case "tts_playback_complete":
      if (message.duration_ms <= 0 || sound === 0) throw new Error("nothing was said");
      socket.close(1000);
      break;
    case "error":
      throw new Error(`${message.code}: ${message.message}`);
  }
}

socket.on("open", () => send({
  type: "config",
  stt_config: { provider: "local" },
  tts_config: { provider: "local", model: "", audio_format: "linear16" },
}));
socket.on("message", (data, isBinary) => {
  if (isBinary) sound += (data as Buffer).length;
  else take(JSON.parse(data.toString()) as ServerMessage);
});
socket.on("error", (error) => { throw error; });
