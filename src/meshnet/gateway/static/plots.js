// How it went: lines over the last minutes, of the network and of each machine.

import { byId, h, reconcile, setAttribute, setText, svg } from "/dashboard/static/dom.js";
import { bytes, clock, count, decimal, milliseconds, percent } from "/dashboard/static/format.js";

const WIDTH = 400;
const HEIGHT = 130;
const PAD = { left: 6, right: 6, top: 10, bottom: 6 };
const RANGES = [[60, "1 min"], [180, "3 min"], [600, "10 min"]];
const LINES = 6;

// Each gives the lines at one point, by name; a line of one name is drawn filled.
const PLOTS = [
  { id: "pace", title: "Tokens a second", show: (v) => decimal(v), least: 1, of: (p) => ({ "": p.tokens_per_second }) },
  { id: "flight", title: "In flight, and steps that wait", show: count, least: 2,
    of: (p) => ({ "in flight": p.in_flight, waiting: p.queued_steps }) },
  { id: "busy", title: "Busy computing", show: percent, least: 1, most: 1, of: (p) => each(p, "busy") },
  { id: "kv", title: "KV cache in use", show: percent, least: 0.02, of: (p) => each(p, "kv") },
  { id: "memory", title: "Memory", show: bytes, least: 1 << 20, of: (p) => each(p, "memory_bytes") },
  { id: "link", title: "Round trip", show: milliseconds, least: 1, of: (p) => each(p, "round_trip_ms") },
];

const each = (point, name) => Object.fromEntries(Object.entries(point.nodes).map(([id, node]) => [id, node[name]]));

const word = (name) => called.get(name) ?? name;

let range = 180;
let kept = [];
let called = new Map();
let pointed = null;

export function wirePlots() {
  byId("ranges").replaceChildren(...RANGES.map(([seconds, word]) => h("button", {
    type: "button", "aria-pressed": String(seconds === range),
    on: { click: (event) => choose(seconds, event.currentTarget) },
  }, word)));
  byId("plots").replaceChildren(...PLOTS.map(makePlot));
}

function choose(seconds, button) {
  range = seconds;
  for (const other of byId("ranges").children) setAttribute(other, "aria-pressed", String(other === button));
  draw();
}

// `names` are what the machines are called, by their ids.
export function drawPlots(points, names) {
  kept = points;
  called = names;
  draw();
}

function makePlot(plot) {
  const figure = h("figure", { id: `plot-${plot.id}`, class: "plot" },
    h("figcaption", {}, h("span", { class: "plot-title" }, plot.title), h("span", { class: "plot-now" })),
    svg("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", tabindex: "0", role: "img",
      on: { pointermove: point, pointerleave: leave, keydown: walk, blur: leave },
    }),
    h("div", { class: "plot-foot" }, h("span", { class: "plot-from" }), h("ul", { class: "plot-lines" })));
  return figure;
}

function point(event) {
  const box = event.currentTarget.getBoundingClientRect();
  pointed = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
  draw();
}

function leave() {
  pointed = null;
  draw();
}

function walk(event) {
  const step = { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key];
  if (!step) return;
  event.preventDefault();
  pointed = Math.min(Math.max((pointed ?? 1) + step, 0), 1);
  draw();
}

function draw() {
  if (!kept.length) return;
  const end = kept.at(-1).at_unix;
  // A young history fills the plot all the same.
  const span = Math.min(range, Math.max(RANGES[0][0], end - kept[0].at_unix));
  const shown = kept.filter((it) => it.at_unix >= end - span);
  const aim = pointed === null ? null : end - span + pointed * span;
  for (const plot of PLOTS) drawPlot(byId(`plot-${plot.id}`), plot, shown, { end, span, aim });
}

function drawPlot(figure, plot, points, { end, span, aim }) {
  const rows = points.map((it) => [it.at_unix, plot.of(it)]);
  const names = [...new Set(rows.flatMap(([, values]) => Object.keys(values)))];
  const top = plot.most ?? nice(Math.max(plot.least, ...rows.flatMap(([, values]) => Object.values(values)
    .filter((value) => value !== null && value !== undefined))));
  const x = (at) => PAD.left + (1 - (end - at) / span) * (WIDTH - PAD.left - PAD.right);
  const y = (value) => HEIGHT - PAD.bottom - (Math.min(value, top) / top) * (HEIGHT - PAD.top - PAD.bottom);
  const nearest = aim === null ? rows.at(-1)
    : rows.reduce((best, row) => (Math.abs(row[0] - aim) < Math.abs(best[0] - aim) ? row : best));
  const canvas = figure.querySelector("svg");
  canvas.replaceChildren(
    ...[0, 0.5, 1].map((share) => svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: y(top * share), y2: y(top * share) })),
    ...names.flatMap((name, n) => lines(rows, name, n, x, y, names.length === 1)),
    aim === null ? null : svg("line", { class: "aim", x1: x(nearest[0]), x2: x(nearest[0]), y1: 0, y2: HEIGHT }),
  );
  const told = names.map((name) => `${word(name)} ${plot.show(nearest[1][name] ?? null)}`.trim()).join(", ");
  setAttribute(canvas, "aria-label", `${plot.title}: ${told}; arrow keys go back in time`);
  setText(figure.querySelector(".plot-now"), names.length === 1 ? plot.show(nearest[1][names[0]] ?? null) : `up to ${plot.show(top)}`);
  setText(figure.querySelector(".plot-from"), aim === null ? "" : clock(nearest[0]));
  reconcile(figure.querySelector(".plot-lines"), names.length > 1 ? names : [], (name) => name,
    () => h("li", {}, h("i"), h("span")), (item, name) => {
      setAttribute(item, "data-line", String(names.indexOf(name) % LINES));
      setText(item.lastElementChild, `${word(name)} ${plot.show(nearest[1][name] ?? null)}`);
    });
}

// A line has a break where a value isn't known.
function lines(rows, name, n, x, y, filled) {
  const runs = [[]];
  let before = null;
  for (const [at, values] of rows) {
    const value = values[name];
    const broken = value === null || value === undefined || (before !== null && at - before > 8);
    if (broken && runs.at(-1).length) runs.push([]);
    if (value !== null && value !== undefined) runs.at(-1).push([x(at), y(value)]);
    before = at;
  }
  return runs.filter((run) => run.length).flatMap((run) => {
    const path = run.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join("L");
    const line = svg("path", { class: `line line-${n % LINES}`, d: `M${path}${run.length === 1 ? "h0.1" : ""}` });
    if (!filled) return [line];
    const base = HEIGHT - PAD.bottom;
    return [svg("path", { class: "area", d: `M${run[0][0].toFixed(1)},${base}L${path}V${base}Z` }), line];
  });
}

function nice(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 5, 7.5, 10].map((it) => it * unit).find((it) => it >= value) ?? value;
}

// A small line without axes, of a value that `of` takes from each point.
export function sparkline(canvas, points, of) {
  const last = points.slice(-90).map(of).map((value) => value ?? 0);
  const top = Math.max(1e-9, ...last);
  const path = last.map((value, n) => `${((90 - last.length + n) / 89) * 100},${(25 - (19 * value) / top).toFixed(1)}`).join("L");
  canvas.replaceChildren(svg("path", { class: "line line-0", d: `M${path}` }));
}
