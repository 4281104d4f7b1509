// Numbers and elements for people. Text becomes text, never markup.

export const $ = (id) => document.getElementById(id);

/** An element with properties, and children that are elements or text. */
export function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

/** Set a text only if it is another one: an unchanged node costs no layout. */
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const MISSING = "–";

export function fixed(value, decimals) {
  if (typeof value !== "number") return value === null || value === undefined ? MISSING : String(value);
  const text = value.toFixed(decimals);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
}

/** Milliseconds with three significant digits, always in ms so that figures can be compared. */
export function ms(value) {
  if (typeof value !== "number") return MISSING;
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3;
  return value.toFixed(digits);
}

export function whole(value) {
  return typeof value === "number" ? value.toLocaleString("en-US").replaceAll(",", " ") : MISSING;
}

/** A time that has passed, from seconds. */
export function span(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

export function bytes(value) {
  if (typeof value !== "number") return MISSING;
  if (value < 1024) return `${value} B`;
  const units = ["KiB", "MiB", "GiB"];
  let size = value / 1024;
  let unit = 0;
  while (size >= 1024 && unit < 2) { size /= 1024; unit += 1; }
  return `${size.toFixed(size < 10 ? 2 : 1)} ${units[unit]}`;
}

/** A unit as people write it. */
export function unit(name) {
  return String(name).replace("^2", "²").replace("^3", "³");
}

export function words(name) {
  return String(name).replaceAll("_", " ");
}

/** What a JSON value says in a table. */
export function plain(value) {
  if (value === null || value === undefined || value === "") return MISSING;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.map(plain).join(", ");
  if (typeof value === "object") return Object.entries(value).map(([k, v]) => `${words(k)} ${plain(v)}`).join(", ");
  return String(value);
}

const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

export function timeOfDay(wall) {
  return clock.format(new Date(wall));
}
