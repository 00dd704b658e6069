// The last lines of the log: of the server, or of one session.

import { $, card, h, isOperator, json, repeat, warn } from "./shared.js";

export const name = "log", title = "Log";

const EVERY_MS = 1000, MAX_LINES = 1000;

export async function open(root, argument, signal) {
  const which = h("select", { id: "log-session", onchange: () => { location.hash = which.value ? `#/log/${which.value}` : "#/log"; } }, isOperator() ? h("option", { value: "" }, "the whole server") : h("option", { value: "" }, "choose one"));
  const level = h("select", { id: "log-level", onchange: begin }, ["info", "warn", "error"].map((name) => h("option", {}, name)));
  const search = h("input", { id: "find-line", type: "search", placeholder: "words", oninput: () => { for (const row of $("lines").children) row.hidden = !wanted(row); } });
  root.append(card("Log", h("div", { class: "filters" }, h("label", {}, "Of ", which), h("label", {}, "At least ", level), h("label", {}, "Find ", search)), h("p", { class: "faint", id: "log-says", role: "status" }, ""), h("ol", { id: "lines", tabIndex: 0, "aria-label": "Lines" })));
  const wanted = (row) => search.value.toLowerCase().split(/\s+/).every((word) => row.textContent.toLowerCase().includes(word));
  let after = 0;
  function begin() { after = 0; $("lines").replaceChildren(); look(); }
  async function look() {
    if (!argument && !isOperator()) { $("log-says").textContent = "Choose a session."; return; }
    try {
      const query = new URLSearchParams({ level: level.value, after: String(after), ...(argument && { session: argument }) });
      const { lines } = await json(`/inspect/log?${query}`, "GET", undefined, { signal });
      const box = $("lines"), follows = box.scrollTop + box.clientHeight > box.scrollHeight - 30;
      for (const one of lines) {
        if (one.number <= after) continue;
        after = one.number;
        const row = h("li", { class: one.level }, `${new Date(one.at).toISOString().slice(11, 23)} `, h("b", {}, one.level.padEnd(5)), ` ${one.text} `, h("span", { class: "faint" }, one.target));
        row.hidden = !wanted(row); box.append(row);
      }
      while (box.childElementCount > MAX_LINES) box.firstElementChild.remove();
      $("log-says").textContent = box.childElementCount ? "" : "Nothing was logged.";
      if (follows) box.scrollTop = box.scrollHeight;
    } catch (error) { if (!signal.aborted) warn(error.status === 404 ? "This session is not there any more." : `No log: ${error.message}`); }
  }
  try {
    const { sessions } = await json("/inspect/sessions", "GET", undefined, { signal });
    which.append(...sessions.reverse().slice(0, 300).map((one) => h("option", { value: String(one.id) }, `${one.stream_id}${one.tenant ? ` (${one.tenant})` : ""}${one.ended_at ? ", ended" : ""}`)));
    if (argument) which.value = argument;
  } catch { /* The list is a convenience. */ }
  if (!signal.aborted) repeat(EVERY_MS, look, signal);
}
