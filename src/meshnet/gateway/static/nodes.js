// The machines, one a row, with what can be asked of them.

import { post } from "/dashboard/static/api.js";
import { confirm, tellTrouble } from "/dashboard/static/dialogs.js";
import { byId, h, reconcile, setAttribute, setText } from "/dashboard/static/dom.js";
import { bytes, count, known, layers, milliseconds, percent } from "/dashboard/static/format.js";
import { mark, STATES } from "/dashboard/static/states.js";

const COLUMNS = ["Layers", "Sessions", "Waiting", "KV cache", "Memory", "Busy", "Step", "Round trip"];

const ASKED = {
  drain: (name) => ({
    title: `Drain ${name}?`, yes: "Drain it",
    text: "It finishes the answers it has a part in and takes no new ones.",
  }),
  undrain: (name) => ({ title: `Use ${name} again?`, yes: "Use it", text: "It may get layers and new answers again." }),
  remove: (name) => ({
    title: `Remove ${name}?`, yes: "Remove it",
    text: "Its layers go to others at once. Answers it has a part in are taken up by them, or fail.",
  }),
};

export function drawNodes(state) {
  const actions = Object.keys(ASKED).filter((it) => state.operations.includes(it));
  byId("actions-head").hidden = !actions.length;
  const ordered = [...state.nodes].sort(
    (a, b) => (a.layers ? a.layers[0] : Infinity) - (b.layers ? b.layers[0] : Infinity) || a.id.localeCompare(b.id),
  );
  reconcile(byId("nodes"), ordered, (node) => node.id, make, (row, node) => update(row, node, state, actions));
}

function make(node) {
  // On narrow screens a row is no table row to the browser; the roles say that it still is one.
  return h("tr", { role: "row" },
    h("th", { scope: "row", role: "rowheader" }, h("span", { class: "node-mark" }), h("span", { class: "node-id" }, node.name),
      h("span", { class: "node-state" }), h("span", { class: "node-why" })),
    ...COLUMNS.map((name) => h("td", { role: "cell", "data-label": name, class: name === "KV cache" || name === "Busy" ? "metered" : "" },
      h("span", { class: "value" }),
      name === "KV cache" || name === "Busy" ? h("span", { class: "meter", "aria-hidden": "true" }, h("i")) : null)),
    h("td", { role: "cell", "data-label": "Actions", class: "actions" }));
}

function update(row, node, state, actions) {
  setAttribute(row, "class", node.state);
  const glyph = row.querySelector(".node-mark");
  if (glyph.dataset.state !== node.state) {
    glyph.dataset.state = node.state;
    glyph.replaceChildren(mark(node.state));
  }
  setText(row.querySelector(".node-state"), node.state === "ready" ? "" : STATES[node.state].word);
  setText(row.querySelector(".node-why"), node.reason ?? "");
  const link = state.links.find((it) => !it.source && it.target === node.id);
  const kv = known(node.kv_used) && node.kv_limit ? node.kv_used / node.kv_limit : null;
  const sessions = known(node.open_sessions)
    ? `${count(node.open_sessions)}${known(node.max_sessions) ? ` / ${count(node.max_sessions)}` : ""}` : count(null);
  const values = [
    node.layers ? layers(node.layers) : "none", sessions, count(node.queued_steps), percent(kv),
    bytes(node.memory_bytes), percent(node.busy), milliseconds(node.step_ms), milliseconds(link ? link.round_trip_ms : null),
  ];
  row.querySelectorAll("td .value").forEach((cell, n) => setText(cell, values[n]));
  const [kvMeter, busyMeter] = row.querySelectorAll(".meter i");
  kvMeter.style.setProperty("--share", kv ?? 0);
  busyMeter.style.setProperty("--share", node.busy ?? 0);
  const last = row.lastElementChild;
  last.hidden = !actions.length;
  // A drained machine can be used again instead of being drained.
  const fitting = actions.filter((it) => it !== (node.state === "draining" && actions.includes("undrain") ? "drain" : "undrain"));
  reconcile(last, fitting, (it) => it, (it) => button(it, node), (it) => {
    it.disabled = it.dataset.key === "drain" && node.state !== "ready";
  });
}

const WORDS = { drain: "Drain", undrain: "Use again", remove: "Remove" };

function button(action, node) {
  return h("button", {
    type: "button", class: action === "remove" ? "small danger-quiet" : "small",
    "aria-label": `${WORDS[action]} ${node.name}`, on: { click: () => act(action, node) },
  }, WORDS[action]);
}

async function act(action, { id, name }) {
  if (!(await confirm(ASKED[action](name)))) return;
  try {
    await post(`/dashboard/nodes/${encodeURIComponent(id)}/${action}`);
  } catch (error) {
    tellTrouble(`${name}: ${error.message}`);
  }
}
