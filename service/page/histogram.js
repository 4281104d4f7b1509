// Latencies on a logarithmic axis, with the deadline. Counts and percentiles come from the service.
import { Canvas, colour, hatch, line, text } from "./paint.js";
import { $, ms, put, whole } from "./format.js";

const LEFT = 34, RIGHT = 10, TOP = 30, BOTTOM = 20;

export class Histogram {
  constructor() {
    this.data = null;
    this.deadline = null;
    this.canvas = new Canvas($("histogram"), (...all) => this.paint(...all));
  }

  clear(deadline) {
    this.data = null;
    this.deadline = deadline;
    put($("deadline"), ms(deadline));
    this.show();
  }

  update(latency) {
    this.data = latency;
    this.show();
  }

  show() {
    const data = this.data;
    for (const name of ["p50", "p99", "p999", "jitter", "max"]) put($(name), ms(data?.[name]));
    const few = data !== null && data.p999 === null;
    $("p999").parentElement.title = few ? "from 10 000 steps on" : "";
    put($("p999-unit"), few ? "too few" : "ms");
    put($("tile-p99"), ms(data?.p99));
    put($("latency-n"), data === null ? "no steps yet" : `last ${whole(data.n)} steps`);
    this.canvas.draw();
  }

  paint(context, width, height) {
    const { data, deadline } = this;
    const bottom = height - BOTTOM;
    line(context, LEFT, bottom + 0.5, width - RIGHT, bottom + 0.5, "line");
    if (data === null || !data.n) { text(context, "no steps yet", width / 2, height / 2, "muted", "center"); return; }
    const { first, per_decade: per, counts } = data.histogram;
    const end = (first + counts.length) / per;
    const at = deadline ? Math.log10(deadline) : null; // its line is on the axis, wherever the steps are
    const low = Math.floor(Math.min(first / per, at ?? Infinity));
    const high = Math.max(low + 1, Math.ceil(Math.max(end, at === null ? end : at + 0.12)));
    const x = (decade) => LEFT + ((decade - low) / (high - low)) * (width - LEFT - RIGHT);
    const top = Math.max(1, Math.ceil(Math.log10(Math.max(...counts) + 1)));
    const y = (count) => bottom - (Math.log10(count + 1) / top) * (bottom - TOP);
    this.axes(context, x, y, low, high, top, width, bottom);
    counts.forEach((count, i) => {
      if (!count) return;
      const from = x((first + i) / per), to = x((first + i + 1) / per), at = y(count);
      const over = deadline !== null && (first + i + 0.5) / per >= Math.log10(deadline);
      context.fillStyle = colour(over ? "latched" : "accent");
      context.fillRect(from + 0.5, at, Math.max(1, to - from - 1), bottom - at);
      if (over) hatch(context, from + 0.5, at, Math.max(1, to - from - 1), bottom - at, "card", 4);
    });
    this.marks(context, x, bottom, width);
  }

  axes(context, x, y, low, high, top, width, bottom) {
    for (let decade = low; decade <= high; decade += 1) {
      line(context, Math.round(x(decade)) + 0.5, TOP, Math.round(x(decade)) + 0.5, bottom, "line");
      const last = decade === high;
      text(context, `${Number((10 ** decade).toPrecision(1))}${last ? " ms" : ""}`, x(decade) + (last ? 8 : 0), bottom + 11, "muted", last ? "right" : "center");
    }
    for (let power = 0; power <= top; power += 1) {
      const count = 10 ** power;
      if (y(count) < TOP - 6) break;
      text(context, power < 3 ? String(count) : `${count / 1000}k`, LEFT - 5, y(count), "muted", "right");
    }
  }

  marks(context, x, bottom, width) {
    const ends = [-Infinity, -Infinity];
    const marks = [["p50", this.data.p50], ["p99", this.data.p99], ["p99.9", this.data.p999]];
    for (const [name, value] of marks) {
      if (value === null || value <= 0) continue;
      this.mark(context, x(Math.log10(value)), name, "ink", ends, bottom, width, [2, 3]);
    }
    if (this.deadline) this.mark(context, x(Math.log10(this.deadline)), `deadline ${ms(this.deadline)} ms`, "latched", ends, bottom, width, [6, 3], 1.5);
  }

  /** A line with its name above, in the first of two rows that has room. */
  mark(context, at, name, tint, ends, bottom, width, dash, weight = 1) {
    const size = context.measureText(name).width;
    const left = Math.min(Math.max(at - size / 2, 2), width - size - 2);
    const row = left > ends[0] + 6 ? 0 : 1;
    ends[row] = left + size;
    context.lineWidth = weight;
    line(context, at, row * 13 + 13, at, bottom, tint, dash);
    context.lineWidth = 1;
    context.fillStyle = colour("card");
    context.fillRect(left - 2, row * 13 + 1, size + 4, 12);
    text(context, name, left, row * 13 + 7, tint);
  }
}
