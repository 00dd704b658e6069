// A session of the TypeScript library that says three sentences, whatever becomes of its connection: move.mjs URL.

import { connect } from "@vivavoce/client";

const SENTENCES = ["This is the first sentence.", "This is the second one.", "And this is the third."];

let [resumed, bytes] = [0, 0];
const session = await connect(process.argv[2], { recording: true, stream_id: "typescript" });
session.on("resumed", () => (resumed += 1));
session.on("audio", ({ data }) => {
  if (bytes === 0) console.log("speaking");
  bytes += data.byteLength;
});
const utterances = SENTENCES.map((sentence) => session.say(sentence));
const outcomes = await Promise.all(utterances.map((utterance) => utterance.ended));
await session.close();
const ends = outcomes.map(({ status }) => status);
const played_ms = outcomes.reduce((sum, { playedMs }) => sum + playedMs, 0);
console.log(JSON.stringify({ ends, played_ms, sound_ms: bytes / 48, resumed }));
