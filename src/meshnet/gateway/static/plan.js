// What if: machines to add, change and take away, and what the model would do on them.

import { get, post } from "/dashboard/static/api.js";
import { byId, h } from "/dashboard/static/dom.js";
import { bytes, decimal, layers, milliseconds, percent, plural } from "/dashboard/static/format.js";

const GIB = 2 ** 30;
const PATIENCE = 350;

let now = null;
let asked = null;
let baseline = null;
let timer = 0;
let turn = 0;

export async function openPlan() {
  byId("plan-reset").addEventListener("click", reset);
  byId("plan-form").addEventListener("submit", (event) => event.preventDefault());
  await reset();
}

async function reset() {
  now = await get("/dashboard/plan");
  asked = structuredClone(now);
  baseline = await post("/dashboard/plan", now);
  drawForm();
  show(baseline);
}

function later() {
  clearTimeout(timer);
  timer = setTimeout(ask, PATIENCE);
}

async function ask() {
  turn += 1;
  const mine = turn;
  let answer;
  try {
    answer = await post("/dashboard/plan", asked);
  } catch (error) {
    answer = { problem: error.message, stages: [] };
  }
  // A later question may have been answered first.
  if (mine === turn) show(answer);
}

function drawForm() {
  byId("plan-form").replaceChildren(
    h("table", { class: "plan-machines" },
      h("caption", { class: "visually-hidden" }, "Machines that may be"),
      h("thead", {}, h("tr", {}, ...["Machine", "Memory, GiB", "Speed, GB/s"].map((word) => h("th", { scope: "col" }, word)),
        h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Remove")))),
      h("tbody", {}, ...asked.machines.map(machineRow))),
    h("button", { type: "button", id: "plan-add", on: { click: addMachine } }, "+ Another machine"),
    h("div", { class: "plan-terms" },
      field("Context, tokens", number(asked.context_tokens, 1, 1, (value) => { asked.context_tokens = Math.round(value); }), "plan-context"),
      field("Readers at once", number(asked.sessions, 1, 1, (value) => { asked.sessions = Math.round(value); }), "plan-sessions"),
      field("Delay, ms", number(+(asked.link.latency_seconds * 1e3).toFixed(3), 0, "any", (value) => { asked.link.latency_seconds = value / 1e3; }), "plan-delay"),
      field("Network, Mbit/s", number(asked.link.bytes_per_second * 8e-6, 0.001, "any", (value) => { asked.link.bytes_per_second = value / 8e-6; }), "plan-network"),
      field("Placed for", objective(), "plan-objective")),
  );
}

function machineRow(machine, index) {
  const label = (what) => ({ "aria-label": `${what} of machine ${index + 1}` });
  return h("tr", {},
    h("td", {}, h("input", {
      ...label("Name"), value: machine.name, maxlength: "64",
      on: { input: (event) => { machine.name = event.target.value || `machine ${index + 1}`; later(); } },
    })),
    h("td", {}, number(+(machine.memory_bytes / GIB).toFixed(2), 0, "any", (value) => { machine.memory_bytes = Math.round(value * GIB); }, label("Memory in GiB"))),
    h("td", {}, number(+(machine.bytes_per_second / 1e9).toFixed(2), 0.001, "any", (value) => { machine.bytes_per_second = value * 1e9; }, label("Speed in GB/s"))),
    h("td", {}, h("button", {
      type: "button", class: "quiet icon", "aria-label": `Take ${machine.name} away`, disabled: asked.machines.length === 1,
      on: { click: () => removeMachine(index) },
    }, "✕")));
}

function addMachine() {
  const like = asked.machines.at(-1);
  asked.machines.push({ ...like, name: `new ${asked.machines.length + 1 - now.machines.length}` });
  drawForm();
  later();
  byId("plan-add").focus();
}

function removeMachine(index) {
  asked.machines.splice(index, 1);
  drawForm();
  later();
  byId("plan-add").focus();
}

function number(value, min, step, set, more = {}) {
  return h("input", {
    type: "number", value: String(value), min: String(min), step: String(step), ...more,
    on: {
      input: (event) => {
        const given = event.target.valueAsNumber;
        if (!Number.isFinite(given) || given < min) return;
        set(given);
        later();
      },
    },
  });
}

function objective() {
  const options = [["latency", "one reader"], ["throughput", "many readers"]];
  return h("select", { on: { change: (event) => { asked.objective = event.target.value; later(); } } },
    ...options.map(([value, word]) => h("option", { value, selected: asked.objective === value }, word)));
}

function field(text, control, id) {
  control.id = id;
  return h("label", { for: id }, h("span", {}, text), control);
}

function show(plan) {
  const result = byId("plan-result");
  if (plan.problem) {
    result.replaceChildren(h("p", { class: "banner bad" }, "It doesn't fit: ", plan.problem));
    return;
  }
  result.replaceChildren(
    h("p", { class: "plan-pace" }, h("strong", {}, decimal(plan.tokens_per_second)), " tokens a second for one reader, at most",
      change(plan)),
    h("div", { class: "plan-strip", role: "list", "aria-label": "Layers by machine" }, ...plan.stages.map(stage)),
    h("dl", { class: "plan-facts" },
      ...fact("Many readers", `a batch every ${milliseconds(plan.bottleneck_seconds * 1e3)}`),
      ...fact("Network", `${milliseconds(plan.link_seconds * 1e3)} of a token's time`),
      ...fact("Limited by", `${plan.limit}, ${percent(plan.limit_share)} of it`),
      ...oneMore(plan).flatMap(([name, value]) => fact(name, value))),
  );
}

// Which machines would be worth having another of.
function oneMore(plan) {
  const useful = plan.one_more.filter((more) => more.tokens_per_second > 1.005 * plan.tokens_per_second);
  if (!useful.length) return [["One more machine", "makes it no faster for one reader"]];
  return useful.slice(0, 3).map((more) => [`One more like ${more.machine}`, `${decimal(more.tokens_per_second)} tokens a second`]);
}

function change(plan) {
  if (!baseline || baseline.problem || plan === baseline) return null;
  const share = plan.tokens_per_second / baseline.tokens_per_second - 1;
  if (Math.abs(share) < 0.005) return h("span", { class: "delta" }, "as now");
  const text = `${share > 0 ? "▲ +" : "▼ −"}${Math.abs(100 * share).toFixed(0)} %`;
  return h("span", { class: share > 0 ? "delta up" : "delta down" }, text, h("span", { class: "visually-hidden" }, " against now"));
}

function stage(it, index) {
  const held = it.shard_end - it.shard_start;
  const text = `${it.machine}: layers ${layers([it.shard_start, it.shard_end])}, needs ${bytes(it.need_bytes)} of ${bytes(it.memory_bytes)}, ${milliseconds(it.seconds * 1e3)} a token`;
  return h("div", { class: `plan-stage stage-${index % 2}`, role: "listitem", "aria-label": text, title: text, vars: { "flex-grow": String(held) } },
    h("b", {}, it.machine), h("span", {}, plural(held, "layer")), h("span", {}, bytes(it.need_bytes)), h("span", {}, milliseconds(it.seconds * 1e3)),
    h("span", { class: "meter" }, h("i", { vars: { "--share": String(Math.min(1, it.need_bytes / Math.max(1, it.memory_bytes))) } })));
}

const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
