// The agent of the README, as it is printed there, with a language model of the test.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { assertSounds, PATIENCE, soon, spoken, WEATHER } from "./support.mjs";

const here = (file) => fileURLToPath(new URL(file, import.meta.url));

test("the agent hears, answers and ends", async (t) => {
  const [, code] = /```ts\n(.*?)```/s.exec(readFileSync(here("README.md"), "utf8"));
  assert.ok(code.split("\n").length <= 31);
  mkdirSync(here("agent"), { recursive: true });
  writeFileSync(here("agent/agent.ts"), code);
  writeFileSync(here("agent/package.json"), '{"type": "module"}');
  const tsc = here("../node_modules/typescript/bin/tsc");
  const options = "--strict --skipLibCheck --target ES2022 --module NodeNext --types node agent.ts".split(" ");
  const compiled = await promisify(execFile)(process.execPath, [tsc, ...options], { cwd: here("agent") })
    .catch((error) => error);
  assert.equal(compiled.stdout, "");

  const question = await spoken(WEATHER);
  let asked;
  const model = createServer(async (request, response) => {
    let body = "";
    for await (const part of request) body += part;
    asked = JSON.parse(body).messages;
    response.setHeader("content-type", "text/event-stream");
    for (const token of "It is sunny all day long .".split(" ")) {
      response.write(`data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: `${token} ` } }] })}\n\n`);
    }
    response.end("data: [DONE]\n\n");
  });
  await new Promise((listening) => model.listen(0, "127.0.0.1", listening));
  t.after(() => model.close());

  const agent = spawn(process.execPath, ["agent.js"], {
    cwd: here("agent"),
    env: { ...process.env, OPENAI_BASE_URL: `http://127.0.0.1:${model.address().port}`, OPENAI_API_KEY: "none" },
  });
  t.after(() => agent.kill("SIGKILL"));
  let errors = "";
  agent.stderr.on("data", (text) => (errors += text));
  const ended = new Promise((resolve) => agent.on("exit", resolve));
  const answered = new Promise((resolve) => {
    let sound = 0;
    agent.stdout.on("data", (data) => {
      if (asked && (sound += data.length) >= 24_000) resolve(true);
    });
  });
  // It speaks at the pace of speech, and is silent then.
  let at = 0;
  const speaking = setInterval(() => {
    const frame = Buffer.alloc(640);
    question.subarray(at, at + 640).copy(frame);
    at += 640;
    agent.stdin.write(frame);
  }, 20);
  t.after(() => clearInterval(speaking));
  agent.stdin.on("error", () => {});
  await soon(Promise.race([answered, ended.then(() => assert.fail(errors))]), "an answer");
  assert.equal(asked[0].role, "system");
  assertSounds(asked.at(-1).content, WEATHER);
  agent.kill("SIGINT");
  assert.equal(await soon(ended), 0);
  assert.equal(errors, "");
}, { timeout: 2 * PATIENCE });
