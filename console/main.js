// The frame: who asks, which view is shown. A view is `{ name, title, open(root, argument, signal) }`; what it repeats ends
// with the signal. Addresses are `#/view/argument`.

import { $, ask, caller, h, isOperator, json, paint, palette, setToken, token, warn } from "./shared.js";
import * as sessions from "./sessions.js";
import * as rooms from "./rooms.js";
import * as calls from "./calls.js";
import * as recordings from "./recordings.js";
import * as webhooks from "./webhooks.js";
import * as vendors from "./vendors.js";
import * as settings from "./settings.js";
import * as log from "./log.js";
import * as talk from "./talk.js";

const VIEWS = [sessions, rooms, calls, recordings, webhooks, vendors.vendors, vendors.models, settings, log, talk];
const FOR_OPERATORS = new Set(["vendors", "settings"]);
let shown = null;

function links() {
  const views = VIEWS.filter((view) => isOperator() || !FOR_OPERATORS.has(view.name));
  $("views").replaceChildren(...views.map((view) => h("li", {}, h("a", { href: `#/${view.name}`, data: { view: view.name } }, view.title))));
}

function route() {
  const [, name, argument] = /^#\/(\w+)(?:\/(.*))?$/.exec(location.hash) ?? [];
  const view = VIEWS.find((one) => one.name === name) ?? sessions;
  shown?.abort();
  shown = new AbortController();
  warn("");
  $("talk").hidden = view !== talk; $("view").hidden = view === talk;
  $("view").replaceChildren();
  for (const link of $("views").querySelectorAll("a")) {
    if (link.dataset.view === view.name) { link.ariaCurrent = "page"; link.scrollIntoView({ inline: "center", block: "nearest" }); } else link.removeAttribute("aria-current");
  }
  document.title = `${view.title} · Vivavoce console`;
  view.open($("view"), argument === undefined ? undefined : decodeURIComponent(argument), shown.signal);
}

// Who asks decides what is shown; where a token is needed, it is asked for.
async function begin() {
  try {
    Object.assign(caller, await json("/inspect/caller"));
    const what = caller.authentication ? (caller.tenant === null ? "operator" : `tenant ${caller.tenant}`) : "no token needed";
    $("caller").textContent = caller.read_only ? `${what}, read-only` : what;
    $("caller").hidden = false;
  } catch (error) {
    Object.assign(caller, { role: "", tenant: null, read_only: true });
    $("caller").hidden = true;
    links(); route();
    if (error.status === 401) { if (!$("token-dialog").open) askForToken(token() ? "This token is not accepted." : ""); } else warn(`The server does not answer: ${error.message}`);
    return;
  }
  links(); route(); talk.prepare();
}
function askForToken(trouble) {
  if (trouble) $("token-says").textContent = trouble;
  $("token").value = token();
  $("token-dialog").showModal();
}
$("sign-in").onclick = () => askForToken("");
$("token-dialog").onclose = () => {
  if ($("token-dialog").returnValue !== "use") return;
  setToken($("token").value.trim());
  begin();
};
addEventListener("hashchange", () => { route(); $("main").focus({ preventScroll: true }); });

// For whoever looks at the page with its developer tools.
globalThis.vivavoce = { $, palette, ask, recordings: recordings.state, position: recordings.position, settings: $("settings").elements, levels: talk.levels, get session() { return talk.session; } };
paint(); begin();
