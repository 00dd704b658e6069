// Live talk: a session of this page's own, with a microphone and every setting of `config`. It goes on while other views are
// looked at.

import { $, ask, h, now, palette, pen, token, warn, whenWarned, json } from "./shared.js";
import { context, hearingContext, samples } from "./sound.js";

export const name = "talk", title = "Talk";
export function open() { enable(); }

const settings = $("settings").elements;
const WINDOW_MS = 20000, LOG_ROWS = 500, TURN_ROWS = 200;
const CLOSED = {
  1000: "the session is over", 1001: "the server is going down", 1005: "the session is over", 1006: "the connection was lost", 1008: "this is not allowed",
  1009: "a message was too big", 1011: "the server failed", 1013: "the server is overloaded", 4408: "no config came in time", 4409: "nothing was said for too long",
};

// ---- What is shown
function note(text, kind = "note") {
  const row = document.createElement("li"), mark = document.createElement("b"), log = $("wire");
  const follow = log.scrollTop + log.clientHeight > log.scrollHeight - 30;
  mark.textContent = kind.startsWith("up") ? "→ " : kind.startsWith("down") ? "← " : "";
  row.className = kind;
  row.append(`${new Date().toISOString().slice(11, 23)} `, mark, text);
  row.hidden = !wanted(row);
  log.append(row);
  if (log.childElementCount > LOG_ROWS) log.firstElementChild.remove();
  if (follow) log.scrollTop = log.scrollHeight;
}
function wanted(row) {
  const words = $("find").value.toLowerCase().split(/\s+/).filter((word) => word && word !== "-"), text = row.textContent.toLowerCase();
  return words.every((word) => word[0] === "-" ? !text.includes(word.slice(1)) : text.includes(word));
}
function show(text, kind = "") { $("state").textContent = text; $("state").className = kind; }
whenWarned((text) => note(text, "bad"));
function enable() {
  for (const control of [$("mic"), $("clear"), $("say")]) control.disabled = !session?.ready;
  $("connect").textContent = session ? "Disconnect" : "Connect";
  $("settings").querySelector("fieldset").disabled = Boolean(session);
}
function row(who, kind, text) {
  const made = Object.assign(document.createElement("p"), { className: kind, textContent: text }), box = $("turns-log");
  made.dataset.who = who;
  box.append(made);
  if (box.childElementCount > TURN_ROWS) box.firstElementChild.remove();
  follow();
  return made;
}
function remark(row, text) { row?.append(" ", Object.assign(document.createElement("small"), { textContent: text })); follow(); }
function interim(text) { $("interim").textContent = text; $("interim").dataset.who = text ? "heard" : ""; follow(); }
function follow() { $("turns").scrollTop = $("turns").scrollHeight; }
const count = ([frames, bytes]) => `${frames} frames, ${(bytes / 1024).toFixed(0)} KiB`;
const took = (since) => `${Math.round(now() - since)} ms`;

// ---- A session: everything that ends with its socket.
export let session = null;
let mic = null, utterances = 0;
const fresh = () => ({
  format: settings.format.value, unplayed: false, ready: false, configuredAt: 0, turn: null, utterances: new Map(), firstAudioOf: null, clearedAt: null, speechEndedAt: null,
  audioFrom: null, sentMs: 0, sent: [0, 0], received: [0, 0],
});

function config() {
  const made = {
    type: "config",
    stt_config: {
      provider: settings.stt.value, language: settings.language.value, sample_rate: session.hearing.sampleRate, channels: 1, encoding: "linear16", model: "",
      ...(settings.stt_fallback.value && { fallback: [{ provider: settings.stt_fallback.value, language: settings.language.value }] }),
    },
    tts_config: {
      provider: settings.tts.value, model: "", audio_format: settings.format.value, sample_rate: Number(settings.rate.value), speaking_rate: Number(settings.speed.value),
      ...(settings.voice.value && { voice_id: settings.voice.value }), ...(settings.tts_fallback.value && { fallback: [{ provider: settings.tts_fallback.value, model: "" }] }),
    },
    ...(settings.record.checked && { recording: true }), ...(settings.room.value.trim() && { rtc_config: { room_name: settings.room.value.trim() } }),
    vad: {
      enabled: settings.vad.checked, silence_ms: Number(settings.silence.value), speech_final_timeout_ms: Number(settings.deadline.value), threshold: Number(settings.threshold.value),
      noise_suppression: settings.noise.checked, interruption: settings.interruption.value,
    },
  };
  return withAll(made);
}
function send(message) {
  if (session?.socket?.readyState !== WebSocket.OPEN) return;
  const text = JSON.stringify(message);
  session.socket.send(text);
  note(text, "up");
}

