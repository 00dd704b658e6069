// How the vendors did in the last quarter of an hour, and the models of local speech.

import { $, bytes, card, clock, h, json, repeat, warn } from "./shared.js";

const EVERY_MS = 3000, TASKS = { stt: "hears", tts: "speaks", llm: "answers", "": "" };

const table = (id, heads) => h("div", { class: "tables" }, h("table", { class: "folds" }, h("thead", {}, h("tr", {}, heads.map(([text, kind]) => h("th", { scope: "col", class: kind ?? "" }, text)))), h("tbody", { id })));
const cell = (is, text, kind = "") => h("td", { data: { is }, class: kind }, text);

export const vendors = {
  name: "vendors", title: "Vendors",
  open(root, argument, signal) {
    root.append(card("Vendors", h("p", { class: "faint" }, "The last 15 minutes, at most 200 requests each. Delays are the middle one and the one that nineteen of twenty are not above."),
      table("vendors", [["Vendor"], ["Does"], ["Health"], ["Requests", "num"], ["Errors"], ["Took over", "num"], ["First audio or open", "num"], ["To the end", "num"]])));
    const delays = (pair) => pair ? `${pair[0].toLocaleString("en")} / ${pair[1].toLocaleString("en")} ms` : "–";
    async function look() {
      try {
        const list = (await json("/inspect/vendors", "GET", undefined, { signal })).vendors;
        // Those that are used first.
        const rank = { failing: 0, good: 1, idle: 2 };
        list.sort((a, b) => rank[a.state] - rank[b.state]);
        $("vendors").replaceChildren(...list.map((one) => {
          const errors = Object.entries(one.errors).map(([kind, times]) => `${kind} ×${times}`).join(", ");
          return h("tr", {}, h("th", { scope: "row" }, one.provider), cell("does", TASKS[one.task] ?? one.task), cell("", one.state, one.state === "failing" ? "bad" : one.state === "good" ? "good" : "faint"), cell("requests", String(one.requests), "num"),
            cell("errors", errors ? `${errors}, the last ${clock(one.last_error_ago_ms / 1000)} ago` : "", "bad"), cell("took over", String(one.took_over), "num"), cell("begins", delays(one.began_ms), "num"), cell("ends", delays(one.finished_ms), "num"));
        }));
      } catch (error) { if (!signal.aborted) warn(`No vendors: ${error.message}`); }
    }
    repeat(EVERY_MS, look, signal);
  },
};

export const models = {
  name: "models", title: "Models",
  async open(root, argument, signal) {
    root.append(card("Models", h("p", { class: "faint" }, "Of local speech. ", h("code", {}, "vivavoce models fetch NAME"), " installs one."),
      table("models", [["Model"], ["For"], ["State"], ["Languages"], ["Size", "num"], ["Licence"], ["What it is"]])));
    try {
      const list = (await json("/inspect/models", "GET", undefined, { signal })).models;
      list.sort((a, b) => (b.state === "installed") - (a.state === "installed"));
      $("models").replaceChildren(...list.map((one) => h("tr", {}, h("th", { scope: "row" }, one.name), cell("for", one.task), cell("", one.state, one.state === "installed" ? "good" : one.state === "damaged" ? "bad" : "faint"),
        cell("languages", one.languages.length > 6 ? `${one.languages.length} languages` : one.languages.join(", ").replace("*", "many")), cell("size", bytes(one.size), "num"), cell("licence", one.licence), cell("", one.about, "faint"))));
    } catch (error) { if (!signal.aborted) warn(`No models: ${error.message}`); }
  },
};
