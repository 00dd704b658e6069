// OpenAI's own client for JavaScript: `openai_sdk.mjs URL KEY FOLDER TEXT` says a text, hears it again, and prints what came of it
// as JSON.

import { createReadStream, writeFileSync } from "node:fs";
import { File } from "node:buffer";
import { createRequire } from "node:module";

// Node before 20 does not have it where the client looks for it.
globalThis.File ??= File;
// Unlike `import`, this looks where NODE_PATH says.
const OpenAI = createRequire(import.meta.url)("openai");
const [baseURL, apiKey, folder, text] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });

const spoken = await client.audio.speech.create({ model: "gpt-4o-mini-tts", voice: "coral", input: text });
const file = `${folder}/spoken.mp3`;
writeFileSync(file, Buffer.from(await spoken.arrayBuffer()));

const whole = await client.audio.transcriptions.create({ model: "whisper-1", file: createReadStream(file) });
const events = await client.audio.transcriptions.create({ model: "local", file: createReadStream(file), stream: true });
const types = [];
let deltas = "";
for await (const event of events) {
  types.push(event.type);
  deltas += event.delta ?? "";
}
const ids = [];
for await (const model of client.models.list()) ids.push(model.id);
const refused = await client.audio.speech.create({ model: "nobody", voice: "alloy", input: text }).catch((error) => error);
const problem = { kind: refused.constructor.name, status: refused.status, code: refused.code, param: refused.param };
console.log(JSON.stringify({ text: whole.text, deltas, types, ids, problem }));
