// Numbers for people. What isn't known is a dash.

const DASH = "–";

export const known = (value) => value !== null && value !== undefined;

export const count = (value) => (known(value) ? value.toLocaleString("en") : DASH);

export function decimal(value, digits = 1) {
  return known(value) ? value.toFixed(digits) : DASH;
}

export const percent = (share) => (known(share) ? `${Math.round(share * 100)} %` : DASH);

export function bytes(value) {
  if (!known(value)) return DASH;
  let amount = value;
  for (const unit of ["B", "KiB", "MiB"]) {
    if (amount < 1024) return `${amount.toFixed(unit === "B" || amount >= 100 ? 0 : 1)} ${unit}`;
    amount /= 1024;
  }
  return `${amount.toFixed(amount >= 100 ? 0 : 2)} GiB`;
}

export function milliseconds(value) {
  if (!known(value)) return DASH;
  if (value >= 1000) return `${(value / 1000).toFixed(value >= 10000 ? 1 : 2)} s`;
  if (value >= 100) return `${value.toFixed(0)} ms`;
  return `${value.toFixed(value >= 10 ? 1 : 2)} ms`;
}

export function seconds(value) {
  if (!known(value)) return DASH;
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
}

export const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");

// Layers as people count them: first and last.
export function layers(range) {
  if (!range) return "none";
  return range[1] - range[0] === 1 ? `${range[0]}` : `${range[0]}–${range[1] - 1}`;
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
