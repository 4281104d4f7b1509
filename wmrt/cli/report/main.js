// Reads the embedded data, fills the page, keeps replay, plots and table in step.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const LEVELS = ["validity", "range", "rate", "consensus"];
const view = { trace: null, step: 0, timer: null, cursors: [] };

function node(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  element.append(...children);
  return element;
}

const fixed = (value, digits) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const unit = (text) => text.replace("^2", "²").replace("^3", "³");
const bytes = (n) => (n === null ? "–" : n < 1e6 ? `${(n / 1e3).toFixed(0)} kB` : `${(n / 1e6).toFixed(1)} MB`);

function fillHeader() {
  document.title = data.title;
  $("title").textContent = data.title;
  $("subtitle").textContent = data.subtitle;
  $("notes").append(...data.notes.map((note) => node("li", {}, note)));
}

function fillTiles() {
  const s = data.summary, ms = s.step_ms;
  const trips = s.trips ? Object.values(s.trips).reduce((a, b) => a + b, 0) : null;
  const tiles = [
    ["Return", fixed(s.return_mean, 2), s.return_ci95 === null ? "one episode" : `mean, ±${fixed(s.return_ci95, 2)} (95%)`],
    ["Collisions", `${s.collisions} of ${s.episodes}`, s.offroad_rate ? `left the road: ${Math.round(s.offroad_rate * s.episodes)}` : ""],
    ["Mean speed", `${fixed(s.mean_speed, 1)} m/s`, `${fixed(s.mean_speed * 3.6, 0)} km/h`],
    ["Distance", `${fixed(s.distance_m, 0)} m`, "mean of an episode"],
    ["Step p50", ms.n ? `${fixed(ms.p50, 2)} ms` : "–", ms.n ? `p99 ${fixed(ms.p99, 2)} ms, ${s.latency}` : ""],
    ["Resident", bytes(s.resident_bytes), "tensors of the model"],
    ["Breaker trips", trips === null ? "off" : String(trips),
      s.trips ? LEVELS.map((name, i) => `${name} ${s.trips[i]}`).join(", ") : "no breakers"],
  ];
  for (const [label, value, note] of tiles)
    $("tiles").append(node("div", { class: "tile" }, node("span", {}, label), node("b", {}, value), node("small", {}, note)));
}

function outcome(row) {
  return row.crashed ? "collision" : row.offroad ? "left the road" : "completed";
}

function fillEpisodes() {
  const head = ["Seed", "Return", "Outcome", "Steps", "Speed m/s", "Distance m", "Trips L0/1/2/3", "Late", "Fallback", "Degraded", "p50 ms", "p99 ms"];
  const body = node("tbody", {});
  for (const row of data.episodes) {
    const trips = row.trips ? Object.values(row.trips).join("/") : "–";
    const cells = [row.seed, fixed(row.return, 2), outcome(row), row.steps, fixed(row.mean_speed, 1), fixed(row.distance_m, 0), trips,
      row.deadline_misses ?? "–", row.fallback_steps ?? "–", row.degraded_steps ?? "–", fixed(row.step_ms.p50, 2), fixed(row.step_ms.p99, 2)];
    const line = node("tr", { "data-seed": row.seed }, ...cells.map((cell) => node("td", {}, String(cell))));
    if (outcome(row) !== "completed") line.children[2].className = "bad";
    if (data.traces[row.seed]) {
      line.className = "shown";
      line.title = "Show in the replay";
      line.addEventListener("click", () => { show(row.seed); $("scene").scrollIntoView({ block: "center" }); });
    }
    body.append(line);
  }
  $("episodes").append(node("thead", {}, node("tr", {}, ...head.map((text) => node("th", {}, text)))), body);
}

function fillRun() {
  for (const [key, value] of data.facts) $("run").append(node("dt", {}, key), node("dd", {}, value));
  $("raw").textContent = JSON.stringify(data.run, null, 1);
}

function fillLatency() {
  const s = data.summary, ms = s.step_ms;
  if (!data.histogram) { $("latency").textContent = "No step was timed."; return; }
  const parts = [`${ms.n} steps, ${s.latency}.`, `p50 ${fixed(ms.p50, 2)}, p90 ${fixed(ms.p90, 2)}, p99 ${fixed(ms.p99, 2)}, max ${fixed(ms.max, 2)} ms.`];
  if (data.controlled) parts.push(`State to action, with consensus channels and breakers: p50 ${fixed(s.act_ms.p50, 2)}, p99 ${fixed(s.act_ms.p99, 2)} ms.`);
  $("latency").textContent = parts.join(" ");
  histogramChart($("histogram"), data.histogram, [["p50", ms.p50], ["p90", ms.p90], ["p99", ms.p99]]);
}

