// The library in a browser, without a bundler: microphone, player, and a session that comes back.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { open } from "./chromium.mjs";
import { assertSounds, LONG, Proxy, RATE, soon, spoken, TOKEN, URL_, WEATHER } from "./support.mjs";

const MODULES = fileURLToPath(new URL("../node_modules/", import.meta.url));
const README = readFileSync(new URL("README.md", import.meta.url), "utf8");
const folder = mkdtempSync(join(tmpdir(), "vivavoce-"));
/** What a page's sockets are told. */
const SPY = `<script>
  window.told = [];
  window.WebSocket = class extends WebSocket {
    constructor(...given) {
      super(...given);
      this.addEventListener("message", ({ data }) => typeof data === "string" && told.push(JSON.parse(data)));
    }
  };
</script>`;
let page, browser, origin;

function wav(samples) {
  const header = Buffer.alloc(44);
  header.write("RIFF", 0);
  header.writeUInt32LE(36 + samples.length, 4);
  header.write("WAVEfmt ", 8);
  header.writeUInt32LE(16, 16);
  header.writeUInt16LE(1, 20);
  header.writeUInt16LE(1, 22);
  header.writeUInt32LE(RATE, 24);
  header.writeUInt32LE(RATE * 2, 28);
  header.writeUInt16LE(2, 32);
  header.writeUInt16LE(16, 34);
  header.write("data", 36);
  header.writeUInt32LE(samples.length, 40);
  return Buffer.concat([header, samples]);
}

before(async () => {
  const question = await spoken(WEATHER);
  const silence = (seconds) => Buffer.alloc(RATE * 2 * seconds);
  // Said again and again, with pauses.
  writeFileSync(join(folder, "microphone.wav"), wav(Buffer.concat([silence(1), question, silence(4)])));
  const [, example] = /```html\n(.*?)```/s.exec(README);
  const pages = {
    "/": '<script type="module">import * as vivavoce from "/node_modules/@vivavoce/client/dist/index.js"; window.vivavoce = vivavoce;</script>',
    "/readme": SPY + example.replace("http://127.0.0.1:3001", URL_).replace('"..."', JSON.stringify(TOKEN)),
  };
  page = createServer(({ url }, response) => {
    if (pages[url]) return response.setHeader("content-type", "text/html").end(`<!doctype html>${pages[url]}`);
    const file = /^\/node_modules\/(@vivavoce\/client\/dist\/\w+\.js)$/.exec(url);
    if (!file) return response.writeHead(404).end();
    response.setHeader("content-type", "text/javascript").end(readFileSync(join(MODULES, file[1])));
  });
  const port = Number(process.env.VIVAVOCE_PAGE_PORT ?? assert.fail("VIVAVOCE_PAGE_PORT is not set"));
  await new Promise((listening) => page.listen(port, "127.0.0.1", listening));
  origin = `http://127.0.0.1:${port}`;
  browser = await soon(open(origin, join(folder, "microphone.wav")), "a browser");
});

after(async () => {
  await browser?.close();
  page?.close();
  rmSync(folder, { recursive: true, force: true });
});

/** Waits until the function says yes in the page, which may be on its way. */
function until(code, what) {
  return soon((async () => {
    while (!(await browser.run(code).catch(() => false))) await sleep(50);
  })(), what);
}

/** What the function gives in a page with the library. */
async function inPage(code, ...given) {
  await browser.goTo(`${origin}/`);
  await until(() => Boolean(window.vivavoce), "the page");
  return soon(browser.run(code, ...given), "the page's answer");
}

test("what is said into a microphone is heard, and the answer is played", async () => {
  const heard = await inPage(async (url, token) => {
    const { connect, History, Microphone, Player } = window.vivavoce;
    const session = await connect(url, { token });
    const history = new History(session);
    const player = (await Player.open()).attach(session);
    // Chromium's gain control distorts a voice that is loud at once.
    const microphone = await Microphone.open({ constraints: { autoGainControl: false, noiseSuppression: false } });
    const frames = [];
    microphone.onframe = (frame) => {
      frames.push(frame.byteLength);
      session.sendAudio(frame).catch(() => {});
    };
    const outcome = await new Promise((resolve) => {
      session.on("stt_result", async ({ is_speech_final, turn_transcript }) => {
        if (!is_speech_final) return;
        microphone.muted = true;
        async function* tokens() { for (const word of turn_transcript.split(" ")) yield `${word} `; }
        resolve(await session.say(tokens()).ended);
      });
    });
    // The server is ahead of the loudspeaker.
    let stats = await player.stats();
    while (stats.bufferedMs > 0) stats = await player.stats();
    await Promise.all([session.close(), microphone.close(), player.close()]);
    return { outcome, stats, frames: [...new Set(frames)], messages: history.messages, state: microphone.context.state };
  }, URL_, TOKEN);
  assertSounds(heard.messages[0].content, WEATHER);
  assert.equal(heard.messages[1].content, heard.messages[0].content);
  assert.equal(heard.outcome.status, "complete");
  assert.deepEqual(heard.frames, [640]);
  // Chunks of 20 ms; the last one is padded.
  assert.ok(Math.abs(heard.stats.playedMs - heard.outcome.playedMs) <= 20, JSON.stringify(heard));
  assert.equal(heard.stats.droppedMs, 0);
  assert.equal(heard.state, "closed");
});

