// LiveKit's browser client, driven through Chromium's debugging pipe with the same commands and events as
// python_client.py. The page is bundled here with esbuild and served by the test's own server or from a file.
// `page` of the options names another page.
// Arguments: URL, token and options; CHROMIUM names the browser, NODE_CLIENTS the folder with the packages.

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const packages = process.env.NODE_CLIENTS ?? process.cwd();
const esbuild = createRequire(`${packages}/`)('esbuild');
const here = dirname(fileURLToPath(import.meta.url));
const [url, token, options = '{}'] = process.argv.slice(2);

const bundled = await esbuild.build({
  entryPoints: [join(here, JSON.parse(options).page ?? 'browser_page.mjs')], bundle: true, write: false, format: 'iife', nodePaths: [join(packages, 'node_modules')],
});
const script = bundled.outputFiles[0].text;
const server = createServer((request, response) => {
  response.setHeader('content-type', 'text/html');
  response.end(`<!doctype html><script>${script.replaceAll('</script', '<\\/script')}</script>`);
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));

const profile = mkdtempSync(join(tmpdir(), 'chromium-'));
const browser = spawn(process.env.CHROMIUM ?? 'chromium', [
  '--headless=new', '--no-sandbox', '--disable-gpu', '--remote-debugging-pipe', `--user-data-dir=${profile}`,
  '--use-fake-ui-for-media-stream', '--use-fake-device-for-media-stream', '--autoplay-policy=no-user-gesture-required',
  '--allow-loopback-in-peer-connection',
  // TURN servers of tests have certificates of their own.
  '--ignore-certificate-errors',
  // A file in place of the microphone, said again and again.
  ...(JSON.parse(options).microphone ? [`--use-file-for-fake-audio-capture=${JSON.parse(options).microphone}`] : []), 'about:blank',
], { stdio: ['ignore', 'ignore', process.env.CHROMIUM_LOG ? 'inherit' : 'ignore', 'pipe', 'pipe'] });
const end = () => {
  browser.kill('SIGKILL');
  server.close();
  // Its children may still write there; the folder is in one that the test removes.
  try { rmSync(profile, { recursive: true, force: true }); } catch {}
};
process.on('exit', end);
process.on('SIGTERM', () => process.exit(0));
browser.on('exit', () => process.exit(0));

// The debugging protocol over the pipe: JSON messages that end with a zero byte.
let next = 1;
const waiting = new Map();
const send = (method, params = {}, sessionId) => new Promise((answered) => {
  const id = next++;
  waiting.set(id, answered);
  browser.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
});
let rest = '';
browser.stdio[4].setEncoding('utf8').on('data', (text) => {
  rest += text;
  for (let at = rest.indexOf('\0'); at >= 0; at = rest.indexOf('\0')) {
    const message = JSON.parse(rest.slice(0, at));
    rest = rest.slice(at + 1);
    if (message.id) { waiting.get(message.id)?.(message.result ?? message.error); waiting.delete(message.id); }
    if (message.method === 'Runtime.bindingCalled') console.log(message.params.payload);
    if (message.method === 'Runtime.exceptionThrown') console.error(JSON.stringify(message.params.exceptionDetails));
  }
});

const { targetId } = await send('Target.createTarget', { url: 'about:blank' });
const { sessionId } = await send('Target.attachToTarget', { targetId, flatten: true });
await send('Runtime.enable', {}, sessionId);
await send('Runtime.addBinding', { name: 'sayToTest' }, sessionId);
await send('Page.enable', {}, sessionId);
await send('Page.addScriptToEvaluateOnNewDocument', { source: `window.given = ${JSON.stringify({ url, token, options: JSON.parse(options) })}` }, sessionId);
await send('Page.navigate', { url: `http://127.0.0.1:${server.address().port}/` }, sessionId);

const lines = createInterface({ input: process.stdin });
lines.on('line', (line) => send('Runtime.evaluate', { expression: `window.obey(${line})` }, sessionId));
lines.on('close', async () => {
  await send('Runtime.evaluate', { expression: 'window.obey({ do: "leave" })', awaitPromise: true }, sessionId);
  process.exit(0);
});