function breakerRows(trace) {
  const rows = [];
  if (trace.state.some((state) => state !== null)) rows.push({ label: "state", spans: runs(trace.state.map((s) => s ?? "none")) });
  LEVELS.forEach((name, level) => {
    const on = runs(trace.tripped.map((mask) => (mask >> level) & 1)).filter((span) => span[2]);
    rows.push({ label: name, spans: on.map(([from, to]) => [from, to, "trip"]) });
  });
  const marked = (label, values) => rows.push({ label, spans: runs(values).filter((span) => span[2]).map(([a, b]) => [a, b, "soft"]) });
  marked("fallback", trace.source.map((source) => source === "fallback"));
  marked("late", trace.late.map(Boolean));
  return rows;
}

function drawCharts() {
  const trace = view.trace, steps = trace.x.length - 1, seconds = steps * data.period, box = $("charts");
  box.replaceChildren();
  const areas = [];
  const centres = data.lanes ? data.lanes.centres : null, half = data.lanes ? data.lanes.width / 2 : 0;
  areas.push(curveChart(box, {
    name: "Trajectory: across the road", unit: "m", values: trace.y, flip: true, ticks: centres,
    range: centres ? [Math.min(...centres) - half, Math.max(...centres) + half] : null,
    lines: centres ? centres.slice(0, -1).map((c) => c + half) : [],
  }, seconds));
  areas.push(curveChart(box, { name: "Speed", unit: "m/s", values: trace.speed, least: 5 }, seconds));
  data.actions.forEach((action, i) => areas.push(curveChart(box, {
    name: action.name[0].toUpperCase() + action.name.slice(1), unit: unit(action.unit), values: trace.actions[i], range: [action.low, action.high],
  }, seconds)));
  areas.push(timeline(box, data.controlled ? "Breakers" : "Breakers (none in this run)", data.controlled ? breakerRows(trace) : [], steps, seconds));
  view.cursors = areas.map((area) => {
    const line = svg("line", { y1: 18, y2: area.height - 8, class: "cursor" });
    area.root.append(line);
    area.root.addEventListener("pointermove", (event) => point(event, area));
    area.root.addEventListener("pointerdown", (event) => point(event, area));
    return { line, area };
  });
}

function point(event, area) {
  if (event.pointerType === "mouse" && event.type === "pointermove" && view.timer) return;
  const x = event.clientX - area.root.getBoundingClientRect().left;
  const share = (x - area.left) / (area.right - area.left);
  setStep(Math.round(Math.min(Math.max(share, 0), 1) * (view.trace.x.length - 1)));
}

function setStep(step) {
  const trace = view.trace, last = trace.x.length - 1;
  view.step = Math.min(step, last);
  $("scrub").value = view.step;
  $("clock").textContent = `${(view.step * data.period).toFixed(1)} s`;
  for (const { line, area } of view.cursors) {
    const x = area.left + (view.step / last) * (area.right - area.left);
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
  }
  const i = Math.min(view.step, last - 1);
  const parts = [`${trace.speed[view.step].toFixed(1)} m/s`];
  data.actions.forEach((action, k) => parts.push(`${action.name} ${trace.actions[k][i].toFixed(action.high < 1 ? 3 : 1)} ${unit(action.unit)}`));
  if (trace.state[i]) parts.push(`breakers ${trace.state[i].replace("_", " ")}`, `action from ${trace.source[i]}`);
  if (trace.ms[i] !== null) parts.push(`step ${trace.ms[i].toFixed(1)} ms`);
  $("reading").textContent = parts.join(" · ");
  drawScene($("scene"), data, trace, view.step);
}

function play(on) {
  clearInterval(view.timer);
  view.timer = null;
  $("play").textContent = on ? "Pause" : "Play";
  $("play").setAttribute("aria-pressed", on);
  if (!on) return;
  if (view.step >= view.trace.x.length - 1) setStep(0);
  view.timer = setInterval(() => {
    setStep(view.step + 1);
    if (view.step >= view.trace.x.length - 1) play(false);
  }, data.period * 1000);
}

function show(seed) {
  play(false);
  view.trace = data.traces[seed];
  $("episode").value = seed;
  $("scrub").max = view.trace.x.length - 1;
  for (const row of document.querySelectorAll("tbody tr")) row.classList.toggle("now", row.dataset.seed === String(seed));
  drawCharts();
  setStep(0);
}

function redraw() {
  fillLatency();
  const step = view.step;
  drawCharts();
  setStep(step);
}

fillHeader();
fillTiles();
fillEpisodes();
fillRun();
for (const row of data.episodes.filter((r) => data.traces[r.seed])) {
  data.traces[row.seed].crashed = row.crashed;
  $("episode").append(node("option", { value: row.seed }, `${row.seed}: ${outcome(row)}, return ${fixed(row.return, 1)}`));
}
show(Object.keys(data.traces)[0]);
fillLatency();
$("episode").addEventListener("change", (event) => show(event.target.value));
$("play").addEventListener("click", () => play(view.timer === null));
$("scrub").addEventListener("input", (event) => { play(false); setStep(Number(event.target.value)); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