async function connect() {
  const mine = session = fresh();
  warn(""); enable(); show("connecting");
  try {
    mine.hearing = await hearingContext();
    mine.playing = await context(Number(settings.rate.value));
  } catch (error) { end(mine, `No sound: ${error.message}`); return; }
  if (session !== mine) { closeSound(mine); return; }
  mine.player = new AudioWorkletNode(mine.playing, "player", { numberOfInputs: 0, outputChannelCount: [1] });
  mine.player.connect(mine.playing.destination);
  mine.player.port.onmessage = ({ data }) => { levels.out = Math.max(levels.out, data.peak); levels.bufferedMs = data.ms; };
  const url = new URL("/ws", location.href);
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  if (token()) url.searchParams.set("api_key", token());
  const socket = mine.socket = new WebSocket(url);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => { if (session === mine) { mine.configuredAt = now(); send(config()); } };
  socket.onmessage = ({ data }) => { if (session === mine) typeof data === "string" ? told(data) : heard(data); };
  socket.onclose = async ({ code, reason }) => {
    if (session !== mine) return;
    if (!mine.configuredAt) return end(mine, await refusal(url));
    const why = [CLOSED[code] ?? "closed", reason].filter(Boolean).join(": ");
    end(mine, code === 1000 || code === 1005 ? "" : `Closed with ${code}: ${why}. Connect again when you like.`);
  };
}
// A browser does not tell a page why a socket was refused; the same path without a handshake does.
async function refusal(url) {
  try {
    const answer = await fetch(`/ws${url.search}`);
    const body = answer.status === 400 ? {} : await answer.json();
    return `The server refused the socket${body.message ? `, ${answer.status}: ${body.message}` : ""}.`;
  } catch { return "The server does not answer. Connect again when it is back."; }
}
function closeSound(which) { which.hearing?.close(); which.playing?.close(); which.hearing = which.playing = null; }
function end(which, trouble) {
  if (session !== which) return;
  stopMic(); session = null; closeSound(which);
  if (which.socket?.readyState <= WebSocket.OPEN) which.socket.close(1000);
  levels.bufferedMs = 0; interim("");
  show("not connected", trouble ? "bad" : ""); warn(trouble); note("the session is over"); enable();
  $("connect").focus();
}

