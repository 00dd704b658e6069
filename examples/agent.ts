// A voice agent: hears a WAV file or a microphone, answers every turn, and writes what it says to a WAV file.
import { readFileSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { WebSocket } from "ws";
const { VIVAVOCE_URL: url = "ws://127.0.0.1:3001/ws", VIVAVOCE_TOKEN: token } = process.env;
const fail = (problem: string): never => { console.error(problem); process.exit(1); };
const [source = fail("agent.js SOUND.wav|- [ANSWER.wav]"), out = "answer.wav"] = process.argv.slice(2);
const file = source === "-" ? undefined : readFileSync(source); // 16 bits; "-" is raw sound, mono at 16 kHz
const rate = file?.readUInt32LE(24) ?? 16_000, channels = file?.readUInt16LE(22) ?? 1;
const frame = Math.floor(rate / 50) * 2 * channels, RATE = 24_000; // 20 ms in bytes; rate of what is said, mono
const answers = new Set<string>(), starts = new Map<string, number>();
let speech: Buffer[] = [], received = 0, turns = 0, decision = "", ready = false;
async function* reply(text: string) {
  yield `You said: ${text}. `; // Call a language model here, and yield each sentence as soon as it is complete.
  yield "What else can I do for you?";
}
async function listen() {
  let due = performance.now(); // 20 ms of sound every 20 ms, as from a microphone
  const hear = (sound: Buffer) => (socket.send(sound), sleep((due += sound.length / frame * 20) - performance.now()));
  for await (const sound of file ? [file.subarray(file.indexOf("data") + 8)] : process.stdin)
    for (let at = 0; at < sound.length; at += frame) await hear(sound.subarray(at, at + frame));
  for (let silent = 0; silent < 150 || answers.size; silent++) await hear(Buffer.alloc(frame)); // 3 s end the last turn
  socket.close(1000);
}
const on: Record<string, (message: any) => void> = {
  ready() { ready = true; listen(); },
  async stt_result({ is_speech_final, turn_transcript: text }) {
    if (is_speech_final) console.log("heard:", text);
    if (!is_speech_final || (answers.size && decision === "resumed")) return; // After "uh huh" the answer goes on.
    const id = `answer-${++turns}`;
    answers.clear(); answers.add(id);
    send({ type: "clear" }); // what is left of the answer before
    for await (const sentence of reply(text)) // All are one utterance; each is synthesised when it arrives.
      if (answers.has(id)) send({ type: "speak", id, text: sentence, flush: false });
    if (answers.has(id)) send({ type: "speak", id, text: "", flush: true });
  },
  interruption({ state, reason }) { console.log(`${decision = state}: ${reason}`); },
  tts_started({ id }) { starts.set(id, received); },
  tts_playback_complete({ id }) { answers.delete(id); },
  tts_interrupted({ id, played_ms, heard_text }) {
    if (answers.delete(id)) console.log("interrupted after:", heard_text);
    received = (starts.get(id) ?? received) + Math.floor(played_ms * RATE / 1000) * 2;
    speech = [Buffer.concat(speech).subarray(0, received)]; // The rest was not heard.
  },
  error({ code, message }) { ready ? console.error(`error: ${code}: ${message}`) : fail(`config refused: ${message}`); },
};
const socket = new WebSocket(url, { headers: token ? { authorization: `Bearer ${token}` } : {} });
const send = (message: object) => socket.send(JSON.stringify(message));
socket.on("open", () => send({ type: "config", stt_config: { provider: "local", sample_rate: rate, channels },
  tts_config: { provider: "local", model: "", sample_rate: RATE }, vad: { interruption: "pause" } }));
const play = (sound: Buffer) => { speech.push(sound); received += sound.length; };
const take = (message: any) => on[message.type]?.(message);
socket.on("message", (data: Buffer, isBinary) => isBinary ? play(data) : take(JSON.parse(data.toString())));
process.on("SIGINT", () => socket.close(1000));
socket.on("error", (error) => fail(`${url}: ${error.message} (see ./start, VIVAVOCE_TOKEN)`));
socket.on("close", (code, reason) => {
  const header = [0x46464952, 36 + received, 0x45564157, 0x20746d66, 16, 0x10001, RATE, RATE * 2, 0x100002, 0x61746164, received];
  writeFileSync(out, Buffer.concat([Buffer.from(Uint32Array.from(header).buffer), ...speech])); // RIFF WAVE, mono
  code === 1000 ? process.exit() : fail(`the session was cut off: ${code} ${reason}`);
});
