// Rooms with who is in them, agent workers and their jobs. The server streams sessions alone, and people come and go without
// one, so both are looked at again and again for as long as they are shown.

import { $, ask, button, card, h, joined, json, line, may, repeat, replace, small, warn } from "./shared.js";

export const name = "rooms", title = "Rooms";

const EVERY_MS = 2000, SURE_MS = 4000;

export function open(root, argument, signal) {
  let opened = argument ?? null, sure = null;
  root.append(h("div", { class: "columns" },
    card("Rooms", h("ul", { id: "rooms", class: "list scroll" }), h("div", { id: "room", hidden: true }, h("div", { class: "title" }, h("h3", { id: "room-name" }), h("span", { id: "room-facts", class: "faint" })), h("ul", { id: "people", class: "list", "aria-labelledby": "room-name" }))),
    card("Agent workers", h("ul", { id: "workers", class: "list scroll" }))));

  async function rooms() {
    const list = (await json("/rtc/rooms", "GET", undefined, { signal })).rooms;
    replace($("rooms"), list.map((one) => {
      const pressed = String(opened === one.name);
      const choose = button("", `Show room ${one.name}`, () => { opened = opened === one.name ? null : one.name; look(); });
      choose.ariaPressed = pressed;
      choose.append(one.name, small(`${one.num_participants} in it · since ${new Date(one.creation_time * 1000).toLocaleTimeString()}`));
      return h("li", {}, choose);
    }));
    if (!list.some((one) => one.name === opened)) opened = null;
    if (opened) people(await json(`/rtc/rooms/${encodeURIComponent(opened)}`, "GET", undefined, { signal }));
    $("room").hidden = !opened;
  }
  function people(room) {
    $("room-name").textContent = room.name;
    $("room-facts").textContent = joined(room.sid, room.max_participants && `${room.max_participants} at most`, room.active_recording && "is recorded");
    replace($("people"), room.participants.map((one) => {
      const who = one.name && one.name !== one.identity ? `${one.name} (${one.identity})` : one.identity, asks = sure === one.sid;
      const remove = may() && button(asks ? "Sure?" : "Remove", `Remove ${one.identity}`, () => removeOne(room, one));
      if (remove && asks) remove.className = "bad";
      return h("li", {}, line(who, small(joined(one.kind !== "STANDARD" && one.kind.toLowerCase(), one.state.toLowerCase(), `since ${new Date(one.joined_at * 1000).toLocaleTimeString()}`)), remove || ""),
        one.tracks.map((track) => {
          const does = track.muted ? "Unmute" : "Mute";
          const act = may() && button(does, `${does} ${track.sid} of ${one.identity}`, () => change("POST", "/rtc/participant/mute", { room_name: room.name, participant_identity: one.identity, track_sid: track.sid, muted: !track.muted }));
          const row = line(track.name || track.source.toLowerCase(), small(joined(track.mime_type, track.muted && "muted")), act || "");
          row.classList.add("track");
          return row;
        }));
    }), "Nobody is in it.");
  }
  // Somebody who is sent out does not come back by a second click, so the first one only asks.
  function removeOne(room, one) {
    if (sure !== one.sid) { sure = one.sid; setTimeout(() => { if (sure === one.sid) sure = null; }, SURE_MS); return look(); }
    sure = null;
    change("DELETE", "/rtc/participant", { room_name: room.name, participant_identity: one.identity });
  }
  async function change(method, path, body) {
    warn("");
    try { await ask(path, method, body); } catch (error) { warn(`${body.participant_identity}: ${error.message}`); }
    look();
  }

  async function workers() {
    const { agent_workers, agent_jobs } = await json("/sessions", "GET", undefined, { signal });
    const job = (one) => {
      const row = line(one.participant_identity ? `${one.participant_identity} in ${one.room_name}` : one.room_name, small(joined(one.state, one.agent_identity, one.job_id)));
      row.classList.add("track");
      return row;
    };
    const items = agent_workers.map((one) => h("li", {}, line(one.agent_name || "(unnamed)", small(joined(one.status, `load ${Math.round(100 * one.load)} %`, `for each ${one.job_type}`, one.namespace, one.version, one.worker_id))),
      agent_jobs.filter((other) => other.worker_id === one.worker_id).map(job)));
    const known = new Set(agent_workers.map((one) => one.worker_id)), without = agent_jobs.filter((one) => !known.has(one.worker_id));
    if (without.length) items.push(h("li", {}, line("Without a worker"), without.map(job)));
    replace($("workers"), items);
  }
  let failed = false;
  async function look() {
    for (const part of [rooms, workers]) {
      try { await part(); } catch (error) {
        if (signal.aborted) return;
        if (!failed) warn(`No ${part.name}: ${error.message}`);
        failed = true;
        replace($(part.name), [], part === rooms ? "This server shows no rooms." : "There are none.");
      }
    }
  }
  repeat(EVERY_MS, look, signal);
}
