// Actions, breakers, sources and trips over the last minute, in slots of some steps each.
import { Canvas, colour, hatch, line, text } from "./paint.js";
import { $, fixed, make, ms, put, timeOfDay, unit, words } from "./format.js";

const SECONDS = 60, GUTTER = 78, RIGHT = 8;
const ROW = 13, GROUP = 20;
const TRIPS = ["0 validity", "1 range", "2 rate", "3 consensus", "supervision"];

export class Timeline {
  constructor() {
    this.slots = [];
    this.most = 1200;
    this.now = 0; // of the service's clock, ms
    this.gap = 500; // ms without a step that are shown as such
    this.cursor = null; // the moment that is read, of the service's clock, ms
    this.wall = 0; // what this clock is ahead of it, ms
    this.charts = [];
    this.groups = [];
    this.lanes = new Canvas($("lanes"), (...all) => this.paintLanes(...all));
    this.listen($("lanes"), true);
  }

  start(hello) {
    this.slots = [];
    this.cursor = null; // another stream, maybe another clock
    this.most = Math.round(hello.keeps_s / 0.05);
    this.gap = Math.max(500, 4000 * hello.period);
    this.groups = [["Breakers", hello.states, "breakers"], ["Action from", hello.sources, "source"], ["Trips", TRIPS, "tripped"]];
    const rows = this.groups.reduce((n, [, names]) => n + names.length, 0);
    $("lanes").style.height = `${this.groups.length * GROUP + rows * ROW + 18}px`;
    const same = JSON.stringify(hello.actions) === this.actions;
    this.actions = JSON.stringify(hello.actions);
    if (!same) this.build(hello.actions);
    this.draw();
  }

  build(actions) {
    for (const chart of this.charts) chart.canvas.drop();
    this.charts = actions.map((dim, index) => {
      const value = make("b", { textContent: "–" });
      const canvas = make("canvas", { className: "action", role: "img", "aria-label": `${words(dim.name)} over the last 60 seconds, from ${dim.low} to ${dim.high} ${dim.unit}`, "aria-describedby": "time-text" });
      const title = make("p", { className: "chart-title" }, make("span", { textContent: words(dim.name) }), value, make("small", { textContent: unit(dim.unit) }));
      $("actions").append(make("div", { className: "chart" }, title, canvas));
      const chart = { dim, index, value, canvas: null };
      chart.canvas = new Canvas(canvas, (...all) => this.paintAction(chart, ...all));
      this.listen(canvas, false);
      return chart;
    });
    const boxes = [...$("actions").children];
    for (const old of boxes.slice(0, boxes.length - actions.length)) old.remove();
  }

  add(slots, now, wall) {
    this.now = now;
    this.wall = wall;
    for (const slot of slots) {
      const last = this.slots.at(-1);
      if (last !== undefined && last.i === slot.i) this.slots[this.slots.length - 1] = slot;
      else this.slots.push(slot);
    }
    if (this.slots.length > this.most) this.slots.splice(0, this.slots.length - this.most);
  }

  draw() {
    const last = this.slots.at(-1);
    for (const { dim, index, value, canvas } of this.charts) {
      put(value, last === undefined ? "–" : fixed(physical(dim, last.last[index]), digits(dim)));
      canvas.draw();
    }
    this.lanes.draw();
    this.read();
  }

  /** What the last minute held, in words. */
  describe() {
    const seen = this.slots.filter((slot) => slot.at_ms >= this.now - SECONDS * 1000);
    const steps = seen.reduce((n, slot) => n + slot.steps, 0);
    const tripped = seen.filter((slot) => slot.tripped.length).length;
    const states = [...new Set(seen.map((slot) => words(slot.breakers)))];
    if (!steps) return "no steps";
    return `${steps} steps; breakers ${states.join(", ")}; ${tripped ? `trips at ${tripped} moments` : "no trips"}`;
  }

  x(at, width) {
    return width - RIGHT - ((this.now - at) / (SECONDS * 1000)) * (width - GUTTER - RIGHT);
  }

  visible() {
    const from = this.now - SECONDS * 1000;
    let first = this.slots.length;
    while (first > 0 && this.slots[first - 1].at_ms >= from - 1000) first -= 1;
    return this.slots.slice(first);
  }

