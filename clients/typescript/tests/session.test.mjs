// Sessions with a running server.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";

import {
  ApiError, CannotResume, Client, connect, ConnectionFailed, History, ServerError, SessionClosed, TransferError,
} from "@vivavoce/client";

import {
  assertSounds, CALL_ME, Caller, first, LONG, PATIENCE, Proxy, quiet, soon, spoken, TOKEN, tokens, URL_, WEATHER,
} from "./support.mjs";

/** A session that is closed with its test. */
async function opened(t, options = {}, url = URL_) {
  const session = await connect(url, { token: TOKEN, logger: quiet, ...options });
  t.after(() => session.close());
  return session;
}

const client = new Client(URL_, { token: TOKEN });

test("a caller is heard and answered", async (t) => {
  const question = await spoken(WEATHER);
  const session = await opened(t);
  const history = new History(session, { system: "Be brief." });
  new Caller(session).say(question);
  let sound = 0;
  let outcome;
  await soon((async () => {
    for await (const event of session) {
      if (event.type === "audio") sound += event.data.length;
      if (event.type === "stt_result" && event.is_speech_final) session.say(tokens(`You said: ${event.turn_transcript}.`));
      if (event.type === "utterance_ended") {
        outcome = event.outcome;
        break;
      }
    }
  })());
  assert.equal(outcome.status, "complete");
  const [system, user, assistant] = history.messages;
  assert.deepEqual([system.role, user.role, assistant.role], ["system", "user", "assistant"]);
  assertSounds(user.content, WEATHER);
  assert.equal(assistant.content, `You said: ${user.content}.`);
  assert.ok(sound >= Math.floor((outcome.playedMs * 24_000) / 1000) * 2);
});

test("tokens are one utterance", async (t) => {
  const session = await opened(t);
  const started = [];
  session.on("tts_started", ({ id }) => started.push(id));
  const one = session.say(tokens("Good morning to you. How are you?"), { id: "one" });
  const two = session.say(["And ", "so ", "on."]);
  const nothing = session.say([]);
  assert.equal((await soon(one.ended)).heardText.trim(), "Good morning to you. How are you?");
  assert.equal((await soon(two.ended)).heardText, "And so on.");
  assert.equal((await soon(nothing.ended)).status, "complete");
  assert.deepEqual(started, ["one", two.id]);
  assert.throws(() => { session.say("", { id: "twice" }); session.say("", { id: "twice" }); }, RangeError);
});

test("who speaks over the agent cuts it and its language model", async (t) => {
  const bargeIn = await spoken(CALL_ME);
  const session = await opened(t, { vad: { interruption: "pause" } });
  const caller = new Caller(session);
  const history = new History(session);
  const aborted = Promise.withResolvers?.() ?? deferred();
  const utterance = session.say(async function* (signal) {
    signal.addEventListener("abort", () => aborted.resolve());
    yield* tokens(LONG);
    await sleep(PATIENCE, undefined, { signal, ref: false });
  });
  const waits = session.say("This is never said.");
  await first(session, "tts_started");
  const turn = first(session, "stt_result", { is_speech_final: true });
  caller.say(bargeIn);
  const outcome = await soon(utterance.ended);
  await soon(aborted.promise);
  assert.equal(outcome.status, "interrupted");
  assert.ok(LONG.startsWith(outcome.heardText) && outcome.heardText.length < LONG.length);
  assert.deepEqual(await soon(waits.ended), { status: "interrupted", heardText: "", playedMs: 0 });
  await turn;
  const expected = outcome.heardText ? ["assistant", "user"] : ["user"];
  assert.deepEqual(history.messages.map(({ role }) => role), expected);
  assertSounds(history.messages.at(-1).content, CALL_ME, 3);
});

function deferred() {
  const made = {};
  made.promise = new Promise((resolve) => (made.resolve = resolve));
  return made;
}

test("the place of an answer in the history is where it was said", async (t) => {
  const session = await opened(t);
  const history = new History(session);
  history.add("user", "First?");
  const answer = session.say(LONG);
  await first(session, "tts_started");
  await sleep(1000);
  history.add("user", "Second?");
  answer.interrupt();
  const outcome = await soon(answer.ended);
  assert.equal(outcome.status, "interrupted");
  assert.deepEqual(history.messages.map(({ content }) => content), ["First?", outcome.heardText.trim(), "Second?"]);
});

test("a protected utterance is not cut", async (t) => {
  const session = await opened(t);
  const notice = session.say("This call is recorded.", { allowInterruption: false });
  await first(session, "tts_started");
  const other = session.say(LONG);
  const last = session.say("Hello.", { replace: true });
  assert.equal((await soon(notice.ended)).status, "complete");
  assert.equal((await soon(other.ended)).status, "interrupted");
  assert.equal((await soon(last.ended)).status, "complete");
});

