// Puts the page together: what comes from the feed is shown, each part by a module of its own.

import { askKey, wireJoin } from "/dashboard/static/dialogs.js";
import { byId, h, reconcile, setText, svg } from "/dashboard/static/dom.js";
import { follow } from "/dashboard/static/feed.js";
import { bytes, count, decimal, known, layers, percent, plural } from "/dashboard/static/format.js";
import { Flow } from "/dashboard/static/flow.js";
import { drawNodes } from "/dashboard/static/nodes.js";
import { openPlan } from "/dashboard/static/plan.js";
import { setModel, wirePlayground } from "/dashboard/static/playground.js";
import { drawPlots, sparkline, wirePlots } from "/dashboard/static/plots.js";
import { drawRequests, hueOf } from "/dashboard/static/requests.js";
import { legendOfParts, legendOfStates } from "/dashboard/static/states.js";
import { drawStrip, gaps } from "/dashboard/static/strip.js";

const TILES = [
  { name: "Tokens a second", value: (s) => decimal(s.point.tokens_per_second), line: (p) => p.tokens_per_second },
  { name: "In flight", value: (s) => count(s.point.in_flight), line: (p) => p.in_flight },
  { name: "Steps that wait", value: (s) => count(s.point.queued_steps), line: (p) => p.queued_steps },
  { name: "KV cache, fullest", value: (s) => percent(fullest(s.point)), line: (p) => fullest(p) },
  { name: "Memory in all", value: (s) => bytes(total(s.nodes, "memory_bytes")), line: (p) => total(Object.values(p.nodes), "memory_bytes") },
];

const THEMES = { light: "☀", dark: "☾", system: "◑" };

const flow = new Flow(byId("strip"));
let planOpen = false;

function fullest(point) {
  const shares = Object.values(point.nodes).map((node) => node.kv).filter(known);
  return shares.length ? Math.max(...shares) : null;
}

function total(items, name) {
  const values = items.map((item) => item[name]).filter(known);
  return values.length ? values.reduce((sum, value) => sum + value, 0) : null;
}

function show(state, points) {
  setLive("on", "Live");
  document.body.classList.remove("stale");
  banners(state);
  if (!state.network) return;
  head(state);
  tiles(state, points);
  byId("legend").replaceChildren(...legendOfStates([...new Set(["ready", ...state.nodes.map((node) => node.state)])]));
  drawStrip(byId("strip"), state);
  flow.update(state, hueOf);
  drawNodes(state);
  drawRequests(state);
  drawPlots(points, new Map(state.nodes.map((node) => [node.id, node.name])));
  setModel(state.network.model);
  offer(state);
}

function lost(error) {
  setLive("lost", "Not connected");
  document.body.classList.add("stale");
  tell([{ key: "lost", text: `The connection was lost: ${error.message}. Trying again…`, bad: true }]);
}

function setLive(kind, text) {
  byId("live").className = `live ${kind}`;
  setText(byId("live"), text);
}

function head({ network, nodes }) {
  setText(byId("network-title"), network.model);
  document.title = `${network.model} · Meshnet`;
  const holding = nodes.filter((node) => node.layers).length;
  setText(byId("network-facts"), [
    network.architecture, plural(network.total_layers, "layer"), `on ${plural(holding, "machine")}`,
    `context ${count(network.context_length)}`, network.boundary ? `${network.boundary} between them` : "",
  ].filter(Boolean).join(" · "));
}

function banners({ network, nodes, problem }) {
  const found = [];
  if (problem) found.push({ key: "problem", text: `The network can't be looked at: ${problem}`, bad: true });
  if (network?.note) found.push({ key: "note", text: network.note });
  if (network) {
    for (const node of nodes.filter((it) => it.state === "down" || it.state === "failed")) {
      found.push({ key: node.id, text: `${node.name} is ${node.state}: layers ${layers(node.layers)} can't be computed by it. ${node.reason ?? ""}`, bad: true });
    }
    const missing = gaps(nodes, network.total_layers);
    if (missing.length) found.push({ key: "gaps", text: `Nobody holds layers ${missing.map(layers).join(", ")}.`, bad: true });
  }
  tell(found);
}

function tell(found) {
  const own = byId("banners");
  const others = [...own.children].filter((it) => it.getAttribute("role") === "alert");
  reconcile(own, found, (it) => it.key, () => h("p", {}), (element, it) => {
    element.className = it.bad ? "banner bad" : "banner";
    setText(element, it.text);
  });
  own.append(...others);
}

function tiles(state, points) {
  reconcile(byId("tiles"), TILES, (tile) => tile.name, (tile) => h("div", { class: "tile" },
    h("dt", {}, tile.name), h("dd", {}),
    svg("svg", { viewBox: "0 0 100 26", preserveAspectRatio: "none", "aria-hidden": "true" })), (element, tile) => {
    setText(element.querySelector("dd"), tile.value(state));
    sparkline(element.querySelector("svg"), points, tile.line);
  });
}

function offer({ operations, nodes }) {
  byId("join").hidden = !operations.includes("join");
  // What a machine has is known once it was heard of.
  const heard = nodes.some((node) => node.state !== "down");
  if (!operations.includes("what_if") || !heard || planOpen) return;
  planOpen = true;
  byId("plan").hidden = false;
  byId("plan-link").hidden = false;
  openPlan().catch((error) => setText(byId("plan-result"), error.message));
}

function wireTheme() {
  const button = byId("theme");
  const drawn = () => document.documentElement.dataset.theme ?? "system";
  const label = () => {
    setText(button, THEMES[drawn()]);
    button.title = `Colours: ${drawn() === "system" ? "as the system has them" : drawn()}`;
    button.setAttribute("aria-label", `Colour theme: ${drawn()}`);
  };
  button.addEventListener("click", () => {
    const names = Object.keys(THEMES);
    const next = names[(names.indexOf(drawn()) + 1) % names.length];
    if (next === "system") {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem("meshnet-theme");
    } else {
      document.documentElement.dataset.theme = next;
      localStorage.setItem("meshnet-theme", next);
    }
    label();
  });
  label();
}

byId("parts").replaceChildren(...legendOfParts());
wireTheme();
wireJoin();
wirePlayground();
wirePlots();
follow({ show, lost, askKey });
