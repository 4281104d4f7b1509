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
    this.rows = [];
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
    const all = this.text === null ? this.rows : [...this.rows, this.text];
    $("fields").tBodies[0].replaceChildren(...all.map(({ node }) => node));
  }

  clear() {
    for (const one of this.rows) { put(one.value, "–"); one.bar?.toggleAttribute("hidden", true); flag(one, []); }
    put($("fields-text"), "no observation yet");
  }

  update(state) {
    if (state === null || state === undefined) return;
    let flagged = 0;
    this.rows.forEach((one, i) => {
      const value = state.values[i];
      put(one.value, shown(value, one.field));
      if (one.bar) {
        const inside = typeof value === "number" && Number.isFinite(value);
        one.bar.toggleAttribute("hidden", !inside);
        if (inside) one.bar.style.left = `${100 * Math.min(1, Math.max(0, (value - one.field.low) / (one.field.high - one.field.low)))}%`;
      }
      const whole = one.name === one.field.name ? [] : state.flags[one.field.name] ?? [];
      const flags = [...new Set([...(state.flags[one.name] ?? []), ...whole])];
      flag(one, flags);
      flagged += flags.length > 0;
    });
    if (this.text !== null) put(this.text.value, state.instruction || "–");
    const notes = [`${this.rows.length} columns`, flagged ? `${flagged} flagged` : "none flagged"];
    if (state.age_ms !== null) notes.push(`${state.age_ms.toFixed(state.age_ms < 10 ? 1 : 0)} ms old when used`);
    if (state.extra.length) notes.push(`not in the schema: ${state.extra.join(", ")}`);
    put($("fields-text"), [...notes, ...state.whole].join(" · "));
    if ($("flagged").checked) this.filter();
  }

  filter() {
    const only = $("flagged").checked;
    for (const one of this.rows) one.node.hidden = only && !one.flags.length;
  }
}

function row(name, field) {
  const numeric = field.kind === "numeric" || field.kind === "vector";
  const value = make("td", { className: "num value", textContent: "–" });
  const flags = make("td", { className: "flags" });
  const range = make("td", { className: "span" });
  let bar = null;
  if (numeric) {
    bar = make("i", { hidden: true });
    range.append(make("span", { className: "low", textContent: fixed(field.low, field.low % 1 ? 2 : 0) }), make("span", { className: "sr", textContent: " to " }), make("span", { className: "bar", "aria-hidden": "true" }, bar), make("span", { className: "high", textContent: fixed(field.high, field.high % 1 ? 2 : 0) }));
  } else {
    range.append(make("span", { className: "of", textContent: field.kind === "category" ? field.values.join(", ") : field.kind === "flag" ? "false, true" : "text" }));
  }
  const head = make("th", { scope: "row" }, name, field.required ? make("abbr", { title: "required", textContent: " *" }) : "");
  const node = make("tr", {}, head, value, make("td", { className: "unit", textContent: unit(field.unit ?? "") }), range, flags);
  node.dataset.field = name;
  return { name, field, node, value, bar, flagCell: flags, flags: [], told: "" };
}

function shown(value, field) {
  if (typeof value === "number" && field.decimals !== undefined) return fixed(value, field.decimals);
  if (value === "nan") return "NaN";
  return value === null || value === undefined ? "–" : String(value).replace("-inf", "−∞").replace("inf", "∞");
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
