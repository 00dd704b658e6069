// One session: what was heard and said over time, the waterfall of each turn with its slowest part, and every event. The
// server keeps the last of it; what this page has seen it keeps for as long as it is open.

import { $, button, clock, h, joined, json, may, ms, palette, pen, replace, ask, repeat, warn } from "./shared.js";

const EVERY_MS = 1000, SURE_MS = 4000, MAX_EVENTS = 1000, MAX_TURNS = 50, MAX_LEVELS = 6000;
const LANES = ["heard", "voice", "words", "turns", "LLM", "speech", "played"];

export function openTimeline(root, id, signal) {
  const session = { version: 0, entries: new Map(), levels: { heard: new Map(), played: new Map() }, level: 0, levelMs: 100, nowMs: 0, row: null, at: 0 };
  const view = { from: null, span: 30_000 };
  root.append(
    h("section", { class: "card session", "aria-labelledby": "session-title" },
      h("div", { class: "title" }, h("h2", { id: "session-title" }, "Session"), h("div", { class: "buttons" },
        h("a", { class: "button", href: "#/sessions" }, "All sessions"), h("a", { class: "button", href: `#/log/${id}` }, "Its log"), h("button", { id: "end", hidden: true, onclick: end }, "End"))),
      h("dl", { id: "facts" })),
    h("section", { class: "card", "aria-labelledby": "lanes-title" },
      h("div", { class: "title" }, h("h2", { id: "lanes-title" }, "Timeline"), h("div", { class: "buttons" },
        h("label", { class: "row" }, "Span ", h("select", { id: "span", onchange: () => { view.span = Number($("span").value); draw(); } }, [[10, "10 s"], [30, "30 s"], [120, "2 min"], [600, "10 min"]].map(([value, text]) => h("option", { value: String(value * 1000), selected: value === 30 }, text)))),
        button("◀", "Earlier", () => shift(-.5)), button("▶", "Later", () => shift(.5)), h("button", { id: "follow", "aria-pressed": "true", onclick: () => { view.from = null; draw(); } }, "Live"))),
      h("canvas", { id: "lanes", role: "img", "aria-label": "Levels heard and played, voice activity, words, ends of turns, answers and speech over time; the list of events below says the same" }),
      h("p", { class: "legend faint" }, [["in", "heard, words"], ["good", "voice activity"], ["bad", "end of a turn, cut off"], ["think", "language model, paler until its first token"], ["out", "speech, played"]].map(([kind, text]) => h("span", {}, h("i", { class: `k-${kind}` }), text)))),
    h("div", { class: "columns" },
      h("section", { class: "card", "aria-labelledby": "falls-title" }, h("div", { class: "title" }, h("h2", { id: "falls-title" }, "Turns"), h("span", { class: "faint" }, "from the end of speech")),
        h("div", { id: "waterfall", tabIndex: 0, role: "region", "aria-labelledby": "falls-title" })),
      h("section", { class: "card", "aria-labelledby": "events-title" }, h("div", { class: "title" }, h("h2", { id: "events-title" }, "Events"), h("label", { class: "row" }, h("input", { id: "partials", type: "checkbox", onchange: () => events() }), " partials")),
        h("ol", { id: "events", class: "list scroll", tabIndex: 0, "aria-labelledby": "events-title" }))));

  async function look() {
    try {
      const part = await json(`/inspect/sessions/${encodeURIComponent(id)}?version=${session.version}&level=${session.level}`, "GET", undefined, { signal });
      Object.assign(session, { row: part.session, version: part.version, nowMs: part.now_ms, levelMs: part.level_ms, at: performance.now() });
      for (const entry of part.entries) session.entries.set(entry.id, entry);
      while (session.entries.size > MAX_EVENTS) session.entries.delete(session.entries.keys().next().value);
      for (const lane of ["heard", "played"]) {
        part[lane].forEach((level, at) => { if (level) session.levels[lane].set(part.first_level + at, level); });
        while (session.levels[lane].size > MAX_LEVELS) session.levels[lane].delete(session.levels[lane].keys().next().value);
      }
      // The last one may still grow.
      session.level = Math.max(0, part.first_level + part.heard.length - 1);
      facts(); if (part.entries.length) { events(); falls(); }
      draw();
    } catch (error) {
      if (signal.aborted) return;
      warn(error.status === 404 ? "This session is not there any more: sessions that have ended are shown for ten minutes." : `No timeline: ${error.message}`);
    }
  }
  repeat(EVERY_MS, look, signal);
  new ResizeObserver(() => draw()).observe($("lanes"));
  $("lanes").onwheel = (event) => { if (event.shiftKey || event.deltaX) { event.preventDefault(); shift(Math.sign(event.deltaX || event.deltaY) * .1); } };

  function facts() {
    const one = session.row;
    $("session-title").textContent = one.stream_id;
    document.title = `${one.stream_id} · Vivavoce console`;
    const rows = [["State", one.doing], ["Lasts", clock(((one.ended_at ?? Date.now()) - one.started_at) / 1000)], ["Began", new Date(one.started_at).toLocaleTimeString()], ["Turns", one.turns], ["Last answer", ms(one.answer_ms)],
      ["Errors", one.errors], ["Fallbacks", one.fallbacks], ["Hears with", joined(one.stt, one.language)], ["Speaks with", one.tts], ["Led by", one.led && "a language model"], ["Room", one.room], ["Tenant", one.tenant]];
    $("facts").replaceChildren(...rows.filter(([, value]) => value !== null && value !== undefined && value !== false && value !== "").map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value)))));
    $("end").hidden = !may() || one.ended_at !== null;
  }
  // A session that was ended does not come back by a second click, so the first one only asks.
  async function end() {
    if ($("end").textContent === "End") { $("end").textContent = "Sure?"; setTimeout(() => { if ($("end")) $("end").textContent = "End"; }, SURE_MS); return; }
    try { await ask(`/sessions/${encodeURIComponent(session.row.stream_id)}?tenant=${encodeURIComponent(session.row.tenant ?? "")}`, "DELETE"); look(); } catch (error) { warn(`It does not end: ${error.message}`); }
  }
  const sorted = () => [...session.entries.values()].sort((a, b) => a.id - b.id);

  function events() {
    const partials = $("partials").checked;
    const shown = sorted().filter((entry) => partials || !isPartial(entry)).reverse().slice(0, 300);
    replace($("events"), shown.map((entry) => h("li", { class: entry.from_client ? "up" : "" },
      h("span", { class: "faint num" }, `${(entry.at_ms / 1000).toFixed(2)} s`), h("span", { class: "who" }, `${entry.from_client ? "→ " : "← "}${label(entry)}${entry.times > 1 ? ` ×${entry.times}` : ""}`), h("span", {}, says(entry)))), "Nothing has happened yet.");
  }

  function falls() {
    const turns = waterfalls(sorted(), session.row.turns, session.row.silence_ms).slice(-MAX_TURNS).reverse();
    const made = turns.map((turn) => {
      const whole = Math.max(turn.played ?? 0, turn.steps.at(-1)?.to ?? 0, 1);
      const step = (name, from, to, kind, slowest) => {
        const bar = h("i", { class: kind });
        bar.style.left = `${100 * from / whole}%`; bar.style.width = `${100 * (to - from) / whole}%`;
        return h("div", { class: slowest ? "step slowest" : "step" }, h("span", {}, name), h("span", { class: "lane" }, bar), h("span", { class: "num" }, ms(to - from)));
      };
      const first = turn.steps.at(-1)?.to;
      return h("div", { class: "fall" },
        h("div", { class: "title" }, h("h3", {}, `Turn ${turn.number}`), h("span", { class: "faint" }, joined(turn.answered ? `answered after ${ms(first)}` : "not answered", turn.interrupted && "interrupted", turn.slowest && `slowest: ${turn.slowest.name}`))),
        turn.heard && h("p", { class: "faint" }, turn.heard),
        turn.steps.map((one) => step(one.name, one.from, one.to, "", one === turn.slowest)),
        turn.played !== null && first !== undefined && turn.played >= first && step("is played", first, turn.played, "k-out", false));
    });
    $("waterfall").replaceChildren(...(made.length ? made : [h("p", { class: "faint" }, "No turn has been answered yet.")]));
  }

  function shift(by) {
    const from = view.from ?? session.nowMs - view.span;
    view.from = Math.max(0, from + by * view.span);
    if (view.from + view.span >= session.nowMs) view.from = null;
    draw();
  }
  function draw() {
    const canvas = $("lanes");
    if (!canvas || signal.aborted) return;
    $("follow").ariaPressed = String(view.from === null);
    const [to, width, height] = pen(canvas), left = 52, lane = (height - 22) / LANES.length;
    const from = view.from ?? Math.max(0, session.nowMs - view.span), x = (at) => left + (at - from) / view.span * (width - left);
    const middle = (name) => lane * (LANES.indexOf(name) + .5);
    for (const name of LANES) { to.fillStyle = palette.faint; to.textAlign = "left"; to.fillText(name, 0, middle(name)); to.fillStyle = palette.line; to.fillRect(left, lane * (LANES.indexOf(name) + 1), width - left, .5); }
    const tick = [1, 2, 5, 10, 20, 60, 120].find((seconds) => view.span / 1000 / seconds <= Math.max(3, width / 110)) ?? 120;
    for (let second = Math.ceil(from / 1000 / tick) * tick; x(second * 1000) <= width; second += tick) {
      to.fillStyle = palette.line; to.fillRect(x(second * 1000), 0, .5, height - 18);
      to.fillStyle = palette.faint; to.textAlign = x(second * 1000) > width - 20 ? "right" : "center"; to.fillText(clock(second), Math.max(left + 10, x(second * 1000)), height - 8);
    }
    to.save(); to.beginPath(); to.rect(left, 0, width - left, height); to.clip();
    for (const [name, colour] of [["heard", "in"], ["played", "out"]]) {
      to.fillStyle = palette[colour];
      const wide = Math.max(1, session.levelMs / view.span * (width - left) - .5);
      for (const [number, level] of session.levels[name]) {
        const at = number * session.levelMs;
        if (at < from - session.levelMs || at > from + view.span) continue;
        const tall = Math.max(1, (lane - 4) * Math.max(0, 1 + Math.log10(level / 255) / 2.4));
        to.fillRect(x(at), middle(name) - tall / 2, wide, tall);
      }
    }
    const box = (name, begin, end, colour, text) => {
      const a = Math.max(left - 2, x(begin)), b = Math.min(width + 2, x(end ?? session.nowMs));
      if (b < left || a > width) return;
      to.fillStyle = palette[colour]; to.fillRect(a, middle(name) - lane * .28, Math.max(2, b - a), lane * .56);
      if (text && b - a > 24) { to.save(); to.beginPath(); to.rect(a, 0, b - a - 3, height); to.clip(); to.fillStyle = palette.card; to.textAlign = "left"; to.fillText(text, a + 4, middle(name)); to.restore(); }
    };
    const spans = spansOf(sorted());
    for (const one of spans.voice) box("voice", one.from, one.to, "good");
    for (const one of spans.words) box("words", one.from, one.to, "in", one.text);
    // Until its first token a model is waited for.
    for (const one of spans.model) { to.globalAlpha = .35; box("LLM", one.from, one.first ?? one.to, "think"); to.globalAlpha = 1; if (one.first !== null) box("LLM", one.first, one.to, "think", one.text); }
    for (const one of spans.speech) { box("speech", one.from, one.to, "out", one.text); if (one.cut) { to.fillStyle = palette.bad; to.fillRect(x(one.to) - 2, middle("speech") - lane * .4, 3, lane * .8); } }
    for (const one of spans.ends) { if (x(one.at) < left) continue; to.fillStyle = palette.bad; to.fillRect(Math.round(x(one.at)), middle("turns") - lane * .4, 3, lane * .8); to.textAlign = "left"; to.fillText(one.text, x(one.at) + 4, middle("turns")); }
    to.restore();
  }
}

