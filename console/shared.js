// What all views share: building elements (text is only ever set as text), asking the server, and telling of trouble.

export const $ = (id) => document.getElementById(id);
export const now = () => performance.now();

/** An element with properties, and children: elements, or texts. */
export function h(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") made.className = value;
    else if (name === "data") Object.assign(made.dataset, value);
    else if (name.startsWith("on") || name in made) made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export const clock = (seconds) => {
  const whole = Math.max(0, Math.floor(seconds)), two = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  return hours ? `${hours}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}` : `${Math.floor(whole / 60)}:${two(whole % 60)}`;
};
export const ms = (value) => value === null || value === undefined ? "–" : `${Math.round(value).toLocaleString("en")} ms`;
export const bytes = (n) => n < 1 << 20 ? `${Math.ceil(n / 1024)} KiB` : `${(n / (1 << 20)).toFixed(n < 100 << 20 ? 1 : 0)} MiB`;
export const small = (text) => h("small", { class: "faint" }, ` ${text}`);
export const joined = (...parts) => parts.filter(Boolean).join(" · ");

/** A card with a heading. */
export function card(title, ...children) {
  const id = `title-${title.toLowerCase().replace(/\W+/g, "-")}`;
  return h("section", { class: "card", "aria-labelledby": id }, h("div", { class: "title" }, h("h2", { id }, title)), ...children);
}
/** A line of a list: texts at the left, buttons at the right. */
export function line(...parts) {
  const isButton = (part) => part instanceof HTMLButtonElement || part instanceof HTMLAnchorElement;
  return h("div", { class: "title" }, h("span", {}, parts.filter((part) => !isButton(part))), h("span", { class: "buttons" }, parts.filter(isButton)));
}
export function button(text, label, onclick) { return h("button", { ariaLabel: label, onclick }, text); }

/** Puts items into a list. What has not changed is left alone, so that whoever is about to press a button finds it there. */
export function replace(list, items, none = "There are none.") {
  if (!items.length) items = [h("li", { class: "faint" }, none)];
  const before = [...list.children];
  if (items.length === before.length && items.every((item, at) => item.outerHTML === before[at].outerHTML)) return;
  // What is pressed has to be there when it is let go, or it was never clicked.
  if (list.matches(":active")) return void addEventListener("pointerup", () => setTimeout(replace, 0, list, items, none), { once: true });
  const focused = list.contains(document.activeElement) && document.activeElement.ariaLabel;
  list.replaceChildren(...items);
  if (focused) [...list.querySelectorAll("button, a")].find((one) => one.ariaLabel === focused)?.focus();
}

// ---- Trouble
const watchers = new Set();
export function whenWarned(tell) { watchers.add(tell); }
export function warn(text) {
  $("alert").textContent = text; $("alert").hidden = !text;
  if (text) for (const tell of watchers) tell(text);
}

// ---- The server
const KEPT = "vivavoce-token";
export const caller = { role: "", tenant: null, read_only: false, authentication: false, version: "" };
export function token() { return sessionStorage.getItem(KEPT) ?? ""; }
export function setToken(text) { if (text) sessionStorage.setItem(KEPT, text); else sessionStorage.removeItem(KEPT); }
/** Whether the caller may change things. */
export const may = () => !caller.read_only;
export const isOperator = () => caller.role === "operator";

export async function ask(path, method = "GET", wish, more = {}) {
  const headers = { ...more.headers };
  if (token()) headers.authorization = `Bearer ${token()}`;
  if (wish) headers["content-type"] = "application/json";
  const answer = await fetch(path, { method, headers, body: wish && JSON.stringify(wish), signal: more.signal });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw Object.assign(new Error(`${answer.status}: ${body.message ?? ""}`), { status: answer.status });
}
export const json = async (...wish) => (await ask(...wish)).json();

/** Has something done again and again for as long as a view is shown, one after the other. */
export function repeat(every, what, signal) {
  let timer;
  const turn = async () => {
    if (signal.aborted) return;
    if (!document.hidden) await what();
    if (!signal.aborted) timer = setTimeout(turn, every);
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  turn();
}

// ---- Colours, for canvases: a computed colour is resolved, the custom property would still say light-dark().
export const palette = {};
const painters = new Set();
export function whenPainted(draw) { painters.add(draw); }
export function paint() {
  const probe = document.body.appendChild(h("i"));
  for (const name of ["faint", "line", "in", "out", "good", "bad", "think", "ink", "card"]) { probe.style.color = `var(--${name})`; palette[name] = getComputedStyle(probe).color; }
  probe.remove();
  for (const draw of painters) draw();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);

/** The pen of a canvas, as large as it is shown. */
export function pen(canvas) {
  const scale = devicePixelRatio, width = canvas.clientWidth, height = canvas.clientHeight, made = canvas.getContext("2d");
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  made.setTransform(scale, 0, 0, scale, 0, 0); made.clearRect(0, 0, width, height);
  made.font = "11px system-ui, sans-serif"; made.textBaseline = "middle"; made.fillStyle = palette.faint;
  return [made, width, height];
}