function heard(bytes) {
  session.received[0]++; session.received[1] += bytes.byteLength;
  if (session.firstAudioOf) { $("first-audio").textContent = took(session.firstAudioOf.at); session.firstAudioOf = null; }
  const sound = samples(session.format, bytes);
  session.unplayed = !sound;
  if (sound) session.player.port.postMessage(sound, [sound.buffer]);
}
function told(text) {
  let message;
  try { message = JSON.parse(text); } catch { note(text, "bad"); return; }
  note(text, message.type === "error" ? "down bad" : "down");
  EVENTS[message.type]?.(message);
}
const EVENTS = {
  __proto__: null,
  ready({ stream_id }) { session.ready = true; $("to-ready").textContent = took(session.configuredAt); show(`connected: ${stream_id}`, "on"); enable(); },
  error({ code, message }) {
    const text = `${code}: ${message}`;
    if (session.ready) warn(text); else end(session, text);
  },
  provider_event({ kind, provider, state, message }) { row("server", "", `${kind} ${provider ?? ""} ${state}${message ? `: ${message}` : ""}`); },
  // A turn is one row: its final segments in order, what is still open in italics below it.
  stt_result({ transcript, is_final, is_speech_final, turn_transcript, confidence }) {
    if (!is_final) return interim(transcript);
    interim("");
    session.turn ??= row("heard", "", "");
    session.turn.append(session.turn.hasChildNodes() && transcript ? " " : "", transcript);
    if (!is_speech_final) return follow();
    if (turn_transcript != null) session.turn.textContent = turn_transcript;
    session.turn.classList.add("turn");
    remark(session.turn, confidence == null ? "✓" : `✓ ${Math.round(confidence * 100)} %`);
    session.turn = null;
    if (session.speechEndedAt !== null) { $("to-final").textContent = took(session.speechEndedAt); session.speechEndedAt = null; }
  },
  vad_event({ event, timestamp_ms, reason }) {
    const at = (session.audioFrom ?? now()) + timestamp_ms;
    if (event === "speech_start" || event === "speech_resumed") { session.speechEndedAt = null; closeSpeech(at); track.speech.push({ from: at, to: null }); }
    if (event === "silence_detected") { session.speechEndedAt = at; closeSpeech(at); }
    if (event === "turn_end") { closeSpeech(at); track.ends.push({ at, reason: reason ?? "" }); }
  },
  tts_started({ id }) {
    const utterance = session.utterances.get(id);
    if (!utterance) return;
    session.firstAudioOf = utterance;
    utterance.row = row("said", "said", utterance.text);
  },
  tts_playback_complete({ id, duration_ms }) { remark(session.utterances.get(id)?.row, `${(duration_ms / 1000).toFixed(1)} s`); session.utterances.delete(id); },
  tts_interrupted({ id, played_ms, heard_text }) {
    session.player.port.postMessage(null);
    if (session.clearedAt !== null) { $("to-clear").textContent = took(session.clearedAt); session.clearedAt = null; }
    const heard = heard_text ? `, heard: “${heard_text}”` : "";
    remark(session.utterances.get(id)?.row, `interrupted after ${((played_ms ?? 0) / 1000).toFixed(1)} s${heard}`);
    session.utterances.delete(id);
  },
};

// ---- Microphone
async function startMic() {
  const mine = session;
  $("mic").disabled = true; warn("");
  let stream = null;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true } });
    if (!mine || session !== mine) throw new Error("the session is over");
    const node = new AudioWorkletNode(mine.hearing, "capture", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
    const source = mine.hearing.createMediaStreamSource(stream);
    source.connect(node);
    node.port.onmessage = ({ data }) => frame(data);
    stream.getTracks()[0].onended = () => { stopMic(); warn("The microphone is gone."); };
    mic = { stream, source };
    $("mic").ariaPressed = "true";
  } catch (error) {
    stream?.getTracks().forEach((one) => one.stop());
    warn(`No microphone: ${error.message}`);
  }
  enable();
}
function stopMic() {
  mic?.stream.getTracks().forEach((one) => one.stop()); mic?.source.disconnect();
  mic = null; closeSpeech(now());
  $("mic").ariaPressed = "false";
}
function frame(pcm) {
  if (!mic || session?.socket.readyState !== WebSocket.OPEN) return;
  let peak = 0;
  for (const sample of pcm) peak = Math.max(peak, Math.abs(sample));
  levels.in = Math.max(levels.in, peak / 32768);
  // The server counts only what it hears, so its clock is set anew when the microphone was off.
  const frameMs = pcm.length / session.hearing.sampleRate * 1000, from = now() - session.sentMs - frameMs;
  if (session.audioFrom === null || Math.abs(from - session.audioFrom) > 500) session.audioFrom = from;
  session.sentMs += frameMs;
  session.socket.send(pcm.buffer);
  session.sent[0]++; session.sent[1] += pcm.byteLength;
}

// ---- Time line, on the page's clock
export const levels = { in: 0, out: 0, bufferedMs: 0 };
const track = { levels: [], speech: [], ends: [] };
function closeSpeech(at) { const last = track.speech.at(-1); if (last?.to === null) last.to = Math.max(last.from, at); }
setInterval(() => {
  track.levels.push({ at: now(), in: levels.in, out: levels.out });
  const width = (peak) => `${Math.max(0, 100 + 20 * Math.log10(peak || 1e-5) * 100 / 60)}%`;
  $("level-in").style.width = width(levels.in); $("level-out").style.width = width(levels.out);
  $("activity").textContent = [track.speech.at(-1)?.to === null && "hears speech", levels.out > 0 && "plays speech", session?.unplayed && `${session.format} is counted, not played`].filter(Boolean).join(" · ");
  if (session) {
    $("sent").textContent = count(session.sent); $("received").textContent = count(session.received);
    $("buffered").textContent = `${Math.round(levels.bufferedMs)} ms`;
  }
  levels.in = levels.out = 0;
  const old = now() - WINDOW_MS - 1000;
  while (track.levels[0]?.at < old) track.levels.shift();
  while (track.ends[0]?.at < old) track.ends.shift();
  while (track.speech.length && (track.speech[0].to ?? Infinity) < old) track.speech.shift();
}, 50);

