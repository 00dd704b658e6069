// What needs no server: bounds of queues, back-off, and a server of our own that stops.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { connect, Overloaded, SessionClosed } from "@vivavoce/client";
import { WebSocketServer } from "ws";

import { PATIENCE, quiet, soon } from "./support.mjs";

const inner = (file) => import(new URL(file, import.meta.resolve("@vivavoce/client")));
const { MAX_COMMANDS, Outbox } = await inner("outbox.js");
const { bytesPerSecond, delayBefore } = await inner("session.js");
const { socketUrl } = await inner("socket.js");

test("the oldest sound gives way and commands stay", () => {
  const outbox = new Outbox(100);
  outbox.put("one");
  for (let number = 0; number < 30; number++) outbox.putAudio(new Uint8Array(10).fill(number));
  outbox.put("two");
  const kept = [];
  while (outbox.length) kept.push(outbox.take());
  assert.deepEqual(kept.map((item) => item[0]), ["o", 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, "t"]);
  assert.equal(outbox.droppedBytes, 200);
});

test("commands have a bound", () => {
  const outbox = new Outbox(0);
  for (let number = 0; number < MAX_COMMANDS; number++) outbox.put("");
  assert.throws(() => outbox.put(""), Overloaded);
});

test("attempts come later and later", () => {
  const reconnect = { firstDelayMs: 1000, maxDelayMs: 4000 };
  assert.equal(delayBefore(1, reconnect), 0);
  for (let attempt = 2; attempt < 20; attempt++) {
    assert.ok(delayBefore(attempt, reconnect) <= Math.min(4000, 1000 * 2 ** (attempt - 2)));
  }
});

test("addresses", () => {
  assert.equal(socketUrl("http://host:3001").href, "ws://host:3001/ws");
  assert.equal(socketUrl("https://host/").href, "wss://host/ws");
  assert.equal(socketUrl("wss://host/voice/ws").href, "wss://host/voice/ws");
  assert.throws(() => socketUrl("host:3001"), TypeError);
  assert.equal(bytesPerSecond(undefined), 32_000);
  assert.equal(bytesPerSecond({ encoding: "mulaw", sample_rate: 8000 }), 8_000);
});

/** A server of our own. */
async function served(t, serve) {
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  server.on("connection", serve);
  t.after(() => server.close());
  await new Promise((listening) => server.on("listening", listening));
  return `http://127.0.0.1:${server.address().port}`;
}

const ready = JSON.stringify({ type: "ready", stream_id: "s", resume_token: "t", seq: 1 });

test("a server that stops says so and is not asked to resume", async (t) => {
  let connections = 0;
  const url = await served(t, (socket) => {
    connections += 1;
    socket.once("message", () => {
      socket.send(ready);
      socket.send(JSON.stringify({ type: "draining", deadline: 7, seq: 2 }));
      socket.close(1001, "draining");
    });
  });
  const session = await connect(url);
  const error = await soon(session.closed.catch((error) => error));
  assert.ok(error instanceof SessionClosed);
  assert.deepEqual([error.code, session.draining, connections], [1001, 7, 1]);
});

test("a text with a hole in it is not gone on with", async (t) => {
  const texts = [];
  const url = await served(t, (socket) => {
    socket.on("message", (data) => {
      const { type, text, flush, id } = JSON.parse(data);
      if (type === "config") return socket.send(ready);
      texts.push([text, flush]);
      const about = { id, timestamp: 0, message: "", fatal: false, in_reply_to: "speak" };
      if (text === "two ") socket.send(JSON.stringify({ type: "error", code: "overloaded", ...about }));
      if (flush) socket.send(JSON.stringify({ type: "tts_playback_complete", duration_ms: 5, ...about }));
    });
  });
  const session = await connect(url, { logger: quiet });
  t.after(() => session.close());
  const outcome = await soon(session.say(async function* (signal) {
    yield "one ";
    yield "two ";
    await sleep(PATIENCE, undefined, { signal });
  }).ended);
  assert.deepEqual([outcome.status, outcome.error.code], ["failed", "overloaded"]);
  assert.deepEqual(texts, [["one ", false], ["two ", false], ["", true]]);
  assert.equal((await soon(session.say("three").ended)).status, "complete");
});

test("a failing callback does not end the session", async (t) => {
  const url = await served(t, (socket) => {
    socket.once("message", () => {
      socket.send(ready);
      socket.once("message", () => {
        socket.send(JSON.stringify({ type: "something_new" }));
        socket.send(Buffer.from("sound"));
      });
    });
  });
  const errors = [];
  const session = await connect(url, { logger: { ...quiet, error: (_, error) => errors.push(error.message) } });
  t.after(() => session.close());
  const heard = new Promise((resolve) => {
    session.on("audio", () => { throw new Error("at once"); });
    session.on("audio", async () => { throw new Error("later"); });
    session.on("audio", ({ data }) => resolve(Buffer.from(data).toString()));
  });
  session.loadingStart();
  assert.equal(await soon(heard), "sound");
  await new Promise(setImmediate);
  assert.deepEqual(errors, ["at once", "later"]);
});
