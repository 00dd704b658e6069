// The settings in force and where each comes from. Secrets do not leave the server.

import { $, card, h, json, warn } from "./shared.js";

export const name = "settings", title = "Settings";

export async function open(root, argument, signal) {
  let all = [];
  const search = h("input", { type: "search", id: "find-setting", placeholder: "key, value, meaning", oninput: show });
  const changed = h("input", { type: "checkbox", id: "changed-settings", onchange: show });
  root.append(card("Settings", h("div", { class: "filters" }, h("label", {}, "Find ", search), h("label", { class: "row" }, changed, " only those that are set")), h("p", { class: "faint", id: "setting-count", role: "status" }, "…"),
    h("div", { class: "tables" }, h("table", { class: "folds" }, h("thead", {}, h("tr", {}, ["Key", "Value", "From", "Meaning"].map((text) => h("th", { scope: "col" }, text)))), h("tbody", { id: "all-of-them" })))));
  function show() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const list = all.filter((one) => (!changed.checked || one.origin !== "default") && words.every((word) => `${one.key} ${one.env} ${one.value} ${one.meaning}`.toLowerCase().includes(word)));
    $("setting-count").textContent = `${list.length} of ${all.length}`;
    $("all-of-them").replaceChildren(...list.map((one) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, one.key)), h("td", {}, one.value ? h("code", {}, one.value) : h("span", { class: "faint" }, "–")),
      h("td", { data: { is: "from" }, class: one.origin === "default" ? "faint" : "" }, one.origin), h("td", { class: "faint" }, one.meaning, one.reloaded ? " Read again on SIGHUP." : ""))));
  }
  try { all = (await json("/inspect/settings", "GET", undefined, { signal })).settings; show(); } catch (error) { if (!signal.aborted) warn(`No settings: ${error.message}`); }
}