const LANES = { in: 30, voice: 70, out: 110 }, LEFT = 44;
function draw() {
  requestAnimationFrame(draw);
  if ($("talk").hidden) return;
  const [to, width, height] = pen($("time")), until = now(), x = (at) => width - (until - at) / WINDOW_MS * (width - LEFT);
  for (const [name, y] of Object.entries(LANES)) { to.textAlign = "left"; to.fillText(name, 0, y); to.fillRect(LEFT, y, width - LEFT, .5); }
  for (let second = 0; second * 1000 <= WINDOW_MS; second += 5) {
    const at = x(until - second * 1000);
    to.fillRect(Math.min(at, width - .5), 4, .5, height - 22);
    to.textAlign = second ? "center" : "right"; to.fillText(second ? `−${second} s` : "now", at, height - 8);
  }
  const tall = (peak) => 52 * Math.max(0, 1 + Math.log10(peak || 1e-5) / 2.5);
  for (const one of track.levels) {
    if (x(one.at) < LEFT) continue;
    for (const lane of ["in", "out"]) { to.fillStyle = palette[lane]; to.fillRect(x(one.at), LANES[lane] - tall(one[lane]) / 2, 2, tall(one[lane])); }
  }
  to.fillStyle = palette.good;
  for (const one of track.speech) { const left = Math.max(LEFT, x(one.from)), right = x(one.to ?? until); if (right > left) to.fillRect(left, LANES.voice - 6, right - left, 12); }
  to.fillStyle = palette.bad;
  for (const { at, reason } of track.ends) {
    if (x(at) < LEFT) continue;
    const room = x(at) + 4 + to.measureText(reason).width < width;
    // On whole pixels, or it is pale.
    to.fillRect(Math.round(x(at)), LANES.voice - 10, 3, 20);
    to.textAlign = room ? "left" : "right"; to.fillText(reason, x(at) + (room ? 5 : -3), LANES.voice - 11);
  }
}
// ---- All settings of `config`, as the schema of the socket describes them: whatever the server takes, this page can send.
const fields = new Map();
const GROUPS = ["stt_config", "tts_config", "vad", "rtc_config", "agent"];
async function allFields() {
  let schema;
  try { schema = await json("/schemas/socket.json"); } catch (error) { note(`No schema: ${error.message}`, "bad"); return; }
  const resolved = (of) => of.$ref ? resolved(schema.$defs[of.$ref.split("/").at(-1)]) : of.anyOf && !of.properties ? { ...of, ...resolved(of.anyOf.find((one) => one.type !== "null") ?? {}) } : of;
  const whole = schema.$defs.ConfigMessage.properties, own = Object.fromEntries(Object.entries(whole).filter(([name]) => name !== "type" && !GROUPS.includes(name)));
  for (const group of [...GROUPS.filter((one) => whole[one]), ""]) {
    const properties = group ? resolved(whole[group]).properties ?? {} : own;
    const made = Object.entries(properties).filter(([name]) => !["sample_rate", "channels", "encoding"].includes(name) || group !== "stt_config").map(([name, raw]) => field(group, name, resolved(raw), raw.description ?? ""));
    $("all-fields").append(h("div", { role: "group", class: "group", "aria-label": group || "config" }, h("h3", {}, h("code", {}, group || "config")), h("div", { class: "stack" }, made)));
  }
}
function field(group, name, of, says) {
  const types = [of.type].flat().filter((type) => type && type !== "null"), choices = (of.enum ?? of.oneOf?.map((one) => one.const))?.filter((one) => one !== null && one !== undefined && one !== "");
  const placeholder = of.default === undefined || of.default === null ? "" : JSON.stringify(of.default), secret = name === "api_key";
  let input, read;
  if (types[0] === "boolean" || choices) {
    const values = choices ?? [true, false];
    input = h("select", {}, h("option", { value: "" }, placeholder ? `default: ${placeholder}` : "default"), values.map((value) => h("option", { value: JSON.stringify(value) }, String(value))));
    read = (text) => JSON.parse(text);
  } else if (types[0] === "integer" || types[0] === "number") {
    input = h("input", { type: "number", step: types[0] === "integer" ? "1" : "any", min: of.minimum, max: of.maximum, placeholder }); read = Number;
  } else if (types[0] === "string") {
    input = h("input", { type: secret ? "password" : "text", placeholder, autocomplete: "off", spellcheck: false }); read = (text) => text;
  } else {
    input = h("textarea", { rows: 1, placeholder: placeholder || "JSON", spellcheck: false });
    read = (text) => JSON.parse(text);
    input.onchange = () => { try { if (input.value.trim()) read(input.value); input.setCustomValidity(""); } catch (error) { input.setCustomValidity(`Not JSON: ${error.message}`); } };
  }
  input.title = says;
  fields.set(`${group}/${name}`, { group, name, input, read });
  return h("label", { title: says }, name, input);
}
function withAll(made) {
  for (const { group, name, input, read } of fields.values()) {
    if (!input.value.trim()) continue;
    const value = read(input.value);
    if (group) (made[group] ??= {})[name] = value; else made[name] = value;
  }
  return made;
}

