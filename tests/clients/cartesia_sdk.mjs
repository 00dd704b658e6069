// Cartesia's own client for JavaScript, which speaks TLS only: `cartesia_sdk.mjs hear|say|voices ADDRESS KEY ...`, what it
// was told as JSON. NODE_EXTRA_CA_CERTS names the authority.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

// Unlike `import`, this looks where NODE_PATH says.
const Cartesia = createRequire(import.meta.url)("@cartesia/cartesia-js");
const [action, address, apiKey, ...rest] = process.argv.slice(2);

const client = new Cartesia({ apiKey, baseURL: `https://${address}`, maxRetries: 0 });
const VOICE = "6ccbfb76-1fc6-48f7-b71d-91ac6298247b";

// Sends 16 kHz linear16 and the words or messages that end it; gives all that came.
async function listen(socket, sound, last) {
  const events = [];
  const failures = [];
  socket.on("event", (event) => events.push(event));
  socket.on("error", (error) => failures.push(String(error)));
  const closed = new Promise((over) => socket.on("close", over));
  for (let start = 0; start < sound.length; start += 3200) socket.sendRaw(sound.subarray(start, start + 3200));
  for (const message of last) socket.send(message);
  await closed;
  return { events, failures };
}

async function hear(soundFile) {
  const sound = new Uint8Array(readFileSync(soundFile));
  const format = { encoding: "pcm_s16le", sample_rate: 16000 };
  const manual = client.stt.manualFinalize.websocket({ ...format, model: "ink-whisper", language: "en" }, { reconnect: null });
  const whisper = await listen(manual, sound, ["finalize", "close"]);
  const auto = client.stt.autoFinalize.websocket({ ...format, model: "ink-2" }, { reconnect: null });
  const turns = await listen(auto, sound, [{ type: "close" }]);
  const finals = whisper.events.filter((event) => event.type === "transcript" && event.is_final);
  return {
    whisper: finals.map((event) => event.text.trim()).filter(Boolean),
    turns: turns.events.filter((event) => event.type === "turn.end").map((event) => event.transcript),
    types: [...new Set([...whisper.events, ...turns.events].map((event) => event.type))],
    failures: [...whisper.failures, ...turns.failures],
  };
}

// One context of two pieces over the socket, a WAV file over HTTP.
async function say(first, second, soundFile, wavFile) {
  const manner = { model_id: "sonic-3.5", voice: { mode: "id", id: VOICE } };
  const socket = await client.tts.websocket();
  const output_format = { container: "raw", encoding: "pcm_s16le", sample_rate: 16000 };
  const context = socket.context({ ...manner, output_format, add_timestamps: true });
  await context.push({ transcript: first });
  await context.push({ transcript: second });
  await context.no_more_inputs();
  const sound = [];
  const words = [];
  const types = [];
  for await (const event of context.receive()) {
    types.push(event.type);
    if (event.type === "chunk") sound.push(Buffer.from(event.audio ?? Buffer.from(event.data, "base64")));
    if (event.type === "timestamps") words.push(...event.word_timestamps.words);
  }
  socket.close();
  writeFileSync(soundFile, Buffer.concat(sound));
  const wav = { container: "wav", encoding: "pcm_s16le", sample_rate: 16000 };
  const answer = await client.tts.generate({ ...manner, transcript: first + second, output_format: wav });
  writeFileSync(wavFile, Buffer.from(await answer.arrayBuffer()));
  return { words, types };
}

async function voices() {
  try {
    const listed = [];
    for await (const voice of client.voices.list()) listed.push(voice.id);
    return { voices: listed };
  } catch (error) {
    return { refused: error.status, name: error.name };
  }
}

const result = await { hear, say, voices }[action](...rest);
process.stdout.write(JSON.stringify(result), () => process.exit(0));
