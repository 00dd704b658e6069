// Chromium through its debugging pipe, with a file in place of the microphone.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Opens a page; returns what evaluates code in it, and what ends the browser. */
export async function open(url, microphone) {
  const profile = mkdtempSync(join(tmpdir(), "chromium-"));
  const browser = spawn(process.env.CHROMIUM ?? "chromium", [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", `--user-data-dir=${profile}`,
    "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream", `--use-file-for-fake-audio-capture=${microphone}`,
    "--autoplay-policy=no-user-gesture-required", "about:blank",
  ], { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
  const [, , , to, from] = browser.stdio;
  const waiting = new Map();
  const failures = [];
  let last = 0;
  let rest = "";
  // JSON messages that end with a zero byte.
  from.setEncoding("utf8").on("data", (text) => {
    const messages = (rest + text).split("\0");
    rest = messages.pop();
    for (const { id, result, error, method, params } of messages.map((message) => JSON.parse(message))) {
      if (method === "Runtime.exceptionThrown") failures.push(params.exceptionDetails.exception?.description);
      const answer = waiting.get(id);
      if (!answer) continue;
      waiting.delete(id);
      if (error) answer.reject(new Error(error.message));
      else answer.resolve(result);
    }
  });
  to.on("error", () => {});
  browser.on("exit", () => {
    for (const { reject } of waiting.values()) reject(new Error("the browser has ended"));
  });
  const send = (method, params = {}, sessionId) => new Promise((resolve, reject) => {
    const id = ++last;
    waiting.set(id, { resolve, reject });
    to.write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
  });
  const { targetId } = await send("Target.createTarget", { url: "about:blank" });
  const { sessionId } = await send("Target.attachToTarget", { targetId, flatten: true });
  await send("Runtime.enable", {}, sessionId);
  await send("Page.enable", {}, sessionId);
  return {
    failures,
    goTo: (address) => send("Page.navigate", { url: address }, sessionId),
    /** What the function gives in the page. */
    async run(code, ...given) {
      const expression = `(${code})(...${JSON.stringify(given)})`;
      const answer = await send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true }, sessionId);
      const failed = answer.exceptionDetails;
      if (failed) throw new Error(failed.exception?.description ?? failed.text);
      return answer.result.value;
    },
    async close() {
      const ended = new Promise((resolve) => browser.on("exit", resolve));
      browser.kill("SIGKILL");
      await ended;
      // Its children may still write there.
      try { rmSync(profile, { recursive: true, force: true, maxRetries: 5 }); } catch {}
    },
  };
}
