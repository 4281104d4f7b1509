// Every field of the schema: its value, where that lies in its range, and what is wrong with it.
import { $, fixed, make, put, unit } from "./format.js";

// Flag to its words, and whether it is grave.
const FLAGS = {
  missing: ["missing", false], empty: ["unknown", false], type: ["wrong type", true],
  nonfinite: ["not finite", true], unseen: ["unseen value", true], range: ["out of range", true],
  length: ["wrong length", true], required: ["required", true], stale: ["stale", true],
  frozen: ["frozen", true], rise: ["drifts up", true], fall: ["drifts down", true],
};

export class Fields {
  constructor() {
    this.rows = []; // one per column
    this.text = null; // the instruction's
    this.all = [];
    this.key = "";
    $("flagged").addEventListener("change", () => this.filter());
  }

  start(hello) {
    const key = hello.schema_hash;
    if (key !== this.key) { this.key = key; this.build(hello); }
    this.clear();
  }

  build(hello) {
    const columns = hello.schema.fields.filter((field) => field.kind !== "instruction").flatMap((field) => (
      field.kind === "vector" ? Array.from({ length: field.n }, (_, i) => [`${field.name}[${i}]`, field]) : [[field.name, field]]));
    const text = hello.schema.fields.find((field) => field.kind === "instruction");
    this.rows = columns.map(([name, field]) => row(name, field));
    this.text = text === undefined ? null : row(text.name, text);
    this.all = this.text === null ? this.rows : [...this.rows, this.text];
    $("fields").tBodies[0].replaceChildren(...this.all.map(({ node }) => node));
  }

  clear() {
    for (const one of this.all) { put(one.value, "–"); one.bar?.toggleAttribute("hidden", true); flag(one, []); }
    put($("fields-text"), "no observation yet");
  }

  update(state) {
    if (state === null || state === undefined) return;
    this.rows.forEach((one, i) => {
      const value = state.values[i];
      put(one.value, shown(value, one.field));
      if (one.bar) {
        const inside = typeof value === "number" && Number.isFinite(value);
        one.bar.toggleAttribute("hidden", !inside);
        if (inside) one.bar.style.left = `${100 * Math.min(1, Math.max(0, (value - one.field.low) / (one.field.high - one.field.low)))}%`;
      }
    });
    if (this.text !== null) put(this.text.value, state.instruction || "–");
    for (const one of this.all) {
      const whole = one.name === one.field.name ? [] : state.flags[one.field.name] ?? [];
      flag(one, [...new Set([...(state.flags[one.name] ?? []), ...whole])]);
    }
    const flagged = this.all.filter((one) => one.flags.length).length;
    const notes = [`${this.rows.length} columns`, flagged ? `${flagged} flagged` : "none flagged"];
    if (state.age_ms !== null) notes.push(`${state.age_ms.toFixed(state.age_ms < 10 ? 1 : 0)} ms old when used`);
    if (state.extra.length) notes.push(`not in the schema: ${state.extra.join(", ")}`);
    put($("fields-text"), [...notes, ...state.whole].join(" · "));
    if ($("flagged").checked) this.filter();
  }

  filter() {
    const only = $("flagged").checked;
    for (const one of this.all) one.node.hidden = only && !one.flags.length;
  }
}

const isNumeric = (field) => field.kind === "numeric" || field.kind === "vector";

function row(name, field) {
  const value = make("td", { className: "num value", textContent: "–" });
  const flags = make("td", { className: "flags" });
  const range = make("td", { className: "span" });
  let bar = null;
  if (isNumeric(field)) {
    bar = make("i", { hidden: true });
    const end = (at) => make("span", { className: at, textContent: bound(field[at], field.decimals) });
    range.append(make("div", { className: "ends" }, end("low"), make("span", { className: "sr", textContent: " to " }), make("span", { className: "bar", "aria-hidden": "true" }, bar), end("high")));
  } else {
    range.append(make("span", { className: "of", textContent: field.kind === "category" ? field.values.join(", ") : field.kind === "flag" ? "false, true" : "text" }));
  }
  const head = make("th", { scope: "row" }, name, field.required ? make("abbr", { title: "required", textContent: " *" }) : "");
  const node = make("tr", {}, head, value, make("td", { className: "unit", textContent: unit(field.unit ?? "") }), range, flags);
  node.dataset.field = name;
  return { name, field, node, value, bar, flagCell: flags, flags: [], told: "" };
}

/** An end of the range, as precise as the field is. */
function bound(value, decimals) {
  const text = fixed(value, decimals);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

// Numbers that JSON has not.
const NONE = new Map([["nan", "NaN"], ["inf", "∞"], ["-inf", "−∞"]]);

function shown(value, field) {
  if (value === null || value === undefined) return "–";
  if (!isNumeric(field)) return String(value);
  return typeof value === "number" ? fixed(value, field.decimals) : NONE.get(value) ?? String(value);
}

function flag(one, flags) {
  one.flags = flags;
  const told = flags.join();
  if (told === one.told) return;
  one.told = told;
  const chips = flags.map((name) => {
    const [words, grave] = FLAGS[name] ?? [name, true];
    return make("span", { className: `chip ${grave ? "bad" : "soft"}`, textContent: words });
  });
  one.flagCell.replaceChildren(...chips);
  one.node.classList.toggle("flagged", flags.some((name) => FLAGS[name]?.[1] ?? true));
}
