// The states of machines and the parts of time: each has a colour, a shape and a word, so that none
// is told by colour alone.

import { h } from "/dashboard/static/dom.js";

export const STATES = {
  ready: { word: "ready", mark: "●" },
  loading: { word: "loading", mark: "◐" },
  draining: { word: "draining", mark: "◒" },
  spare: { word: "spare", mark: "○" },
  failed: { word: "failed", mark: "▲" },
  down: { word: "down", mark: "✕" },
};

export const PARTS = [
  ["queue", "waiting for the engine"],
  ["engine", "computing"],
  ["codec", "packing"],
  ["wait", "on the way"],
];

// One hue for each request under way, by when it came; they come round again.
export const REQUEST_HUES = 6;

export const mark = (state) =>
  h("span", { class: `mark ${state}`, "aria-hidden": "true" }, STATES[state].mark);

export function legendOfStates(states) {
  return states.map((state) => h("li", {}, h("i", { class: `swatch ${state}` }), STATES[state].word));
}

export const legendOfParts = () =>
  PARTS.map(([part, word]) => h("li", {}, h("i", { class: `swatch part-${part}` }), word));
