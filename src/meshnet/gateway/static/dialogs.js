// What the page asks people: the key, the line for another machine, whether they are sure.

import { hasKey, keepKey, post } from "/dashboard/static/api.js";
import { byId, h, setText } from "/dashboard/static/dom.js";

const TROUBLE_SECONDS = 8;

// Resolves once a key was given.
export function askKey(why) {
  const dialog = byId("key-dialog");
  const again = hasKey() ? " The one that was given isn't one." : "";
  setText(byId("key-text"), `${why}${again} It is kept until this tab is closed.`);
  dialog.showModal();
  return new Promise((done) => {
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      keepKey(byId("key").value.trim());
      byId("key").value = "";
      dialog.close();
      done();
    }, { once: true });
    // There is nothing to see without it.
    dialog.addEventListener("cancel", (event) => event.preventDefault());
  });
}

// Resolves to whether the answer was yes.
export function confirm({ title, text, yes }) {
  const dialog = byId("confirm-dialog");
  setText(byId("confirm-title"), title);
  setText(byId("confirm-text"), text);
  setText(byId("confirm-yes"), yes);
  dialog.returnValue = "";
  byId("confirm-yes").onclick = () => dialog.close("yes");
  byId("confirm-no").onclick = () => dialog.close();
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true });
  });
}

export function tellTrouble(text) {
  const note = h("p", { class: "banner bad", role: "alert" }, text);
  byId("banners").append(note);
  setTimeout(() => note.remove(), TROUBLE_SECONDS * 1000);
}

export function wireJoin() {
  byId("join").addEventListener("click", showLine);
  byId("join-close").addEventListener("click", () => byId("join-dialog").close());
  byId("join-copy").addEventListener("click", copyLine);
  // The secret doesn't stay in the page.
  byId("join-dialog").addEventListener("close", () => { byId("join-line").value = ""; });
}

async function showLine() {
  try {
    byId("join-line").value = (await post("/dashboard/join")).line;
  } catch (error) {
    tellTrouble(error.message);
    return;
  }
  setText(byId("join-copy"), "Copy");
  byId("join-dialog").showModal();
  byId("join-copy").focus();
}

async function copyLine() {
  const line = byId("join-line");
  try {
    await navigator.clipboard.writeText(line.value);
  } catch {
    // Over plain HTTP from another machine browsers offer no clipboard; selecting does it.
    line.select();
    document.execCommand("copy");
  }
  setText(byId("join-copy"), "Copied");
}