// ---- Controls
let voices = {};
const option = (text, value) => h("option", { value }, text);
function showVoices() {
  settings.voice.replaceChildren(option("the provider's default", ""), ...(voices[settings.tts.value] ?? []).map((one) => option(`${one.name} · ${one.language}`, one.id)));
}
/** What depends on who asks: the voices, and so the providers. */
export async function prepare() {
  try { voices = await json("/voices"); } catch (error) { note(`No list of voices: ${error.message}`, "bad"); }
  const slugs = [...new Set(["local", ...Object.keys(voices)])];
  for (const field of [settings.stt, settings.tts, settings.stt_fallback, settings.tts_fallback]) {
    const chosen = field.value, none = field.name.endsWith("_fallback") ? [option("none", "")] : [];
    field.replaceChildren(...none, ...slugs.map((slug) => option(slug, slug)));
    if (slugs.includes(chosen)) field.value = chosen;
  }
  showVoices();
  if (!fields.size) allFields();
}
settings.tts.onchange = showVoices;
settings.format.onchange = () => { settings.rate.value = { mulaw: "8000", alaw: "8000" }[settings.format.value] ?? "24000"; };
$("settings").onsubmit = (event) => { event.preventDefault(); if (!session) connect(); };
$("connect").onclick = () => {
  if (session) return end(session, "");
  if ($("settings").reportValidity()) connect();
};
$("mic").onclick = () => mic ? stopMic() : startMic();
$("speak").onsubmit = (event) => {
  event.preventDefault();
  if (!session?.ready) return;
  const { text, replace, protect } = event.target.elements, id = `console-${++utterances}`;
  warn("");
  session.utterances.set(id, { text: text.value, at: now(), row: null });
  send({ type: "speak", id, text: text.value, replace: replace.checked, allow_interruption: !protect.checked });
};
$("clear").onclick = () => { session.clearedAt = now(); send({ type: "clear" }); };
$("speak").elements.text.onkeydown = (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("say").click(); };
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !$("talk").hidden) $("clear").click(); });
$("find").oninput = () => { for (const row of $("wire").children) row.hidden = !wanted(row); $("wire").scrollTop = $("wire").scrollHeight; };
$("empty").onclick = () => $("wire").replaceChildren();
$("copy").onclick = async () => {
  const rows = [...$("wire").children].filter((row) => !row.hidden);
  try {
    await navigator.clipboard.writeText(rows.map((row) => row.textContent).join("\n"));
    $("copy").textContent = "Copied"; setTimeout(() => { $("copy").textContent = "Copy"; }, 1500);
  } catch { warn("The browser does not give this page the clipboard."); }
};
enable(); draw();
