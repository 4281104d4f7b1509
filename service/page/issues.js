// What happened last: trips, notes, commands of operators, refusals. Newest first, so many at most.
import { $, fixed, make, ms, put, timeOfDay, words } from "./format.js";

const MOST = 100, MOST_NOTES = 40;
const STATES = ["closed", "degraded", "half_open", "open", "latched"];
const TIMES = new Set(["late", "stale", "future", "backwards", "undated"]); // their values are nanoseconds
const NOT_TRIPS = new Set(["note", "good", "clean", "clean_degraded", "healed", "engage", "disengage", "operator_reset", "episode_reset", "session", "pair"]);

export class Issues {
  constructor() {
    this.list = $("issues");
    $("notes").addEventListener("change", () => this.list.classList.toggle("all", $("notes").checked));
    this.clear();
  }

  clear() {
    this.list.replaceChildren();
    this.newest = null;
    this.list.dataset.empty = "nothing so far";
    put($("issues-count"), "");
  }

  /** @param {number} wall what this clock is ahead of the service's, ms */
  update(frame, wall) {
    const fresh = [
      ...merged(frame.events ?? []).map((event) => [event.at_ms, () => ofEvent(event)]),
      ...(frame.refusals ?? []).filter((one) => one.robot === null || one.robot === frame.robot).map((one) => [one.at_ms, () => ofRefusal(one)]),
    ].sort(([a], [b]) => (a ?? 0) - (b ?? 0));
    if (!fresh.length) return;
    // At the top unless somebody reads further down: then it must not move away under them.
    const top = this.list.scrollTop, before = this.list.scrollHeight;
    for (const [at, what] of fresh) this.add(at === null ? "" : timeOfDay(at + wall), what());
    if (top > 0) this.list.scrollTop = top + this.list.scrollHeight - before;
    this.prune("li:not([data-note])", MOST);
    this.prune("li[data-note]", MOST_NOTES);
    const notes = this.list.querySelectorAll("[data-note]").length;
    this.list.dataset.empty = "";
    put($("issues-count"), `${this.list.children.length - notes} and ${notes} notes`);
  }

  /** A row, or a higher count in the newest one if it says the same. */
  add(time, issue) {
    const last = this.newest;
    if (last !== null && issue.again && last.again === issue.again && !issue.note) {
      last.count += 1;
      const [when, , words] = last.node.children;
      put(when, time);
      words.replaceChildren(...said({ ...issue, title: `${issue.title} × ${last.count}` }));
      return;
    }
    const node = row(time, issue);
    this.list.prepend(node);
    if (!issue.note) this.newest = { node, again: issue.again, count: 1 };
  }

  prune(which, most) {
    const rows = this.list.querySelectorAll(which);
    for (let i = most; i < rows.length; i += 1) rows[i].remove();
  }
}

/** Notes of one step as one: a sensor that goes takes several fields along. */
function merged(events) {
  const found = [];
  for (const event of events) {
    const last = found.at(-1);
    if (event.cause === "note" && last?.cause === "note" && last.step === event.step) last.notes.push(event);
    else found.push(event.cause === "note" ? { ...event, notes: [event] } : event);
  }
  return found;
}

function said({ title, detail }) {
  return [make("b", { textContent: title }), detail ? ` ${detail}` : ""];
}

function row(time, issue) {
  const { kind, tone, note = false } = issue;
  return make("li", note ? { "data-note": "" } : {}, make("time", { textContent: time }), make("span", { className: `chip ${tone}`, textContent: kind }),
    make("p", {}, ...said(issue)));
}

function ofEvent(event) {
  if (event.notes) {
    return { kind: "L0", tone: "soft", title: "note", note: true, detail: `step ${event.step} · ${event.notes.map(({ field, kind }) => `${field} ${kind}`).join(", ")}` };
  }
  const moved = event.before !== event.after ? `${words(event.before)} → ${words(event.after)}` : "";
  const parts = [`step ${event.step}`];
  if (event.field) parts.push(event.field);
  if (event.kind) parts.push(event.kind);
  const tell = TIMES.has(event.kind) ? time : number;
  if (event.kind === "out of order" && typeof event.limit === "number") {
    const before = event.limit - event.value; // of the clock's ns, which tell nobody anything
    parts.push(before ? `captured ${time(before)} before the last one` : "captured when the last one was");
  } else {
    if (event.value !== null) parts.push(tell(event.value));
    if (event.limit !== null) parts.push(`allowed ${tell(event.limit)}`);
  }
  const trip = !NOT_TRIPS.has(event.cause);
  const operator = ["engage", "disengage", "operator_reset"].includes(event.cause);
  const level = { validity: "L0", range: "L1", rate: "L2", consensus: "L3" }[event.level] ?? "";
  return {
    kind: level || (operator ? "operator" : "control"),
    tone: STATES.indexOf(event.after) > STATES.indexOf(event.before) ? "bad" : trip ? "warn" : "soft",
    again: moved || operator ? "" : `${event.cause} ${event.kind}`,
    title: moved ? `${words(event.cause)}: ${moved}` : words(event.cause),
    detail: parts.join(" · "),
  };
}

function ofRefusal(one) {
  return { kind: "refused", tone: "warn", again: one.name, title: words(one.name), detail: `${one.message}${one.sequence === null ? "" : ` · sequence ${one.sequence}`}` };
}

function time(value) {
  return typeof value === "number" ? `${ms(value / 1e6)} ms` : String(value);
}

function number(value) {
  return typeof value === "number" ? (Number.isInteger(value) ? String(value) : fixed(value, 4)) : String(value);
}
