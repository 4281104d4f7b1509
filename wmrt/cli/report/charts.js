// Plots as inline SVG, drawn at the width of their container so that text keeps its size.
"use strict";

const MARGIN = { left: 62, right: 10 };

function svg(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (text !== undefined) element.textContent = text;
  return element;
}

function surface(container, height, label) {
  const width = Math.max(container.clientWidth, 240);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
  container.append(root);
  return { root, width, height, left: MARGIN.left, right: width - MARGIN.right };
}

function niceTicks(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((m) => m * power >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks;
}

const plain = (value) => String(Number(value.toPrecision(3)));

function timeAxis(area, seconds, y) {
  for (const tick of niceTicks(0, seconds, area.width < 500 ? 4 : 8)) {
    const x = area.left + (tick / seconds) * (area.right - area.left);
    area.root.append(svg("text", { x, y, "text-anchor": "middle" }, plain(tick) + " s"));
  }
}

// One curve over time. options: name, unit, values, range, least (span of the axis), ticks,
// flip (small values on top), lines.
function curveChart(container, options, seconds) {
  const area = surface(container, 92, options.name);
  const top = 22, bottom = 84;
  let [low, high] = options.range || [Math.min(...options.values), Math.max(...options.values)];
  const short = (options.least || 1e-9) - (high - low); // a nearly constant value is no mountain range
  if (short > 0) { low -= short / 2; high += short / 2; }
  const place = (v) => {
    const share = (Math.min(Math.max(v, low), high) - low) / (high - low);
    return options.flip ? top + share * (bottom - top) : bottom - share * (bottom - top);
  };
  const label = options.unit ? `${options.name}, ${options.unit}` : options.name;
  area.root.append(svg("text", { x: 0, y: 12, class: "name" }, label));
  for (const tick of options.ticks || niceTicks(low, high, 4)) {
    const y = place(tick);
    area.root.append(svg("line", { x1: area.left, x2: area.right, y1: y, y2: y, class: "axis" }));
    area.root.append(svg("text", { x: area.left - 6, y: y + 4, "text-anchor": "end" }, plain(tick)));
  }
  for (const line of options.lines || []) {
    const y = place(line);
    area.root.append(svg("line", { x1: area.left, x2: area.right, y1: y, y2: y, class: "lane" }));
  }
  const count = options.values.length - 1 || 1;
  const points = options.values.map((v, i) =>
    `${(area.left + (i / count) * (area.right - area.left)).toFixed(1)},${place(v).toFixed(1)}`);
  area.root.append(svg("polyline", { points: points.join(" "), class: "curve" }));
  return area;
}

// Rows of coloured spans over time. rows: [{label, spans: [[from, to, class]]}] in steps.
function timeline(container, name, rows, steps, seconds) {
  const pitch = 17, top = 20;
  const area = surface(container, top + rows.length * pitch + 20, name);
  area.root.append(svg("text", { x: 0, y: 12, class: "name" }, name));
  const place = (step) => area.left + (step / steps) * (area.right - area.left);
  rows.forEach((row, index) => {
    const y = top + index * pitch;
    area.root.append(svg("text", { x: area.left - 6, y: y + 11, "text-anchor": "end" }, row.label));
    area.root.append(svg("line",
      { x1: area.left, x2: area.right, y1: y + 14.5, y2: y + 14.5, class: "axis" }));
    for (const [from, to, kind] of row.spans) {
      const width = Math.max(place(to) - place(from), 2);
      const box = svg("rect", { x: place(from), y: y + 2, width, height: 11, class: kind });
      box.append(svg("title", {}, `${row.label}: ${kind.replace("_", " ")}`));
      area.root.append(box);
    }
  });
  timeAxis(area, seconds, top + rows.length * pitch + 14);
  return area;
}

// Runs of equal values as [from, to, value].
function runs(values) {
  const found = [];
  values.forEach((value, index) => {
    const last = found[found.length - 1];
    if (last && last[2] === value) last[1] = index + 1;
    else found.push([index, index + 1, value]);
  });
  return found;
}

function histogramChart(container, histogram, marks) {
  container.replaceChildren();
  const area = surface(container, 190, "Histogram of step durations");
  const top = 40, bottom = 160;
  const edges = histogram.edges.map(Math.log), first = edges[0], last = edges[edges.length - 1];
  const place = (ms) => area.left + ((Math.log(ms) - first) / (last - first)) * (area.right - area.left);
  const most = Math.max(...histogram.counts);
  for (const tick of niceTicks(0, most, 4)) {
    const y = bottom - (tick / most) * (bottom - top);
    area.root.append(svg("line", { x1: area.left, x2: area.right, y1: y, y2: y, class: "axis" }));
    area.root.append(svg("text", { x: area.left - 6, y: y + 4, "text-anchor": "end" }, plain(tick)));
  }
  histogram.counts.forEach((count, i) => {
    if (!count) return;
    const x = place(histogram.edges[i]), height = Math.max((count / most) * (bottom - top), 1.5);
    const width = Math.max(place(histogram.edges[i + 1]) - x - 1, 1);
    const box = svg("rect", { x, y: bottom - height, width, height, class: "bin" });
    box.append(svg("title", {},
      `${plain(histogram.edges[i])} to ${plain(histogram.edges[i + 1])} ms: ${count} steps`));
    area.root.append(box);
  });
  latencyTicks(area, histogram.edges, place, bottom);
  latencyMarks(area, marks, place, top, bottom);
}

function latencyTicks(area, edges, place, bottom) {
  const low = edges[0], high = edges[edges.length - 1];
  let ticks = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++)
    for (const m of [1, 2, 5]) if (m * 10 ** power >= low && m * 10 ** power <= high) ticks.push(m * 10 ** power);
  if (ticks.length < 3) ticks = niceTicks(low, high, 4);
  let free = -Infinity;
  for (const tick of ticks) {
    if (tick <= 0 || place(tick) < free) continue;
    free = place(tick) + 44;
    area.root.append(svg("text", { x: place(tick), y: bottom + 16, "text-anchor": "middle" }, plain(tick) + " ms"));
  }
}

function latencyMarks(area, marks, place, top, bottom) {
  marks.forEach(([name, ms], row) => { // each on its own line: they may stand close together
    const x = place(ms);
    area.root.append(svg("line", { x1: x, x2: x, y1: 4 + row * 12, y2: bottom, class: "rule" }));
    const end = x > area.right - 70;
    area.root.append(svg("text",
      { x: end ? x - 4 : x + 4, y: 12 + row * 12, "text-anchor": end ? "end" : "start" },
      `${name} ${plain(ms)}`));
  });
}
