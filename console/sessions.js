// The live list of all sessions the caller may see. However many there are, only the rows that can be seen exist, and they
// change at most once a second, with the events that the server sends for all who watch.

import { $, ask, clock, h, ms, warn } from "./shared.js";
import { openTimeline } from "./timeline.js";

export const name = "sessions", title = "Sessions";

const AGAIN_MS = 2000, MORE_ROWS = 6;
const ORDERS = {
  newest: ["newest first", (a, b) => b.started_at - a.started_at || b.id - a.id],
  oldest: ["oldest first", (a, b) => a.started_at - b.started_at || a.id - b.id],
  slowest: ["slowest answer first", (a, b) => (b.answer_ms ?? -1) - (a.answer_ms ?? -1) || b.id - a.id],
  troubled: ["most errors first", (a, b) => b.errors + b.fallbacks - a.errors - a.fallbacks || b.id - a.id],
};
const STATES = { "": "all", live: "live", ended: "ended", hears: "heard", answers: "answering", speaks: "speaking", troubled: "with errors" };
const known = new Map();

export function open(root, argument, signal) {
  if (argument) return openTimeline(root, argument, signal);
  known.clear();
  const rows = [];
  let order = [], drawn = false;
  root.append(h("section", { class: "card", "aria-labelledby": "sessions-title" },
    h("div", { class: "title" }, h("h2", { id: "sessions-title" }, "Sessions"), h("span", { class: "faint", id: "counts", role: "status" }, "…")),
    h("div", { class: "filters" },
      h("label", {}, "Find ", h("input", { id: "find-session", type: "search", placeholder: "name, tenant, room, vendor", oninput: sort })),
      h("label", {}, "Show ", h("select", { id: "which", onchange: sort }, Object.entries(STATES).map(([value, text]) => h("option", { value }, text)))),
      h("label", {}, "Order ", h("select", { id: "order", onchange: sort }, Object.entries(ORDERS).map(([value, [text]]) => h("option", { value }, text))))),
    h("p", { class: "faint", id: "no-sessions", hidden: true }, ""),
    h("div", { id: "list", tabIndex: 0, role: "region", "aria-label": "Sessions, arrow keys go from one to the next", onscroll: soon, onkeydown: move },
      h("div", { role: "table", "aria-label": "Sessions", id: "sessions" },
        h("div", { role: "rowgroup", id: "head" }, h("div", { class: "head", role: "row" }, ["State", "Session", "Lasts", "Turns", "Answer", "Errors", "Hears → speaks", "Room"].map((text, at) => h("span", { role: "columnheader", class: at > 1 && at < 6 ? "num" : at === 7 ? "room" : "" }, text)))),
        h("div", { id: "space", role: "rowgroup" })))));
  const list = $("list"), space = $("space");
  new ResizeObserver(soon).observe(list);

  function matches(one) {
    const which = $("which").value;
    if (which === "live" ? one.ended_at !== null : which === "troubled" ? !one.errors && !one.fallbacks : which && one.doing !== which) return false;
    const text = [one.stream_id, one.tenant, one.room, one.stt, one.tts, one.language].join(" ").toLowerCase();
    return $("find-session").value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }
  function sort() {
    order = [...known.values()].filter(matches).sort(ORDERS[$("order").value][1]);
    const live = [...known.values()].filter((one) => one.ended_at === null).length;
    $("counts").textContent = `${live} live, ${known.size - live} ended lately${order.length < known.size ? `, ${order.length} shown` : ""}`;
    $("no-sessions").hidden = order.length > 0;
    $("no-sessions").textContent = known.size ? "None of the sessions is such a one." : "There are no sessions. One begins when a client connects to /ws; “Talk” is one, too.";
    $("sessions").setAttribute("aria-rowcount", String(order.length + 1));
    soon();
  }
  function soon() { if (!drawn) { drawn = true; requestAnimationFrame(draw); } }
  function draw() {
    drawn = false;
    if (signal.aborted) return;
    rows.height ??= 0;
    const one = rows[0] ?? make();
    rows.height = one.element.offsetHeight || rows.height || 40;
    space.style.height = `${order.length * rows.height}px`;
    const first = Math.max(0, Math.floor(list.scrollTop / rows.height) - MORE_ROWS);
    const wanted = Math.min(order.length - first, Math.ceil(list.clientHeight / rows.height) + 2 * MORE_ROWS);
    while (rows.length < wanted) make();
    // A row stays where it is as long as it shows the same session, so that focus and clicks do not lose it.
    const free = new Set(rows), by = new Map(rows.map((row) => [row.id, row]));
    const places = order.slice(first, first + wanted).map((session, at) => {
      const row = by.get(session.id);
      if (row) free.delete(row);
      return [session, first + at, row];
    });
    const spare = [...free];
    for (const [session, at, row] of places) fill(row ?? spare.pop(), session, at);
    for (const row of spare) { row.element.hidden = true; row.id = null; }
  }
  function make() {
    const cell = (kind, is) => h("span", { role: "cell", class: kind, data: is ? { is } : {} });
    const link = h("a", {}), cells = [cell("doing"), h("span", { role: "cell", class: "name" }, link), cell("num", "lasts"), cell("num", "turns"), cell("num", "answer"), cell("num", "errors"), cell("voices"), cell("room")];
    const tenant = h("small", { class: "faint" });
    cells[1].append(tenant);
    const row = { element: h("div", { role: "row", class: "row" }, cells), link, tenant, cells, id: null, texts: [] };
    space.append(row.element); rows.push(row);
    return row;
  }
  function set(row, at, node, text) { if (row.texts[at] !== text) { row.texts[at] = text; node.textContent = text; } }
  function fill(row, one, at) {
    row.element.hidden = false;
    if (row.at !== at || row.tall !== rows.height) { row.at = at; row.tall = rows.height; row.element.style.transform = `translateY(${at * rows.height}px)`; row.element.setAttribute("aria-rowindex", String(at + 2)); }
    if (row.id !== one.id) { row.id = one.id; row.link.href = `#/sessions/${one.id}`; }
    const [doing, , lasts, turns, answer, errors, voices, room] = row.cells;
    if (row.doing !== one.doing) { row.doing = one.doing; doing.className = `doing ${one.doing}`; }
    set(row, 0, doing, one.doing);
    set(row, 1, row.link, one.stream_id); set(row, 8, row.tenant, one.tenant ? ` ${one.tenant}` : "");
    set(row, 2, lasts, clock(((one.ended_at ?? Date.now()) - one.started_at) / 1000));
    set(row, 3, turns, String(one.turns));
    set(row, 4, answer, ms(one.answer_ms));
    const trouble = one.errors + one.fallbacks;
    set(row, 5, errors, String(trouble));
    errors.classList.toggle("bad", trouble > 0);
    set(row, 6, voices, `${one.stt ?? "–"} → ${one.led ? "model → " : ""}${one.tts ?? "–"}`);
    set(row, 7, room, one.room ?? "");
  }
  // Arrow keys go from session to session, also to those that cannot be seen yet.
  function move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || !order.length) return;
    event.preventDefault();
    const row = rows.find((one) => one.link === document.activeElement);
    const to = Math.min(order.length - 1, Math.max(0, row ? row.at + step : step > 0 && step !== Infinity ? 0 : step === Infinity ? order.length - 1 : 0));
    const top = to * rows.height;
    if (top < list.scrollTop) list.scrollTop = top;
    const seen = list.clientHeight - $("head").offsetHeight;
    if (top + rows.height > list.scrollTop + seen) list.scrollTop = top + rows.height - seen;
    draw();
    rows.find((one) => one.at === to && !one.element.hidden)?.link.focus({ preventScroll: true });
  }
  function take(event, { sessions, gone }) {
    if (event === "sessions") known.clear();
    for (const one of sessions) known.set(one.id, one);
    for (const id of gone) known.delete(id);
    sort();
  }
  sort();
  // How long they last changes also where nothing happens.
  const second = setInterval(soon, 1000);
  signal.addEventListener("abort", () => clearInterval(second));
  watch(take, signal);
}

// A stream of events needs a header with a token, which EventSource cannot send.
async function watch(take, signal) {
  while (!signal.aborted) {
    try {
      const answer = await ask("/inspect/sessions", "GET", undefined, { signal, headers: { accept: "text/event-stream" } });
      $("live").textContent = "live";
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) {
          const [, kind, data] = /^event: (\w+)\ndata: (.*)$/.exec(event) ?? [];
          if (kind) take(kind, JSON.parse(data));
        }
      }
    } catch (error) {
      if (signal.aborted) break;
      $("live").textContent = "not live";
      if (error.status) { warn(`No sessions: ${error.message}`); if (error.status < 500) break; }
    }
    await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
  $("live").textContent = "";
}
