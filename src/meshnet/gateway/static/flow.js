// Tokens seen flowing: a dot for each, from the head through the layers to the tail, and back.
//
// A dot takes far longer than a token does, but its time is shared out between the machines as a
// token's is. Whoever prefers less motion gets none; the numbers say the same.

import { h } from "/dashboard/static/dom.js";
import { lanes } from "/dashboard/static/strip.js";

const THROUGH = 1100;
const BACK = 500;
const MOST_A_SECOND = 9;
const TRAIL = 14;
const STEP = 7;

export class Flow {
  constructor(strip) {
    this.strip = strip;
    this.canvas = h("canvas", { class: "flow", "aria-hidden": "true" });
    strip.parentElement.insertBefore(this.canvas, strip);
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.dots = [];
    this.seen = new Map();
    this.legs = [];
    this.frame = 0;
  }

  // `hueOf(id)` is the number of a request's hue.
  update(state, hueOf) {
    this.legs = legsOf(state);
    const fresh = new Map();
    for (const request of state.requests) {
      fresh.set(request.id, request.completion_tokens);
      const before = this.seen.get(request.id) ?? (request.over ? request.completion_tokens : 0);
      this.launch(request.completion_tokens - before, hueOf(request.id));
    }
    this.seen = fresh;
  }

  launch(tokens, hue) {
    if (this.still.matches || document.hidden || tokens < 1 || !this.legs.length) return;
    const shown = Math.min(tokens, MOST_A_SECOND);
    const now = performance.now();
    for (let n = 0; n < shown; n += 1) this.dots.push({ at: now + (1000 * n) / shown, hue });
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = 0;
    const context = this.prepare();
    const box = this.canvas.getBoundingClientRect();
    const stops = this.stops(box);
    const now = performance.now();
    this.dots = this.dots.filter((dot) => now < dot.at + THROUGH + BACK);
    const colours = getComputedStyle(this.canvas);
    for (const dot of this.dots) {
      const colour = colours.getPropertyValue(`--request-${dot.hue}`).trim();
      let before = null;
      for (let step = TRAIL; step >= 0; step -= 1) {
        const spot = position(stops, now - dot.at - step * STEP);
        if (spot && before && before.back === spot.back) tail(context, before, spot, colour, 1 - step / TRAIL);
        before = spot;
      }
      if (before) head(context, before, colour);
    }
    if (this.dots.length) this.frame = requestAnimationFrame(() => this.draw());
  }

  prepare() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const scale = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  }

  // Where on the canvas each leg begins and ends, and for which part of the way's time.
  stops(box) {
    let done = 0;
    const found = [];
    for (const leg of this.legs) {
      const segment = this.strip.querySelector(`[data-node="${CSS.escape(leg.id)}"] .cells`);
      if (segment) {
        const { left, right, top, bottom } = segment.getBoundingClientRect();
        found.push({
          from: done, to: done + leg.share, left: left - box.left, right: right - box.left,
          middle: (top + bottom) / 2 - box.top, bottom: bottom - box.top,
        });
      }
      done += leg.share;
    }
    return found;
  }
}

// One machine for each stretch of layers, with its share of a token's time.
function legsOf(state) {
  const chain = lanes(state.nodes).filter(([node, lane]) => lane === 0 && node.state !== "down").map(([node]) => node);
  const times = chain.map((node) => node.step_ms ?? node.layers[1] - node.layers[0]);
  const all = times.reduce((sum, time) => sum + time, 0);
  return chain.map((node, n) => ({ id: node.id, share: all ? times[n] / all : 1 / chain.length }));
}

function position(stops, age) {
  if (age < 0 || !stops.length) return null;
  if (age < THROUGH) {
    const at = age / THROUGH;
    const leg = stops.find((it) => at < it.to) ?? stops.at(-1);
    const part = (at - leg.from) / (leg.to - leg.from || 1);
    return { x: leg.left + part * (leg.right - leg.left), y: leg.middle, back: false };
  }
  const part = (age - THROUGH) / BACK;
  if (part > 1) return null;
  const [first, last] = [stops[0], stops.at(-1)];
  const eased = part * part * (3 - 2 * part);
  const bow = Math.sin(Math.PI * part) * 5;
  return { x: last.right + eased * (first.left - last.right), y: last.bottom + 3 + bow, back: true };
}

function tail(context, from, to, colour, strength) {
  context.globalAlpha = (to.back ? 0.45 : 0.85) * strength * strength;
  context.strokeStyle = colour;
  context.lineWidth = (to.back ? 3 : 9) * (0.25 + 0.75 * strength);
  context.beginPath();
  context.moveTo(from.x, from.y);
  context.lineTo(to.x, to.y);
  context.stroke();
}

function head(context, { x, y, back }, colour) {
  for (const [radius, fill, alpha] of [[back ? 2.4 : 5.5, colour, 1], [back ? 1 : 2.5, "#fff", back ? 0.7 : 1]]) {
    context.globalAlpha = alpha;
    context.fillStyle = fill;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.fill();
  }
}
