// Elements made of plain values. Text is always set as text, never read as markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "vars") for (const [key, it] of Object.entries(value)) element.style.setProperty(key, it);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const h = (tag, props = {}, ...children) => fill(document.createElement(tag), props, children);

export const svg = (tag, props = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), props, children);

// Sets text only where it differs: a screen reader isn't told what didn't change.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

// Makes the children of `parent` those of `items`, in order. A child stays the same element for as
// long as its key is there, so that focus and open details survive an update.
export function reconcile(parent, items, keyOf, make, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = before.get(key);
    if (child) before.delete(key);
    else {
      child = make(item);
      child.dataset.key = key;
    }
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const gone of before.values()) gone.remove();
}
