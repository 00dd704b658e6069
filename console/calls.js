// Telephone calls while they last and for a minute after, calls that were refused or have failed, each with the ladder of its
// SIP messages, and the accounts at PBXs and carriers that the server keeps registered. The server streams sessions alone:
// calls change at other times than those, so they are looked at again and again for as long as they are shown.

import { $, button, card, clock, h, joined, json, line, repeat, replace, small, warn } from "./shared.js";

export const name = "calls", title = "Calls";

const EVERY_MS = 2000, MOST_LISTED = 50;

export function open(root, argument, signal) {
  // The call whose ladder is shown.
  let opened = argument ?? null, shown = null;
  root.append(card("Calls", h("ul", { id: "calls", class: "list" })),
    h("div", { class: "columns" }, card("Refused and failed", h("p", { class: "faint" }, "Inbound calls that never came, and calls that came to nothing, the last one first."), h("ul", { id: "refused", class: "list scroll" })),
      card("Registrations", h("p", { class: "faint" }, "Accounts at which calls for this server arrive."), h("ul", { id: "registrations", class: "list scroll" }))));

  async function look() {
    try {
      const [sessions, { traces }] = await Promise.all([json("/sessions", "GET", undefined, { signal }), signalling()]);
      const seen = new Map(traces.map((one) => [one.trace_id, one]));
      shown = seen.has(opened) ? await ladder(opened) : null;
      const called = new Set(sessions.calls.map((one) => one.sip_call_id));
      replace($("calls"), sessions.calls.map((one) => call(one, seen)));
      const failed = traces.filter((one) => one.state === "failed" && !called.has(one.trace_id)).map((one) => [one.at, () => item(`failed ${one.participant_identity ?? "?"} in ${one.room_name ?? "no room"}`,
        joined(one.direction, one.status, one.reason?.replaceAll("_", " "), new Date(one.at).toLocaleTimeString()), one.trace_id, seen)]);
      const refused = (sessions.refused_calls ?? []).map((one) => [one.at, () => item(`refused ${one.from || "?"} to ${one.to || "?"}`,
        joined(`${one.status}: ${one.reason}`, `from ${one.source}`, one.times > 1 && `${one.times} times`, new Date(one.at).toLocaleTimeString()), one.trace_id, seen)]);
      replace($("refused"), [...failed, ...refused].sort(([one], [other]) => other - one).slice(0, MOST_LISTED).map(([, made]) => made()));
      replace($("registrations"), (sessions.sip_registrations ?? []).map((one) => h("li", {}, line(`${one.user} at ${one.registrar}`, small(joined(
        one.status ? `${one.state} (${one.status})` : one.state, one.expires_at && `until ${new Date(one.expires_at).toLocaleTimeString()}`))))));
    } catch (error) { if (!signal.aborted) warn(`No calls: ${error.message}`); }
  }
  // Calls are shown without their ladders, too.
  async function signalling() {
    try { return await json("/sip/traces", "GET", undefined, { signal }); }
    catch (error) { if (!signal.aborted) warn(`No signalling: ${error.message}`); return { traces: [] }; }
  }
  // One that is forgotten meanwhile has none any more.
  async function ladder(id) {
    try { return await json(`/sip/traces/${encodeURIComponent(id)}`, "GET", undefined, { signal }); }
    catch (error) { if (error.status === 404) return null; throw error; }
  }
  // A line with its ladder, where there is one.
  function item(text, facts, id, seen) {
    const messages = seen.get(id)?.messages, isOpen = shown?.trace_id === id;
    const open = messages > 0 && button("Signalling", `Signalling of ${id}`, () => { opened = isOpen ? null : id; look(); });
    if (open) { open.ariaExpanded = String(isOpen); open.ariaPressed = String(isOpen); }
    return h("li", {}, line(text, small(facts), open || ""), isOpen && rungs(shown));
  }
  function call(one, seen) {
    const media = one.media, answered = one.answered_at && ((one.ended_at ?? Date.now()) - one.answered_at) / 1000;
    const first = (name, after) => after == null ? `${name} nothing yet` : `first ${name} after ${Math.round(after)} ms`;
    const made = item(`${one.participant_identity} in ${one.room_name}`, joined(one.direction, one.status, one.cause?.replaceAll("_", " "), answered && clock(answered), one.sip_call_id), one.sip_call_id, seen);
    if (media) {
      const row = line(media.codec, small(joined(
        media.encrypted && "encrypted", `${media.packets_received} received, ${media.packets_lost} lost`, `${media.packets_sent} sent, ${media.packets_lost_there} lost there`, media.packets_relayed > 0 && `${media.packets_relayed} relayed`,
        `jitter ${media.jitter_ms.toFixed(1)} ms`, first("received", media.first_packet_received_ms), first("sent", media.first_packet_sent_ms))));
      row.classList.add("track"); made.firstChild.after(row);
    }
    return made;
  }
  repeat(EVERY_MS, look, signal);
}

/** The messages of a call, in order: when, which way, the first line, and with whom. */
function rungs({ trace_id, ladder, left_out }) {
  const began = ladder[0]?.at ?? 0;
  const made = ladder.map((one) => {
    const isAnswer = /^\d/.test(one.line), fails = isAnswer && one.line[0] >= "4";
    return h("li", {}, h("span", { class: "faint num" }, `${((one.at - began) / 1000).toFixed(3)} s`), h("span", { class: one.direction }, one.direction === "sent" ? "→ sent" : "← received"),
      h("span", {}, h("span", { class: fails && "bad" }, one.line), small(joined(isAnswer && one.cseq, `${one.transport} ${one.remote}`, one.note, one.times > 1 && `${one.times} times`))));
  });
  if (left_out) made.push(h("li", {}, h("span", {}), h("span", {}), h("span", { class: "faint" }, `${left_out} more between the first and the last ones`)));
  return h("ol", { class: "ladder", "aria-label": `Messages of ${trace_id}` }, made);
}