test("what was cut is not played", async () => {
  const { outcome, before, stats } = await inPage(async (url, token, text) => {
    const { connect, Player } = window.vivavoce;
    const session = await connect(url, { token });
    const player = (await Player.open({ gatherMs: 100 })).attach(session);
    const utterance = session.say(text);
    let before = await player.stats();
    while (before.playedMs < 500) before = await player.stats();
    // More than the server is ahead.
    player.play(new Uint8Array(24_000 * 2 * 10));
    utterance.interrupt();
    const outcome = await utterance.ended;
    const stats = await player.stats();
    await Promise.all([session.close(), player.close()]);
    return { outcome, before, stats };
  }, URL_, TOKEN, LONG);
  assert.equal(outcome.status, "interrupted");
  assert.ok(before.playedMs >= 500);
  assert.equal(stats.bufferedMs, 0);
});

test("who speaks over the loudspeaker silences it", async () => {
  const { outcome, stats, states } = await inPage(async (url, token, text) => {
    const { connect, Microphone, Player } = window.vivavoce;
    const session = await connect(url, { token, vad: { interruption: "pause" } });
    const player = (await Player.open()).attach(session);
    const states = [];
    session.on("interruption", ({ state }) => states.push(state));
    const utterance = session.say(text);
    const microphone = (await Microphone.open()).pipe(session);
    const outcome = await utterance.ended;
    const stats = await player.stats();
    await Promise.all([session.close(), microphone.close(), player.close()]);
    return { outcome, stats, states };
  }, URL_, TOKEN, LONG);
  assert.equal(outcome.status, "interrupted");
  assert.deepEqual(states.slice(-2), ["suspected", "confirmed"]);
  assert.equal(stats.bufferedMs, 0);
});

test("a player takes sound in any pieces, waits, and has a bound", async () => {
  const { paused, played, bounded } = await inPage(async () => {
    const { Player } = window.vivavoce;
    const player = await Player.open({ sampleRate: 16_000, maxBufferedMs: 1000 });
    player.pause();
    const sound = new Uint8Array(16_000);
    // Half a second, with samples that come in two parts.
    for (let at = 0; at < sound.length; at += 333) player.play(sound.subarray(at, at + 333));
    const paused = await player.stats();
    player.resume();
    let played = await player.stats();
    while (played.bufferedMs > 0) played = await player.stats();
    player.pause();
    for (let chunk = 0; chunk < 4; chunk++) player.play(sound);
    const bounded = await player.stats();
    await player.close();
    return { paused, played, bounded };
  });
  assert.deepEqual([paused.playedMs, paused.bufferedMs], [0, 500]);
  assert.deepEqual([played.playedMs, played.bufferedMs], [500, 0]);
  assert.deepEqual([bounded.bufferedMs, bounded.droppedMs], [1000, 1000]);
});

test("a session comes back in a browser, too", async (t) => {
  const proxy = await Proxy.start();
  t.after(() => proxy.cut());
  const text = LONG.slice(0, 100);
  const running = inPage(async (url, token, said) => {
    const { connect } = window.vivavoce;
    const session = await connect(url, { token });
    let sound = 0, resumed = 0;
    session.on("audio", ({ data }) => { sound += data.length; window.began = true; });
    session.on("resumed", () => resumed++);
    const outcome = await session.say(said).ended;
    await session.close();
    return { outcome, sound, resumed };
  }, proxy.url, TOKEN, text);
  await until(() => Boolean(window.began), "sound");
  proxy.breakAll();
  const { outcome, sound, resumed } = await running;
  assert.deepEqual([outcome.status, outcome.heardText, resumed], ["complete", text, 1]);
  assert.ok(Math.abs(sound / (480 * 2) - outcome.playedMs / 20) <= 1, `${sound} bytes of ${outcome.playedMs} ms`);
});

test("a browser is told why it is refused", async () => {
  const refused = await inPage(async (url) => {
    const { ApiError, connect, ConnectionFailed } = window.vivavoce;
    const why = (error) => ({ name: error.name, status: error.status, code: error.code, shown: String(error) });
    const wrong = await connect(url, { token: "wrong" }).catch(why);
    const nobody = await connect("http://127.0.0.1:1").catch(why);
    return { wrong, nobody, are: [ApiError.name, ConnectionFailed.name] };
  }, URL_);
  assert.deepEqual([refused.wrong.name, refused.wrong.status, refused.wrong.code], ["ApiError", 401, "unauthorized"]);
  assert.doesNotMatch(refused.wrong.shown, /wrong/);
  assert.equal(refused.nobody.name, "ConnectionFailed");
});

test("the page of the README answers", async () => {
  await browser.goTo(`${origin}/readme`);
  await until(() => {
    const button = document.querySelector("button");
    if (button?.onclick) button.click();
    return Boolean(button?.onclick);
  }, "the button");
  await until(() => window.told.some(({ type }) => type === "tts_playback_complete"), "an answer");
  const told = await browser.run(() => window.told);
  await browser.goTo("about:blank");
  assertSounds(told.find((event) => event.is_speech_final).turn_transcript, WEATHER, 4);
  assert.deepEqual(browser.failures, []);
});
