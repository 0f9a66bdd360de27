// Requests under way and over: how far they are, where their time goes hop by hop, and their end.

import { cancelRequest } from "/dashboard/static/api.js";
import { tellTrouble } from "/dashboard/static/dialogs.js";
import { byId, h, reconcile, setAttribute, setText } from "/dashboard/static/dom.js";
import { clock, count, decimal, known, milliseconds, plural, seconds } from "/dashboard/static/format.js";
import { PARTS, REQUEST_HUES } from "/dashboard/static/states.js";

const ENDS = { stop: "done", length: "token limit", tool_calls: "called a tool", left: "the client left" };

const hues = new Map();
let nextHue = 0;

// What machines are called, by their ids; of those that are gone too.
const called = new Map();

// The number of a request's hue; it keeps it for as long as it is shown.
export function hueOf(id) {
  if (!hues.has(id)) {
    hues.set(id, nextHue);
    nextHue = (nextHue + 1) % REQUEST_HUES;
  }
  return hues.get(id);
}

export function drawRequests(state) {
  const flying = state.requests.filter((it) => !it.over);
  const over = state.requests.filter((it) => it.over);
  for (const node of state.nodes) called.set(node.id, node.name);
  const shown = new Set(state.requests.map((request) => request.id));
  for (const id of hues.keys()) if (!shown.has(id)) hues.delete(id);
  reconcile(byId("in-flight"), flying, (it) => it.id, () => makeRequest(true), update);
  reconcile(byId("recent"), over, (it) => it.id, () => makeRequest(false), update);
  byId("no-requests").hidden = flying.length > 0;
  byId("recent-title").hidden = over.length === 0;
}

function makeRequest(flying) {
  const summary = [
    h("i", { class: "hue", "aria-hidden": "true" }), h("span", { class: "req-id mono" }),
    h("span", { class: "req-state" }), h("span", { class: "req-pace" }),
  ];
  if (flying) {
    return h("li", { class: "request flying" },
      h("div", { class: "req-head" }, ...summary,
        h("button", { type: "button", class: "small danger-quiet cancel" }, "Cancel")),
      h("div", { class: "req-detail" }, h("p", { class: "req-facts" }), h("div", { class: "falls" })));
  }
  return h("li", { class: "request" }, h("details", {}, h("summary", { class: "req-head" }, ...summary),
    h("div", { class: "req-detail" }, h("p", { class: "req-facts" }), h("div", { class: "falls" }))));
}

function update(item, request) {
  setAttribute(item, "data-hue", String(hueOf(request.id)));
  setText(item.querySelector(".req-id"), shortened(request.id));
  setAttribute(item.querySelector(".req-id"), "title", request.id);
  setText(item.querySelector(".req-state"), stateOf(request));
  setAttribute(item.querySelector(".req-state"), "class", `req-state is-${request.state}`);
  setText(item.querySelector(".req-pace"), known(request.tokens_per_second)
    ? `${decimal(request.tokens_per_second)} tokens/s` : seconds(request.seconds));
  setText(item.querySelector(".req-facts"), factsOf(request));
  const cancel = item.querySelector(".cancel");
  if (cancel) {
    setAttribute(cancel, "aria-label", `Cancel ${request.id}`);
    cancel.onclick = () => stop(cancel, request.id);
  }
  drawFalls(item.querySelector(".falls"), request);
}

async function stop(button, id) {
  button.disabled = true;
  try {
    await cancelRequest(id);
  } catch (error) {
    button.disabled = false;
    tellTrouble(`${id}: ${error.message}`);
  }
}

const shortened = (id) => (id.length > 22 ? `${id.slice(0, 18)}…` : id);

function stateOf(request) {
  if (request.state === "waiting") return "waiting for room";
  if (request.state === "prompt") return "reading the prompt";
  if (request.state === "answer") return "answering";
  if (request.state === "done") return ENDS[request.end] ?? request.end ?? "done";
  if (request.state === "cancelled") return ENDS[request.end] ?? "cancelled";
  return `failed: ${(request.end ?? "").replaceAll("_", " ")}`;
}

function factsOf(request) {
  const first = known(request.first_token_seconds)
    ? `, the first after ${seconds(request.first_token_seconds)}` : "";
  const pace = known(request.tokens_per_second) ? `, ${decimal(request.tokens_per_second)} a second` : "";
  return `${count(request.prompt_tokens)} of prompt → ${plural(request.completion_tokens, "token")}${pace}${first}; `
    + `${seconds(request.seconds)} since ${clock(request.began_unix)}`;
}

// Two waterfalls side by side: the prompt as a whole, and a token's way around the chain.
function drawFalls(box, request) {
  if (!request.hops.length) {
    if (request.over) setText(box, "No times: it ended before its nodes told them.");
    else box.replaceChildren();
    return;
  }
  const key = JSON.stringify([request.hops, request.exact]);
  if (box.dataset.shown === key) return;
  box.dataset.shown = key;
  const titled = (what, bars) => `${what}, ${request.exact ? "" : "about "}${milliseconds(reach(bars) || null)}`;
  const prompt = request.hops.map((hop) => ({ from: hop.prefill_start_ms, parts: hop.prefill_ms }));
  let from = 0;
  const token = request.hops.map((hop) => {
    const bar = { from, parts: hop.token_ms };
    from += sum(hop.token_ms);
    return bar;
  });
  box.replaceChildren(
    h("div", { class: "fall-grid" },
      h("span", {}), h("span", { class: "fall-title" }, titled("Prompt", prompt)),
      h("span", { class: "fall-title" }, titled("Each token", token)),
      ...request.hops.flatMap((hop, n) => [
        h("span", { class: "fall-node" }, nameOf(hop)),
        bar(prompt[n], reach(prompt), nameOf(hop)), bar(token[n], reach(token), nameOf(hop)),
      ])),
  );
}

const nameOf = (hop) => called.get(hop.node) ?? hop.node;

const sum = (parts) => PARTS.reduce((all, [part]) => all + parts[part], 0);

const reach = (bars) => Math.max(...bars.map((it) => it.from + sum(it.parts)));

function bar({ from, parts }, full, node) {
  const shown = PARTS.filter(([part]) => parts[part] > 0);
  const text = shown.map(([part, word]) => `${milliseconds(parts[part])} ${word}`).join(", ");
  const share = (value) => (full > 0 ? `${(100 * value) / full}%` : "0%");
  return h("span", { class: "fall", role: "img", "aria-label": `${node}: ${text || "nothing yet"}`, title: text },
    h("i", { class: "fall-gap", vars: { width: share(from) } }),
    ...shown.map(([part]) => h("i", { class: `part-${part}`, vars: { width: share(parts[part]) } })));
}
