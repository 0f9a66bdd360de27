// The model as one strip from layer 0 to the last: who holds what, in which state.

import { h, reconcile, setAttribute, setText } from "/dashboard/static/dom.js";
import { bytes, layers, milliseconds, percent } from "/dashboard/static/format.js";
import { mark, STATES } from "/dashboard/static/states.js";

// Machines whose layers overlap lie in lanes below one another. Gives [node, lane] pairs.
export function lanes(nodes) {
  const ends = [];
  return [...nodes]
    .filter((node) => node.layers)
    .sort((a, b) => a.layers[0] - b.layers[0] || a.id.localeCompare(b.id))
    .map((node) => {
      let lane = ends.findIndex((end) => end <= node.layers[0]);
      if (lane < 0) lane = ends.length;
      ends[lane] = node.layers[1];
      return [node, lane];
    });
}

export function drawStrip(strip, state) {
  const { network, nodes, links } = state;
  strip.style.setProperty("--layers", network.total_layers);
  const placed = lanes(nodes).map(([node, lane]) => ({ kind: "held", key: node.id, node, lane }));
  const missing = gaps(nodes, network.total_layers).map((range) => ({
    kind: "gap", key: `gap ${range}`, range, lane: 0,
  }));
  reconcile(strip, [...placed, ...missing], (it) => it.key, make, (element, it) => {
    if (it.kind === "held") updateHeld(element, it.node, it.lane, links);
    else place(element, it.range, it.lane);
  });
}

// Ranges of layers that nobody holds.
export function gaps(nodes, total) {
  const held = new Array(total).fill(false);
  for (const { layers: range } of nodes) if (range) held.fill(true, range[0], range[1]);
  const found = [];
  for (let at = 0; at < total; at += 1) {
    if (held[at]) continue;
    const last = found.at(-1);
    if (last && last[1] === at) last[1] = at + 1;
    else found.push([at, at + 1]);
  }
  return found;
}

function make(it) {
  if (it.kind === "gap") {
    const text = `layers ${layers(it.range)} are held by nobody`;
    return h("div", { class: "seg gap", role: "listitem", title: text, "aria-label": text }, h("div", { class: "cells" }));
  }
  return h("div", { class: "seg", role: "listitem" },
    h("div", { class: "seg-top" }, h("span", { class: "seg-mark" }), h("span", { class: "seg-name" })),
    h("div", { class: "cells" }),
    h("div", { class: "seg-foot" }, h("span", { class: "seg-layers" }), h("span", { class: "seg-step" }),
      h("span", { class: "seg-seam" })));
}

function place(element, [start, end], lane) {
  element.style.setProperty("grid-column", `${start + 1} / ${end + 1}`);
  element.style.setProperty("grid-row", String(lane + 1));
  const cells = element.querySelector(".cells");
  if (cells.childElementCount !== end - start) {
    cells.replaceChildren(...Array.from({ length: end - start }, () => h("i")));
  }
}

function updateHeld(element, node, lane, links) {
  place(element, node.layers, lane);
  setAttribute(element, "class", `seg ${node.state}`);
  const word = STATES[node.state].word;
  const why = node.reason ? `: ${node.reason}` : "";
  setAttribute(element, "title", `${node.name}, layers ${layers(node.layers)}, ${word}${why}`);
  setAttribute(element, "aria-label", `${node.name} holds layers ${layers(node.layers)} and is ${word}`);
  setAttribute(element, "data-node", node.id);
  const glyph = element.querySelector(".seg-mark");
  if (glyph.dataset.state !== node.state) {
    glyph.dataset.state = node.state;
    glyph.replaceChildren(mark(node.state));
  }
  setText(element.querySelector(".seg-name"), node.name);
  setText(element.querySelector(".seg-layers"), layers(node.layers));
  setText(element.querySelector(".seg-step"), foot(node));
  setText(element.querySelector(".seg-seam"), seam(node, links));
  element.style.setProperty("--busy", node.busy ?? 0);
}

function foot(node) {
  if (node.progress !== null) return `${STATES[node.state].word}, ${percent(node.progress)}`;
  if (node.state !== "ready") return STATES[node.state].word;
  return node.step_ms === null ? "" : `${milliseconds(node.step_ms)} a token`;
}

// What goes over to the next machine now.
function seam(node, links) {
  const link = links.find((it) => it.source === node.id);
  return link && link.bytes_per_second !== null ? `${bytes(link.bytes_per_second)}/s →` : "";
}