test("a language model that fails ends its utterance", async (t) => {
  const session = await opened(t);
  const failure = new Error("no more tokens");
  const outcome = await soon(session.say(async function* () {
    yield "Good morning. ";
    throw failure;
  }).ended);
  assert.deepEqual([outcome.status, outcome.heardText.trim(), outcome.error], ["failed", "Good morning.", failure]);
});

test("sessions do not mix", async (t) => {
  const heard = await Promise.all([0, 1, 2, 3].map(async (number) => {
    const session = await opened(t);
    return (await soon(session.say(tokens(`I am number ${number}.`)).ended)).heardText.trim();
  }));
  assert.deepEqual(heard, [0, 1, 2, 3].map((number) => `I am number ${number}.`));
});

test("a session can be changed", async (t) => {
  const session = await opened(t);
  const [one, refused, two] = await soon(Promise.allSettled([
    session.updateConfig({ vad: { silence_ms: 700 } }),
    session.updateConfig({ tts_config: { provider: "nobody" } }),
    session.updateConfig({ vad: { silence_ms: 500 } }),
  ]));
  assert.equal(one.value.stream_id, session.stream_id);
  assert.equal(two.value.stream_id, session.stream_id);
  assert.ok(refused.reason instanceof ServerError);
  assert.deepEqual([refused.reason.code, refused.reason.in_reply_to], ["unsupported_provider", "update_config"]);
});

test("a wrong token is refused", async () => {
  const refused = await soon(connect(URL_, { token: "wrong" }).catch((error) => error));
  assert.ok(refused instanceof ApiError);
  assert.deepEqual([refused.status, refused.code], [401, "unauthorized"]);
  assert.ok(refused.request_id);
  assert.doesNotMatch(inspect(refused), /wrong/);
});

test("nobody is there", async () => {
  const proxy = await Proxy.start();
  proxy.cut();
  await assert.rejects(soon(connect(proxy.url)), ConnectionFailed);
});

test("a configuration that is refused says why", async () => {
  const refused = await soon(connect(URL_, { token: TOKEN, logger: quiet, vad: { threshold: 7 } }).catch((error) => error));
  assert.ok(refused instanceof ServerError);
  assert.deepEqual([refused.code, refused.in_reply_to], ["invalid_message", "config"]);
  assert.match(refused.message, /threshold/);
});

test("an utterance that is refused has failed", async (t) => {
  const warnings = [];
  const session = await opened(t, { logger: { ...quiet, warn: (message) => warnings.push(message) } });
  const error = first(session, "error");
  const outcome = await soon(session.say("<speak>Hello.</speak>", { id: "tags", textType: "ssml" }).ended);
  assert.equal(outcome.status, "failed");
  assert.deepEqual([outcome.error.code, outcome.error.id], ["invalid_message", "tags"]);
  assert.equal((await error).id, "tags");
  assert.match(warnings[0], /invalid_message/);
});

test("a warning is logged and told", async (t) => {
  const warnings = [];
  const session = await opened(t, { logger: { ...quiet, warn: (message) => warnings.push(message) } });
  const warning = first(session, "warning");
  session.say("?!");
  assert.equal((await warning).code, "nothing_to_say");
  assert.match(warnings[0], /nothing_to_say/);
});

test("credentials are not shown", async (t) => {
  const session = await opened(t);
  const shown = inspect(session, { depth: 9 }) + JSON.stringify(session) + inspect(client, { depth: 9 });
  assert.ok(!shown.includes(TOKEN) && !shown.includes(session.ready.resume_token));
});

test("after its end a session says so", async (t) => {
  const session = await opened(t);
  const utterance = session.say(LONG);
  await first(session, "tts_started");
  await session.close();
  assert.ok((await utterance.ended).error instanceof SessionClosed);
  assert.throws(() => session.say("Hello."), SessionClosed);
  await assert.rejects(session.sendAudio(new Uint8Array(2)), SessionClosed);
  const events = [];
  for await (const event of session) events.push(event.type);
  assert.equal(events.at(-1), "closed");
});

test("sound may come faster than it is spoken", async (t) => {
  const question = await spoken(WEATHER);
  const session = await opened(t);
  const turn = first(session, "stt_result", { is_speech_final: true });
  const silence = (seconds) => Buffer.alloc(16_000 * 2 * seconds);
  await soon(session.sendAudio(Buffer.concat([silence(20), question, silence(3)])));
  assertSounds((await turn).turn_transcript, WEATHER);
});

