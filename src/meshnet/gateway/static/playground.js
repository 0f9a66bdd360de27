// A chat with the model. What it says is text and is shown as such.

import { events, postOptions, request } from "/dashboard/static/api.js";
import { byId, h, setText } from "/dashboard/static/dom.js";
import { decimal, plural } from "/dashboard/static/format.js";

// Another array after "Clear": an answer that still comes belongs to the one it was asked in.
let turns = [];
let leaving = null;
let model = "";

export function setModel(name) {
  model = name;
}

export function wirePlayground() {
  showEmpty();
  byId("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (leaving) leaving.abort();
    else send();
  });
  byId("chat-text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!leaving) send();
  });
  byId("chat-clear").addEventListener("click", () => {
    if (leaving) leaving.abort();
    turns = [];
    showEmpty();
    byId("chat-text").focus();
  });
}

function showEmpty() {
  byId("chat").replaceChildren(h("p", { class: "empty" }, "What you ask here goes through every machine above. Enter sends, Shift+Enter begins a new line."));
}

async function send() {
  const text = byId("chat-text").value.trim();
  if (!text || !model) return;
  byId("chat-text").value = "";
  if (!turns.length) byId("chat").replaceChildren();
  const asked = turns;
  asked.push({ role: "user", content: text });
  bubble("user", text);
  const answer = bubble("assistant", "");
  leaving = new AbortController();
  setBusy(true);
  const began = performance.now();
  try {
    const said = await stream(answer, began);
    asked.push({ role: "assistant", content: said });
  } catch (error) {
    const stopped = leaving.signal.aborted;
    note(answer, stopped ? "stopped" : error.message, !stopped);
    const said = answer.querySelector(".said").textContent;
    if (said) asked.push({ role: "assistant", content: said });
    else asked.pop();
  } finally {
    leaving = null;
    setBusy(false);
  }
}

async function stream(answer, began) {
  const body = {
    model, messages: turns, stream: true, stream_options: { include_usage: true },
    temperature: byId("chat-temperature").valueAsNumber || 0,
    max_tokens: byId("chat-tokens").valueAsNumber || 256,
  };
  const response = await request("/v1/chat/completions", postOptions(body, { signal: leaving.signal }));
  const said = answer.querySelector(".said");
  let first = 0;
  let usage = null;
  for await (const data of events(response)) {
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) usage = chunk.usage;
    const delta = chunk.choices[0]?.delta ?? {};
    const piece = `${delta.reasoning_content ?? ""}${delta.content ?? ""}`;
    if (piece && !first) first = performance.now();
    said.append(piece);
    keepBottom();
  }
  if (usage) {
    const time = (performance.now() - (first || began)) / 1000;
    const pace = usage.completion_tokens > 1 && time > 0 ? `, ${decimal((usage.completion_tokens - 1) / time)} a second` : "";
    const wait = first ? `the first after ${decimal((first - began) / 1000, 2)} s` : "no text";
    note(answer, `${plural(usage.completion_tokens, "token")}${pace}, ${wait}`);
  }
  return said.textContent;
}

function bubble(role, text) {
  const element = h("div", { class: `turn ${role}` },
    h("span", { class: "visually-hidden" }, role === "user" ? "You: " : "Model: "),
    h("div", { class: "said" }, text));
  byId("chat").append(element);
  keepBottom();
  return element;
}

function note(answer, text, bad = false) {
  answer.append(h("p", { class: bad ? "turn-note bad" : "turn-note" }, text));
  keepBottom();
}

function setBusy(busy) {
  byId("chat").setAttribute("aria-busy", String(busy));
  setText(byId("chat-send"), busy ? "Stop" : "Send");
}

function keepBottom() {
  const box = byId("chat");
  box.scrollTop = box.scrollHeight;
}
