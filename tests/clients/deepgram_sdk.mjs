// Deepgram's own client for JavaScript: `deepgram_sdk.mjs hear|say|voices ADDRESS KEY ...`, what it was told as JSON.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

// Unlike `import`, this looks where NODE_PATH says.
const { DeepgramClient } = createRequire(import.meta.url)("@deepgram/sdk");
const [action, address, apiKey, ...rest] = process.argv.slice(2);

const http = `http://${address}`;
const ws = `ws://${address}`;
const environment = { base: http, production: ws, agent: ws, agentRest: http };
const client = new DeepgramClient({ apiKey, environment, maxRetries: 0 });

// Opens a socket, lets `begin` send, and gives what `told` makes of the messages up to the one that ends it.
async function converse(socket, begin, isLast) {
  const messages = [];
  const over = new Promise((done, failed) => {
    socket.on("message", (message) => {
      messages.push(message);
      if (isLast(message)) done();
    });
    socket.on("error", failed);
    socket.on("close", () => done());
  });
  socket.connect();
  await socket.waitForOpen();
  begin(socket);
  await over;
  // It would dial again.
  socket.close();
  return messages;
}

function send(socket, sound) {
  for (let start = 0; start < sound.length; start += 3200) socket.sendMedia(sound.subarray(start, start + 3200));
}

// 16 kHz linear16 by both interfaces.
async function hear(soundFile) {
  const sound = new Uint8Array(readFileSync(soundFile));
  const format = { encoding: "linear16", sample_rate: 16000 };
  const nova = await client.listen.v1.connect({
    ...format, model: "nova-3", language: "en-US", interim_results: "true", punctuate: "true", keyterm: "tone",
    reconnectAttempts: 0,
  });
  const results = await converse(nova, (socket) => {
    send(socket, sound);
    socket.sendFinalize({ type: "Finalize" });
    socket.sendCloseStream({ type: "CloseStream" });
  }, (message) => message.type === "Metadata");
  const finals = results.filter((message) => message.type === "Results" && message.is_final);
  const best = finals.map((message) => message.channel.alternatives[0]);

  const flux = await client.listen.v2.connect({ ...format, model: "flux-general-en", reconnectAttempts: 0 });
  const turns = await converse(flux, (socket) => {
    send(socket, sound);
    // Silence ends the turn.
    send(socket, new Uint8Array(64000));
  }, (message) => message.type === "TurnInfo" && message.event === "EndOfTurn");
  return {
    nova: best.map((alternative) => alternative.transcript).filter(Boolean),
    words: best.flatMap((alternative) => alternative.words.map((word) => [word.word, word.start])),
    interim: results.filter((message) => message.type === "Results" && !message.is_final).length,
    turn: turns.at(-1).transcript,
    types: [...new Set([...results, ...turns].map((message) => message.type))],
  };
}

// Linear16 at 16 kHz over the socket, a WAV file over HTTP.
async function say(text, soundFile, wavFile) {
  const speaking = await client.speak.v1.connect({
    model: "aura-2-thalia-en", encoding: "linear16", sample_rate: 16000, reconnectAttempts: 0,
  });
  const messages = await converse(speaking, (socket) => {
    socket.sendText({ type: "Speak", text });
    socket.sendFlush({ type: "Flush" });
  }, (message) => message.type === "Flushed");
  const sound = messages.filter((message) => message instanceof Blob);
  const parts = await Promise.all(sound.map((blob) => blob.arrayBuffer()));
  writeFileSync(soundFile, Buffer.concat(parts.map((part) => Buffer.from(part))));
  const answer = await client.speak.v1.audio.generate({
    text, model: "aura-2-thalia-en", encoding: "linear16", container: "wav", sample_rate: 24000,
  });
  writeFileSync(wavFile, Buffer.from(await answer.arrayBuffer()));
  return { types: messages.filter((message) => message.type).map((message) => message.type) };
}

async function voices() {
  try {
    const { tts } = await client.manage.v1.models.list();
    return { voices: tts.map((voice) => voice.canonical_name) };
  } catch (error) {
    return { refused: error.statusCode, body: error.body };
  }
}

const result = await { hear, say, voices }[action](...rest);
process.stdout.write(JSON.stringify(result), () => process.exit(0));
