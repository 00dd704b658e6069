// Recordings by time and by words, played with what was said beside them.

import { $, ask, card, clock, h, joined, json, palette, pen, small, warn, whenPainted } from "./shared.js";

export const name = "recordings", title = "Recordings";

// Half an hour in stereo takes 230 MB of memory at this rate; more is for a program of its own.
const DECODED_HZ = 16000, MAX_DECODED_MS = 30 * 60 * 1000;
export const state = { next: null, opened: null, node: null, context: null };

export function open(root, argument, signal) {
  state.next = null; state.opened = null;
  const time = (id, text) => h("label", {}, text, h("input", { id, type: "datetime-local" }));
  root.append(card("Recordings",
    h("form", { class: "filters", id: "search", onsubmit: (event) => { event.preventDefault(); search(null, signal); } },
      h("label", {}, "Words ", h("input", { id: "words", type: "search", maxLength: 200, placeholder: "all of these were said" })), time("from", "From "), time("until", "Until "), h("button", { class: "main" }, "Find")),
    h("p", { id: "found", class: "faint", role: "status" }, ""), h("ul", { id: "recordings", class: "list scroll" }), h("button", { id: "more-recordings", hidden: true, onclick: () => search(state.next, signal) }, "More")),
  h("section", { class: "card", id: "player", hidden: true, "aria-labelledby": "playing" },
    h("div", { class: "title" }, h("h2", { id: "playing" }), h("div", { class: "buttons" }, h("button", { id: "play", "aria-pressed": "false", onclick: () => { if (state.node) { stopPlaying(); drawWave(); } else startPlaying(); } }, "Play"), h("button", { id: "save", onclick: () => save(state.opened.one, state.opened.file) }, "Save"))),
    h("div", { class: "beside" },
      h("canvas", { id: "wave", role: "slider", tabIndex: 0, "aria-label": "Wave form; arrow keys and clicks move the position", "aria-valuemin": "0", "aria-valuenow": "0", onclick: (event) => { if (state.opened) seek(event.offsetX / $("wave").clientWidth * state.opened.sound.duration); },
        onkeydown: ({ key }) => { if (state.opened && (key === "ArrowLeft" || key === "ArrowRight")) seek(position() + (key === "ArrowLeft" ? -5 : 5)); } }),
      h("ol", { id: "transcript", tabIndex: 0, "aria-label": "Transcript; a line moves the position to where it begins" }))));
  signal.addEventListener("abort", () => { stopPlaying(); state.opened = null; });
  search(null, signal);
}
whenPainted(() => drawWave());

