// What the tests need: where the server is, a caller who speaks, and connections that can be broken.

import assert from "node:assert/strict";
import { connect as connectTcp, createServer } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

import { Client } from "@vivavoce/client";

const given = (name) => process.env[name] ?? assert.fail(`${name} is not set`);
export const URL_ = given("VIVAVOCE_URL");
export const TOKEN = given("VIVAVOCE_TOKEN");
/** Reached only when something hangs. */
export const PATIENCE = 60_000;
export const RATE = 16_000;
const FRAME = (RATE / 50) * 2;

export const WEATHER = "The weather is very nice in the summer.";
export const CALL_ME = "Please call me back on Monday morning.";
export const LONG = "One two three four five six seven eight nine ten. Eleven twelve thirteen fourteen fifteen. ".repeat(4);

/** Nobody is told. */
export const quiet = { warn() {}, error() {} };

/** What the promise gives, unless something hangs. */
export async function soon(promise, what = "an answer") {
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(`${what} did not come`)), PATIENCE)));
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** The first event like this from now on. */
export function first(session, type, fields = {}) {
  let remove;
  const found = new Promise((resolve) => {
    remove = session.on(type, (event) => {
      if (Object.entries(fields).every(([name, value]) => event[name] === value)) resolve(event);
    });
  });
  return soon(found, `${type} ${JSON.stringify(fields)}`).finally(() => remove());
}

/** Somebody says it: samples, 16 bits, mono, 16 kHz. */
export async function spoken(text) {
  const config = { provider: "local", model: "", audio_format: "linear16", sample_rate: RATE };
  return Buffer.from(await new Client(URL_, { token: TOKEN }).speak(text, config));
}

/** A microphone: sends at the pace of speech, and silence when nothing is said. */
export class Caller {
  #says = Buffer.alloc(0);

  constructor(session) {
    void this.#speak(session);
  }

  say(sound) {
    this.#says = Buffer.concat([this.#says, sound]);
  }

  async #speak(session) {
    for (let due = performance.now(); !session.isOver; due += 20) {
      const frame = Buffer.alloc(FRAME);
      this.#says.copy(frame, 0, 0, FRAME);
      this.#says = this.#says.subarray(FRAME);
      session.sendAudio(frame).catch(() => {});
      await sleep(Math.max(0, due + 20 - performance.now()));
    }
  }
}

/** A way to the server that can break. */
export class Proxy {
  #sockets = new Set();
  #server;
  #port = 0;
  /** Connections so far. */
  connections = 0;

  static async start() {
    const proxy = new Proxy();
    await proxy.mend();
    return proxy;
  }

  get url() {
    return `http://127.0.0.1:${this.#port}`;
  }

  /** Takes connections. */
  async mend() {
    const { hostname, port } = new URL(URL_);
    this.#server = createServer((from) => {
      this.connections += 1;
      const to = connectTcp(Number(port), hostname);
      for (const socket of [from, to]) {
        this.#sockets.add(socket);
        socket.on("error", () => {});
      }
      from.pipe(to).pipe(from);
      from.on("close", () => to.destroy());
      to.on("close", () => from.destroy());
    });
    await new Promise((listening) => this.#server.listen(this.#port, "127.0.0.1", listening));
    this.#port = this.#server.address().port;
  }

  /** Breaks all connections and takes no others. */
  cut() {
    this.#server.close();
    this.breakAll();
  }

  /** Breaks all connections; others may be made. */
  breakAll() {
    for (const socket of this.#sockets) socket.resetAndDestroy();
    this.#sockets.clear();
  }
}

/** A language model that writes this. */
export async function* tokens(text, pauseMs = 0) {
  for (const word of text.split(" ")) {
    await sleep(pauseMs);
    yield `${word} `;
  }
}

const words = (text) => text.toLowerCase().replace(/[^a-z0-9 ]/g, "").split(/\s+/).filter(Boolean);

/** A recogniser is not perfect: most of the words are there. */
export function assertSounds(heard, said, wrong = 2) {
  const there = words(heard);
  const missing = words(said).filter((word) => !there.includes(word));
  assert.ok(missing.length <= wrong, `heard "${heard}" of "${said}"`);
}
