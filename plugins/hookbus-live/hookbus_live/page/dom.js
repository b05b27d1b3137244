// Makes elements, and writes numbers and times as people read them.

export const $ = (id) => document.getElementById(id);

// Make an element: el("td", {class: "name"}, "text", otherElement).
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.map((child) => child ?? ""));
  return made;
}

export function number(value, digits = 4, small = digits) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en");
  return size !== 0 && (size < 1e-3 || size >= 1e6)
    ? String(Number(value.toPrecision(small)).toExponential())
    : String(Number(value.toPrecision(digits)));
}

export function duration(secs) {
  if (secs === null || secs === undefined) return "–";
  const whole = Math.round(secs);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  if (hours >= 48) return `${Math.round(hours / 24)} d`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}

export function bytes(count) {
  if (count === null || count === undefined) return "?";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (count >= 1000 && at < units.length - 1) [count, at] = [count / 1000, at + 1];
  return `${Number(count.toPrecision(3))} ${units[at]}`;
}

export const clock = (secs) => new Date(secs * 1000).toLocaleTimeString("en-GB");

export const day = (secs) => new Date(secs * 1000).toLocaleString("sv");

// Replace the rows of a table only if they have changed, so that selections stay.
export function fill(body, rows, key) {
  if (body.dataset.key === key) return;
  body.dataset.key = key;
  body.replaceChildren(...rows());
}

export function table(caption, heads, rows, numeric = []) {
  const kind = (at) => ({ class: numeric.includes(at) ? "number" : undefined });
  return el(
    "table",
    {},
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, ...heads.map((h, at) => el("th", { scope: "col", ...kind(at) }, h)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, at) => el("td", kind(at), cell))))),
  );
}
