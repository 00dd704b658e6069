// What programs that use the library are told by its types, with the strictest settings, without a browser's types.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const here = (file) => fileURLToPath(new URL(file, import.meta.url));

const PROGRAM = `
import { connect, Microphone, type EventOf, type SttResultMessage } from "@vivavoce/client";

const session = await connect("http://host", {
  stt_config: { provider: "local", sample_rate: 8000 }, tts_config: { provider: "local", model: "" },
});
session.on("stt_result", (event) => { const result: SttResultMessage = event; return result.transcript; });
session.on("utterance_ended", ({ outcome }) => outcome.heardText);
for await (const event of session) {
  if (event.type === "audio") event.data.byteLength satisfies number;
  if (event.type === "error") event.code satisfies string;
}
await session.updateConfig({ stt_config: { language: "de-DE" } });
const resumed: EventOf<"resumed"> = { type: "resumed", attempts: 1, dropped_bytes: 0 };
await Microphone.open({ constraints: { deviceId: String(resumed.attempts) } });
// @ts-expect-error misspelt
await connect("http://host", { vda: {} });
// @ts-expect-error no such event
session.on("nothing", () => {});
// @ts-expect-error no such field
session.on("warning", ({ reason }) => reason);
`;

test("types hold for programs", async () => {
  mkdirSync(here("program"), { recursive: true });
  writeFileSync(here("program/program.ts"), PROGRAM);
  writeFileSync(here("program/package.json"), '{"type": "module"}');
  const options = "--strict --exactOptionalPropertyTypes --noUncheckedIndexedAccess --target ES2022 --lib ES2022 --module NodeNext --types node --noEmit program.ts";
  const tsc = here("../node_modules/typescript/bin/tsc");
  const compiled = await promisify(execFile)(process.execPath, [tsc, ...options.split(" ")], { cwd: here("program") })
    .catch((error) => error);
  assert.equal(compiled.stdout, "");
});
