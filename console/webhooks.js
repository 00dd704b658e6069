// Webhooks that wait to be delivered: those that have failed first. They are sent again by themselves, and at once by a click.

import { $, ask, button, card, h, json, may, repeat, warn } from "./shared.js";

export const name = "webhooks", title = "Webhooks";

const EVERY_MS = 2000;

export function open(root, argument, signal) {
  const all = h("button", { id: "retry-all", hidden: true, onclick: () => again({}) }, "Send all again");
  root.append(card("Webhooks", h("div", { class: "title" }, h("span", { id: "webhook-counts", class: "faint", role: "status" }, "…"), all),
    h("div", { class: "tables" }, h("table", { class: "folds" }, h("thead", {}, h("tr", {}, ["Event", "About", "Tenant", "To", "Failed", "Last", "Next", ""].map((text, at) => h(at === 7 ? "td" : "th", { scope: at === 7 ? null : "col", class: at === 4 ? "num" : "" }, text)))), h("tbody", { id: "webhooks" })))));
  async function look() {
    try {
      const { count, waiting } = await json("/inspect/webhooks", "GET", undefined, { signal });
      const failing = waiting.filter((one) => one.attempts).length;
      $("webhook-counts").textContent = count ? `${count} wait, ${failing} of them ${failing === 1 ? "has" : "have"} failed before${count > waiting.length ? `; ${waiting.length} are shown` : ""}` : "None waits: all were delivered, or given up.";
      all.hidden = !may() || !count;
      const cell = (is, text, kind = "") => h("td", { data: { is }, class: kind }, text);
      const rows = waiting.map((one) => h("tr", {}, cell("", one.event || "?"), cell("about", one.about ?? ""), cell("tenant", one.tenant ?? ""), cell("to", one.host ?? "webhooks.url"), cell("failed", String(one.attempts), one.attempts ? "num bad" : "num"),
        cell("last", one.last ?? "not tried"), cell("next", one.due_in_ms ? `in ${Math.ceil(one.due_in_ms / 1000)} s` : "now"), h("td", {}, may() ? button("Send again", `Send ${one.event} about ${one.about ?? one.id} again`, () => again({ id: one.id })) : "")));
      const focused = document.activeElement?.ariaLabel;
      $("webhooks").replaceChildren(...rows);
      if (focused) [...$("webhooks").querySelectorAll("button")].find((one) => one.ariaLabel === focused)?.focus();
    } catch (error) { if (!signal.aborted) warn(`No webhooks: ${error.message}`); }
  }
  async function again(wish) {
    warn("");
    try { await ask("/inspect/webhooks/retry", "POST", wish); } catch (error) { warn(`Not sent again: ${error.message}`); }
    look();
  }
  repeat(EVERY_MS, look, signal);
}