async function search(after, signal) {
  warn("");
  const at = (id) => $(id).value && String(new Date($(id).value).getTime());
  const query = new URLSearchParams(Object.entries({ words: $("words").value.trim(), from: at("from"), until: at("until"), after }).filter(([, value]) => value));
  try {
    const page = await json(`/inspect/recordings?${query}`, "GET", undefined, { signal });
    if (!after) $("recordings").replaceChildren();
    for (const one of page.recordings) {
      const choose = h("button", { onclick: () => openRecording(one, 0) }, joined(one.stream_id, new Date(one.started_at).toLocaleString(), clock(one.duration_ms / 1000), one.tenant, !one.complete && "cut off"));
      $("recordings").append(h("li", {}, choose, one.lines.map((line) => h("div", { class: "track" }, h("button", { ariaLabel: `Play from ${clock(line.at_ms / 1000)}`, onclick: () => openRecording(one, line.at_ms / 1000) }, clock(line.at_ms / 1000)), small(line.who), ` ${line.text}`))));
    }
    state.next = page.next ?? null;
    const found = $("recordings").childElementCount;
    $("found").textContent = found || state.next ? `${found} found${state.next ? "; there is more to look through" : ""}` : "There are none.";
    $("more-recordings").hidden = !state.next;
  } catch (error) { if (!signal.aborted) { $("found").textContent = ""; warn(`No recordings: ${error.message}`); } }
}
async function openRecording(one, at) {
  warn(""); stopPlaying(); $("player").hidden = true; state.opened = null;
  try {
    const where = `/recording/${encodeURIComponent(one.stream_id)}`, whose = `?tenant=${encodeURIComponent(one.tenant ?? "")}`;
    const bytes = await (await ask(where + whose)).arrayBuffer();
    const file = new Blob([bytes], { type: "audio/ogg" });
    if (one.duration_ms > MAX_DECODED_MS) { save(one, file); return warn(`${one.stream_id} is too long to be shown here and was saved instead.`); }
    state.context ??= new AudioContext({ sampleRate: DECODED_HZ });
    const sound = await state.context.decodeAudioData(bytes);
    const lines = transcript(await (await ask(`${where}/transcript${whose}`)).text());
    state.opened = { one, file, sound, lines, at: Math.min(at, sound.duration), peaks: null };
    showTranscript(lines);
    $("player").hidden = false;
    $("wave").ariaValueMax = sound.duration.toFixed(1);
    drawWave();
    $("player").scrollIntoView({ block: "nearest" });
  } catch (error) { warn(`Recording ${one.stream_id}: ${error.message}`); }
}
// What was understood and what was said, each where it begins: a final carries the time of its first word where its
// provider tells words, else only when it was understood.
function transcript(text) {
  const lines = [], begun = new Map();
  for (const line of text.split("\n").filter(Boolean).map((line) => JSON.parse(line))) {
    const { type, at_ms, id } = line;
    if (type === "heard" && line.transcript) {
      const words = line.words ?? [], length = words.length ? words.at(-1).end - words[0].start : 0;
      lines.push({ at: Math.max(0, at_ms / 1000 - length), who: "heard", text: line.transcript });
    }
    if (type === "begins") begun.set(id, at_ms);
    if (type === "said" && line.text) lines.push({ at: (begun.get(id) ?? at_ms - line.played_ms) / 1000, who: "said", text: line.whole ? line.text : `${line.text} …` });
  }
  return lines.sort((one, other) => one.at - other.at);
}
function showTranscript(lines) {
  $("transcript").replaceChildren(...lines.map(({ at, who, text }) => {
    const item = document.createElement("li"), button = Object.assign(document.createElement("button"), { className: who });
    button.append(Object.assign(document.createElement("small"), { className: "faint", textContent: `${clock(at)} ${who} ` }), text);
    button.onclick = () => seek(at);
    item.append(button);
    return item;
  }));
  if (!lines.length) $("transcript").append(Object.assign(document.createElement("li"), { className: "faint", textContent: "Nothing was understood and nothing said." }));
}
// For each column the loudest sample of each channel.
function peaks(sound, columns) {
  const step = Math.max(1, Math.ceil(sound.length / columns));
  return Array.from({ length: sound.numberOfChannels }, (_, channel) => {
    const samples = sound.getChannelData(channel);
    return Float32Array.from({ length: columns }, (_, column) => {
      let peak = 0;
      for (let index = column * step; index < Math.min(samples.length, (column + 1) * step); index++) peak = Math.max(peak, Math.abs(samples[index]));
      return peak;
    });
  });
}
export function position() {
  const { opened, node, context } = state;
  return node ? Math.min(opened.sound.duration, opened.at + context.currentTime - node.begun) : opened.at;
}
function drawWave() {
  const { opened } = state;
  if (!opened) return;
  const canvas = $("wave");
  if (!canvas) return;
  if (canvas.width !== Math.round(canvas.clientWidth * devicePixelRatio)) opened.peaks = null;
  const [to, width, height] = pen(canvas);
  opened.peaks ??= peaks(opened.sound, Math.max(1, Math.floor(width)));
  const lane = height / opened.peaks.length;
  opened.peaks.forEach((columns, channel) => {
    to.fillStyle = channel ? palette.out : palette.in;
    columns.forEach((peak, x) => { const tall = Math.max(1, peak * (lane - 8)); to.fillRect(x, lane * (channel + .5) - tall / 2, 1, tall); });
  });
  const at = position();
  to.fillStyle = palette.bad; to.fillRect(at / opened.sound.duration * width, 0, 1.5, height);
  $("playing").textContent = `${opened.one.stream_id} · ${clock(at)} of ${clock(opened.sound.duration)}${opened.peaks.length > 1 ? " · heard above, said below" : ""}`;
  const now = opened.lines.findLastIndex((line) => line.at <= at + .01);
  document.querySelectorAll("#transcript button").forEach((button, index) => button.classList.toggle("now", index === now));
  canvas.ariaValueNow = at.toFixed(1); canvas.ariaValueText = clock(at);
  if (state.node) requestAnimationFrame(drawWave);
}
function stopPlaying() {
  const { node, opened } = state;
  if (!node) return;
  opened.at = position(); state.node = null;
  node.onended = null; node.stop(); node.disconnect();
  $("play").ariaPressed = "false"; $("play").textContent = "Play";
}
async function startPlaying() {
  const { opened, context } = state;
  if (opened.at >= opened.sound.duration - .05) opened.at = 0;
  await context.resume();
  const node = state.node = context.createBufferSource();
  node.buffer = opened.sound; node.connect(context.destination);
  node.begun = context.currentTime;
  node.onended = () => { stopPlaying(); opened.at = 0; drawWave(); };
  node.start(0, opened.at);
  $("play").ariaPressed = "true"; $("play").textContent = "Pause";
  drawWave();
}
function seek(seconds) {
  const { opened, node } = state;
  if (!opened) return;
  stopPlaying();
  opened.at = Math.min(Math.max(0, seconds), opened.sound.duration);
  node ? startPlaying() : drawWave();
}
function save(one, file) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(file), download: `${one.stream_id}.ogg` });
  link.click(); setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