const isPartial = ({ message }) => message.type === "stt_result" && !message.is_final || message.type === "tts_progress" || message.type === "response_text";

function label({ message }) {
  if (message.type === "stt_result") return message.is_final ? "final" : "partial";
  if (message.type === "vad_event") return message.event;
  return message.type;
}
/** What ended a turn: its model is another one than that which answers. */
function endedBy({ reason }) { return reason === "model" ? "turn model" : reason; }
/** What an event says, for people. */
export function says({ message }) {
  switch (message.type) {
    case "stt_result": return joined(`“${message.transcript}”`, message.is_speech_final && "ends the turn", message.confidence != null && `${Math.round(message.confidence * 100)} %`);
    case "vad_event": return joined(endedBy(message), message.silence_duration_ms != null && `${message.silence_duration_ms} ms of silence`);
    case "speak": return `“${message.text}”`;
    case "tts_interrupted": return joined(`after ${ms(message.played_ms)}`, message.heard_text && `heard: “${message.heard_text}”`);
    case "tts_playback_complete": return joined(message.id, ms(message.duration_ms));
    case "response_done": return joined(message.status, message.text && `“${message.text}”`, message.usage && `${message.usage.input_tokens} tokens in, ${message.usage.output_tokens} out`);
    case "turn_metrics": return joined(`turn ${message.turn}`, `final ${ms(message.final_ms)}`, `first text ${ms(message.first_text_ms)}`, `first sound ${ms(message.first_sound_ms)}`, `played ${ms(message.played_ms)}`);
    case "error": case "warning": return joined(message.code, message.message);
    case "provider_event": return joined(message.kind, message.provider, message.state, message.message);
    case "draining": return message.deadline ? `until ${new Date(message.deadline).toLocaleTimeString()}` : "";
    case "ready": return "";
    default: return Object.entries(message).filter(([name, value]) => name !== "type" && name !== "timestamp" && value !== null).map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
  }
}

