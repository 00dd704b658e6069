// The HTTP API of a running server.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { ApiError, Client, connect, ConnectionFailed } from "@vivavoce/client";

import { soon, TOKEN, URL_ } from "./support.mjs";

const client = new Client(URL_, { token: TOKEN });
const latin = (bytes) => Buffer.from(bytes.subarray(0, 4)).toString("latin1");

async function refused(status, code, request) {
  const error = await soon(request.catch((error) => error));
  assert.ok(error instanceof ApiError, String(error));
  assert.deepEqual([error.status, error.code], [status, code]);
  assert.ok(error.message && error.request_id);
}

test("speech and voices", async () => {
  assert.equal(latin(await client.speak("Good morning.")), "RIFF");
  assert.ok((await client.voices("local")).local[0].id);
});

test("rooms", async () => {
  const room = "clients-typescript-http";
  assert.equal((await client.roomToken(room, "ann")).participant_identity, "ann");
  const session = await connect(URL_, { token: TOKEN, rtc: { room_name: room } });
  assert.ok((await client.rooms()).some(({ name }) => name === room));
  assert.deepEqual((await client.room(room)).participants.map(({ identity }) => identity), ["voice-agent"]);
  await refused(404, "PARTICIPANT_NOT_FOUND", client.removeParticipant(room, "nobody"));
  await session.close();
  await refused(404, "ROOM_NOT_FOUND", client.room("no such / room?"));
});

test("a recording", async () => {
  const session = await connect(URL_, { token: TOKEN, recording: true });
  const { stream_id } = session;
  await soon(session.say("Good morning.").ended);
  assert.ok((await client.sessions()).sessions.some((one) => one.stream_id === stream_id));
  await session.close();
  const stored = async () => {
    for (;;) {
      try {
        return await client.recording(stream_id);
      } catch (error) {
        assert.equal(error.code, "RECORDING_NOT_FOUND");
        await sleep(100);
      }
    }
  };
  assert.equal(latin(await soon(stored())), "OggS");
  assert.ok((await client.transcript(stream_id)).some(({ text }) => text === "Good morning."));
  const listed = [];
  for (let after; ;) {
    const page = await client.recordings({ limit: 500, after });
    listed.push(...page.recordings.map((one) => one.stream_id));
    if (!(after = page.next)) break;
  }
  assert.ok(listed.includes(stream_id));
  await client.deleteRecording(stream_id);
  await refused(404, "RECORDING_NOT_FOUND", client.recording(stream_id));
});

test("a session can be ended", async () => {
  const session = await connect(URL_, { token: TOKEN });
  await client.endSession(session.stream_id);
  await soon(session.closed);
});

test("telephone", async () => {
  const call = { from_phone_number: "+14155550100", to_phone_number: "+1", participant_identity: "ann" };
  await refused(400, "INVALID_PHONE_NUMBER", client.sipCall("kitchen", call));
  await refused(404, "ROOM_NOT_FOUND", client.sipTransfer("nowhere", "ann", "+14155550100"));
});

test("refusals", async () => {
  await refused(401, "unauthorized", new Client(URL_, { token: "wrong" }).voices());
  await refused(400, "UNSUPPORTED_PROVIDER", client.voices("nobody"));
  await assert.rejects(soon(new Client("http://127.0.0.1:1").voices()), ConnectionFailed);
});
