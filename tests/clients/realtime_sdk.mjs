// OpenAI's own client for JavaScript against a server with its Realtime interface: `realtime_sdk.mjs URL KEY` asks in writing,
// is answered in speech, and prints what came of it as JSON.

import { createRequire } from "node:module";

// Node before 20 does not have it where the client looks for it.
globalThis.File ??= (await import("node:buffer")).File;
// Unlike `import`, this looks where NODE_PATH says.
const require = createRequire(import.meta.url);
const OpenAI = require("openai");
const { OpenAIRealtimeWS } = require("openai/realtime/ws");
const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });

const talk = new OpenAIRealtimeWS({ model: "gpt-realtime", options: { headers: {} } }, client);
const types = [];
let bytes = 0;
let said = "";
talk.on("event", (event) => types.at(-1) === event.type || types.push(event.type));
talk.on("error", (error) => {
  console.error(String(error));
  process.exit(1);
});
talk.on("response.output_audio.delta", (event) => (bytes += Buffer.from(event.delta, "base64").length));
talk.on("response.output_audio_transcript.delta", (event) => (said += event.delta));
talk.on("session.created", () => {
  const content = [{ type: "input_text", text: "Good day." }];
  talk.send({ type: "conversation.item.create", item: { type: "message", role: "user", content } });
  talk.send({ type: "response.create" });
});
talk.on("response.done", (event) => {
  console.log(JSON.stringify({ types, said, seconds: bytes / 48_000, response: event.response }));
  talk.close();
});