/** What lasts, with where it begins and ends in milliseconds of the session. */
export function spansOf(entries) {
  const voice = [], words = [], model = [], speech = [], ends = [], said = new Map();
  let partials = null;
  for (const { message, at_ms, until_ms, from_client } of entries) {
    if (from_client) { if (message.type === "speak") said.set(message.id, message.text); continue; }
    if (message.type === "vad_event") {
      if (message.event === "speech_start" || message.event === "speech_resumed") { if (voice.at(-1)?.to !== null || !voice.length) voice.push({ from: at_ms, to: null }); }
      else if (voice.at(-1)?.to === null) voice.at(-1).to = at_ms;
      if (message.event === "turn_end") ends.push({ at: at_ms, text: endedBy(message) ?? "" });
    }
    if (message.type === "stt_result" && message.transcript) {
      if (!message.is_final) { partials ??= { from: at_ms, to: until_ms, text: "" }; Object.assign(partials, { to: until_ms, text: message.transcript }); if (words.at(-1) !== partials) words.push(partials); }
      else { if (partials) Object.assign(partials, { to: at_ms, text: message.transcript }); else words.push({ from: Math.max(0, at_ms - 150), to: at_ms, text: message.transcript }); partials = null; }
    }
    if (message.type === "response_started") model.push({ from: at_ms, first: null, to: null, id: message.id, text: "" });
    if (message.type === "response_text") { const last = model.findLast((one) => one.id === message.id); if (last) { last.first ??= at_ms; last.to = until_ms; } }
    if (message.type === "response_done") {
      const last = model.findLast((one) => one.id === message.id), spoken = speech.findLast((one) => one.id === message.id);
      if (last) { last.to ??= at_ms; last.text = message.usage ? `${message.usage.output_tokens} tokens` : ""; }
      if (spoken) spoken.text ||= message.text ?? "";
    }
    if (message.type === "tts_started") speech.push({ from: at_ms, to: null, id: message.id, text: said.get(message.id) ?? "", cut: false });
    if (["tts_playback_complete", "tts_interrupted"].includes(message.type) || message.type === "error" && message.played_ms != null) {
      const last = speech.findLast((one) => one.id === message.id && one.to === null);
      if (last) Object.assign(last, { to: at_ms, cut: message.type !== "tts_playback_complete" });
    }
  }
  return { voice, words, model, speech, ends };
}