  grid(context, width, top, bottom, labels) {
    for (let seconds = 0; seconds <= SECONDS; seconds += 10) {
      const x = Math.round(this.x(this.now - seconds * 1000, width)) + 0.5;
      line(context, x, top, x, bottom, "line");
      const narrow = width < 420 && seconds % 20 && seconds !== 0;
      if (labels && !narrow) text(context, seconds ? `−${seconds}` : "now", Math.min(x, width - 1), bottom + 10, "muted", seconds ? "center" : "right");
    }
  }

  gaps(context, slots, width, top, bottom) {
    const holes = [];
    slots.forEach((slot, i) => {
      const next = i + 1 < slots.length ? slots[i + 1].at_ms : this.now;
      if (next - slot.at_ms > this.gap) holes.push([slot.at_ms, next]);
    });
    for (const [from, to] of holes) {
      const left = Math.max(GUTTER, this.x(from, width));
      hatch(context, left, top, this.x(to, width) - left, bottom - top, "line", 7);
    }
  }

  crosshair(context, width, top, bottom) {
    if (this.cursor === null) return;
    const x = this.x(this.cursor, width);
    if (x >= GUTTER) line(context, x, top, x, bottom, "ink", [3, 2]);
  }

  paintAction({ dim, index }, context, width, height) {
    const top = 5, bottom = height - 5;
    const y = (value) => bottom - ((value + 1) / 2) * (bottom - top);
    const slots = this.visible();
    this.grid(context, width, top, bottom, false);
    for (const value of [-1, 0, 1]) {
      line(context, GUTTER, Math.round(y(value)) + 0.5, width - RIGHT, Math.round(y(value)) + 0.5, "line", value ? [] : [2, 3]);
      text(context, fixed(physical(dim, value), digits(dim)), GUTTER - 6, Math.min(Math.max(y(value), 8), height - 8), "muted", "right");
    }
    this.gaps(context, slots, width, top, bottom);
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, width - GUTTER - RIGHT + 1, height);
    context.clip();
    context.fillStyle = colour("band");
    for (const run of this.runs(slots)) {
      context.beginPath();
      run.forEach((slot, i) => context[i ? "lineTo" : "moveTo"](this.x(slot.at_ms, width), y(slot.high[index]) - 0.5));
      for (let i = run.length - 1; i >= 0; i -= 1) context.lineTo(this.x(run[i].at_ms, width), y(run[i].low[index]) + 0.5);
      context.fill();
      context.strokeStyle = colour("accent");
      context.lineWidth = 1.5;
      context.lineJoin = "round";
      context.beginPath();
      run.forEach((slot, i) => context[i ? "lineTo" : "moveTo"](this.x(slot.at_ms, width), y(slot.last[index])));
      context.stroke();
      context.lineWidth = 1;
    }
    context.restore();
    this.crosshair(context, width, top, bottom);
  }

  /** Slots in pieces between gaps. */
  runs(slots) {
    const found = [];
    let last = -Infinity;
    for (const slot of slots) {
      if (slot.at_ms - last > this.gap) found.push([]);
      found.at(-1).push(slot);
      last = slot.at_ms;
    }
    return found;
  }

  paintLanes(context, width, height) {
    const slots = this.visible();
    const bottom = height - 18;
    this.grid(context, width, 4, bottom, true);
    let y = 0;
    for (const [title, names, key] of this.groups) {
      context.font = "600 11px system-ui, sans-serif";
      text(context, title, 0, y + 13, "ink");
      context.font = "11px system-ui, sans-serif";
      y += GROUP;
      names.forEach((name, row) => {
        const top = y + row * ROW;
        text(context, words(name), GUTTER - 6, top + ROW / 2, "muted", "right");
        line(context, GUTTER, top + ROW - 0.5, width - RIGHT, top + ROW - 0.5, "line");
        this.lane(context, slots, width, top, key, key === "tripped" ? row : name);
      });
      y += names.length * ROW;
    }
    this.gaps(context, slots, width, GROUP, bottom);
    this.crosshair(context, width, 4, bottom);
  }

  lane(context, slots, width, top, key, value) {
    context.fillStyle = colour(key === "tripped" ? "latched" : value);
    for (let i = 0; i < slots.length; i += 1) {
      const on = (slot) => (key === "tripped" ? slot.tripped.includes(value) : slot[key] === value);
      if (!on(slots[i])) continue;
      const from = slots[i].at_ms;
      while (key !== "tripped" && i + 1 < slots.length && on(slots[i + 1]) && slots[i + 1].at_ms - slots[i].at_ms <= this.gap) i += 1;
      const next = i + 1 < slots.length ? slots[i + 1].at_ms : this.now;
      const to = key === "tripped" || next - slots[i].at_ms > this.gap ? slots[i].at_ms : next;
      const left = Math.max(GUTTER, this.x(from, width));
      const right = Math.max(left + (key === "tripped" ? 2.5 : 2), this.x(to, width));
      if (right > GUTTER) context.fillRect(left, top + 2, right - left, ROW - 4);
    }
  }

  // Reading a moment

  listen(element, keys) {
    element.addEventListener("pointermove", (event) => this.point(event));
    element.addEventListener("pointerdown", (event) => this.point(event));
    element.addEventListener("pointerleave", () => this.move(null));
    if (!keys) return;
    element.addEventListener("blur", () => this.move(null));
    element.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: 1, ArrowRight: -1, PageUp: 20, PageDown: -20 }[event.key];
      if (event.key === "Escape") this.move(null);
      else if (event.key === "Home") this.stepBy(Infinity);
      else if (event.key === "End") this.stepBy(-Infinity);
      else if (by !== undefined) this.stepBy(by);
      else return;
      event.preventDefault();
    });
  }

  point(event) {
    const { left, width } = event.currentTarget.getBoundingClientRect();
    const part = (width - RIGHT - (event.clientX - left)) / (width - GUTTER - RIGHT);
    this.move(part < 0 || part > 1 ? null : this.now - part * SECONDS * 1000);
  }

  /** To a slot so many before the one that is read. */
  stepBy(count) {
    const slots = this.visible();
    if (!slots.length) return;
    const at = this.cursor === null ? slots.length : slots.indexOf(this.nearest(slots));
    const to = slots[Math.min(Math.max(at - count, 0), slots.length - 1)];
    this.move(to.at_ms);
  }

  move(cursor) {
    this.cursor = cursor;
    for (const { canvas } of this.charts) canvas.draw();
    this.lanes.draw();
    this.read();
  }

  nearest(slots) {
    const off = (slot) => Math.abs(slot.at_ms - this.cursor);
    return slots.reduce((best, slot) => (off(slot) < off(best) ? slot : best), slots[0]);
  }

  read() {
    if (this.cursor === null) {
      put($("reading"), "Point at the timeline, or focus it and use the arrow keys, to read a moment.");
      return;
    }
    const slots = this.visible();
    const slot = slots.length ? this.nearest(slots) : null;
    if (slot === null || Math.abs(slot.at_ms - this.cursor) > this.gap) {
      put($("reading"), `${timeOfDay(this.cursor + this.wall)}: no step`);
      return;
    }
    const actions = this.charts.map(({ dim, index }) => `${words(dim.name)} ${fixed(physical(dim, slot.last[index]), digits(dim))} ${unit(dim.unit)}`);
    const trips = slot.tripped.length ? `; tripped: ${slot.tripped.map((level) => TRIPS[level]).join(", ")}` : "";
    const late = slot.late ? `; ${slot.late} late` : "";
    put($("reading"), `${timeOfDay(slot.at_ms + this.wall)}: ${actions.join(", ")}; from ${slot.source}; breakers ${words(slot.breakers)}; ${ms(slot.act_ms)} ms${late}${trips}`);
  }
}

function physical(dim, value) {
  return dim.low + ((value + 1) / 2) * (dim.high - dim.low);
}

/** Decimals that tell a thousandth of the range. */
function digits(dim) {
  return Math.min(6, Math.max(0, 3 - Math.ceil(Math.log10((dim.high - dim.low) || 1))));
}