test("speech goes on at the sample where the connection broke", async (t) => {
  const proxy = await Proxy.start();
  const session = await opened(t, {}, proxy.url);
  t.after(() => proxy.cut());
  const history = new History(session);
  let sound = 0;
  session.on("audio", ({ data }) => (sound += data.length));
  const text = LONG.slice(0, 180);
  const utterance = session.say(tokens(text, 20));
  for (let breaks = 0; breaks < 2; breaks++) {
    await first(session, "audio");
    await sleep(500);
    const resumed = first(session, "resumed");
    proxy.breakAll();
    await resumed;
  }
  const outcome = await soon(utterance.ended);
  assert.equal(outcome.status, "complete");
  assert.equal(history.messages[0].content, text.trim());
  // Chunks of 20 ms; the last one is padded.
  assert.ok(Math.abs(sound / (480 * 2) - outcome.playedMs / 20) <= 1, `${sound} bytes of ${outcome.playedMs} ms`);
  assert.equal(proxy.connections, 3);
});

test("what is said in the gap is heard and done afterwards", async (t) => {
  const question = await spoken(WEATHER);
  const proxy = await Proxy.start();
  const session = await opened(t, {}, proxy.url);
  t.after(() => proxy.cut());
  const caller = new Caller(session);
  const reconnecting = first(session, "reconnecting", { attempt: 2 });
  proxy.cut();
  await reconnecting;
  const turn = first(session, "stt_result", { is_speech_final: true });
  caller.say(question);
  const utterance = session.say("I am still here.");
  await sleep(1000);
  await proxy.mend();
  assertSounds((await turn).turn_transcript, WEATHER);
  assert.equal((await soon(utterance.ended)).status, "complete");
});

test("a session that is gone cannot be resumed", async (t) => {
  const proxy = await Proxy.start();
  const session = await opened(t, {}, proxy.url);
  t.after(() => proxy.cut());
  const reconnecting = first(session, "reconnecting", { attempt: 2 });
  proxy.cut();
  await reconnecting;
  await client.endSession(session.stream_id);
  await proxy.mend();
  const error = await soon(session.closed.catch((error) => error));
  assert.ok(error instanceof CannotResume);
  assert.equal(error.error.code, "cannot_resume");
});

test("who cannot come back in time gives up", async (t) => {
  const proxy = await Proxy.start();
  const session = await opened(t, { reconnect: { timeoutMs: 500 } }, proxy.url);
  const waits = session.say(LONG);
  proxy.cut();
  await assert.rejects(soon((async () => { for await (const _ of session); })()), CannotResume);
  assert.equal((await waits.ended).status, "failed");
});

test("a session can be closed in a gap", async (t) => {
  const proxy = await Proxy.start();
  t.after(() => proxy.cut());
  for (const comesBack of [false, true]) {
    const session = await opened(t, {}, proxy.url);
    const reconnecting = first(session, "reconnecting", { attempt: 2 });
    proxy.cut();
    await reconnecting;
    if (comesBack) {
      await proxy.mend();
      // Between the socket and `ready`, or somewhere near.
      while (proxy.connections < 3) await new Promise(setImmediate);
    }
    await soon(session.close());
    const events = [];
    for await (const event of session) events.push(event);
    assert.deepEqual([events.at(-1).type, events.at(-1).error], ["closed", undefined]);
    if (!comesBack) await proxy.mend();
  }
});

test("without resume a broken connection is the end", async (t) => {
  const proxy = await Proxy.start();
  const session = await opened(t, { resume: false }, proxy.url);
  t.after(() => proxy.cut());
  proxy.breakAll();
  const error = await soon(session.closed.catch((error) => error));
  assert.ok(error instanceof SessionClosed && !(error instanceof CannotResume));
});

test("sessions in a room write to each other", async (t) => {
  const room_name = "clients-typescript-room";
  const one = await opened(t, { rtc: { room_name } });
  const joined = first(one, "participant_connected");
  const two = await opened(t, { rtc: { room_name, service_participant_identity: "second" } });
  await joined;
  assert.ok(one.participants.has("second"));
  const message = first(one, "message");
  two.sendMessage("Good morning", { topic: "chat" });
  const { identity, topic, message: text } = (await message).message;
  assert.deepEqual([identity, topic], ["second", "chat"]);
  assert.match(text, /Good morning/);
  assert.equal((await client.room(room_name)).num_participants, 2);
  const left = first(one, "participant_disconnected");
  await two.close();
  await left;
  assert.equal(one.participants.size, 0);
});

test("without a telephone there is no call", async (t) => {
  const session = await opened(t, { rtc: { room_name: "clients-typescript-nobody" } });
  const refused = await soon(session.sipTransfer("+14155550100").catch((error) => error));
  assert.ok(refused instanceof TransferError || refused instanceof ServerError);
  assert.equal(refused.code, "participant_not_found");
  for (const press of [() => session.sendDtmf("12#"), () => session.hangup()]) {
    const error = first(session, "error");
    press();
    assert.equal((await error).code, "participant_not_found");
  }
});