/** The steps from the end of speech to the answer, of each turn that `turn_metrics` tells of; the longest is the slowest. */
export function waterfalls(entries, turnsInAll, silenceMs) {
  const ends = entries.filter(({ message }) => message.type === "vad_event" && message.event === "turn_end");
  return entries.filter(({ message }) => message.type === "turn_metrics").map(({ message }) => {
    // Numbers count from the session's first turn, which may be forgotten.
    const end = ends[message.turn - 1 - (turnsInAll - ends.length)], silence = end?.message.silence_duration_ms ?? null;
    const spoken = end ? end.at_ms - (silence ?? 0) : null;
    const model = spoken === null ? null : entries.find(({ message: other, at_ms }) => other.type === "response_text" && at_ms >= spoken);
    // The pause is as long as the setting wants it; what the end of the turn waits for after that is the recogniser's final.
    const pause = silence === null || silenceMs === null ? silence : Math.min(silence, silenceMs), heard = Math.max(message.final_ms ?? 0, silence ?? 0) || null;
    const marks = [["pause", pause], ["recogniser", heard], ["language model", model && message.first_text_ms !== null ? Math.min(model.at_ms - spoken, message.first_text_ms) : null], [model ? "first sentence" : "agent", message.first_text_ms], ["voice", message.first_sound_ms]];
    const steps = [];
    let from = 0;
    for (const [name, at] of marks.filter(([, at]) => at !== null && at !== undefined)) { steps.push({ name, from, to: Math.max(from, at) }); from = Math.max(from, at); }
    const final = end && entries.findLast(({ message: other, at_ms }) => other.type === "stt_result" && other.is_final && other.is_speech_final && at_ms <= end.at_ms + 3000 && at_ms >= spoken - 60_000 && (other.turn_transcript || other.transcript));
    const slowest = steps.reduce((most, one) => one.to - one.from > (most ? most.to - most.from : 0) ? one : most, null);
    return { number: message.turn, steps, slowest, answered: message.first_sound_ms !== null, played: message.played_ms, interrupted: message.interrupted, heard: final?.message.turn_transcript ?? final?.message.transcript ?? "" };
  });
}
