// Puts the parts together: a message of the stream in, what it changes on the page out.
import { $, make, put, span } from "./format.js";
import { Fields } from "./fields.js";
import { Histogram } from "./histogram.js";
import { Issues } from "./issues.js";
import { Link } from "./link.js";
import { Operator } from "./operator.js";
import { Report } from "./report.js";
import { Status } from "./status.js";
import { Timeline } from "./timeline.js";

const OLD = 1.5; // s without a message, or that one came late, after which data are called old
const LINK = { connecting: "connecting", live: "live", lost: "not connected", paused: "paused", token: "token needed" };

const parts = { status: new Status(), histogram: new Histogram(), timeline: new Timeline(), fields: new Fields(), issues: new Issues(), report: new Report() };
const link = new Link({ hello, frame, change });
const operator = new Operator(link);
const asked = new URLSearchParams(location.search).get("robot");
if (/^[A-Za-z0-9][\w.-]*$/.test(asked ?? "")) link.robot = asked;
let greeting = null;
let last = null;
let waiting = false; // for the next paint
let described = 0;

function hello(message) {
  greeting = message;
  last = null;
  described = 0;
  link.header = message.route_by ?? link.header;
  parts.histogram.clear(message.info.deadline === null ? null : message.info.deadline * 1000);
  parts.timeline.start(message);
  parts.fields.start(message);
  parts.issues.clear();
  parts.report.start(message);
  parts.status.clear();
  operator.start(message);
}

function frame(message) {
  last = message;
  link.robot ??= message.robot; // another process, or a later one, may have another first robot
  const here = message.here;
  robots(message);
  const said = parts.status.update(message, here);
  if (said) put($("says"), said);
  operator.update(message.robot, here ? message.robots[message.robot] : null);
  const wall = Date.now() - message.at_ms - link.late * 1000;
  parts.timeline.add(message.slots ?? [], message.at_ms, wall);
  if (message.latency) parts.histogram.update(message.latency);
  parts.fields.update(message.state);
  parts.issues.update(message, wall);
  parts.report.update(message);
  if (!waiting) { waiting = true; requestAnimationFrame(paint); }
  tick();
}

function paint() {
  waiting = false;
  parts.timeline.draw();
  const now = performance.now();
  if (now - described > 5000) { // a text that changes five times a second cannot be read
    described = now;
    put($("time-text"), parts.timeline.describe());
  }
}

function robots(message) {
  const names = Object.keys(message.robots);
  if (message.robot !== null && !names.includes(message.robot)) names.push(message.robot);
  const select = $("robot");
  const labels = names.map((name) => (name in message.robots ? name : `${name} (gone)`));
  const told = JSON.stringify(labels);
  const other = select.dataset.labels !== told;
  if (other) {
    select.dataset.labels = told;
    const options = names.map((name, i) => make("option", { value: name, textContent: labels[i] }));
    select.replaceChildren(...(options.length ? options : [make("option", { textContent: "none yet" })]));
    select.disabled = names.length < 1;
  }
  const shown = link.robot ?? message.robot;
  // What somebody is about to choose is left alone; new options begin with the first one chosen.
  if (shown !== null && select.value !== shown && (other || document.activeElement !== select)) select.value = shown;
}

/** Another robot: what is known of it at once, and nothing of the one before. */
function choose(name) {
  const known = last;
  link.show(name);
  if (known === null) return;
  hello(greeting);
  const { at_ms, robots, reasons, warnings } = known;
  frame({ at_ms, robots, reasons, warnings, robot: name, here: name in robots });
}

function change() {
  document.documentElement.dataset.link = link.state;
  $("link").dataset.link = link.state;
  if (link.state === "live") { $("login").close(); put($("says"), "Connected, data are live."); }
  if (link.state === "lost") put($("says"), `Not connected: ${link.reason}.`);
  if (link.state === "token" && !$("login").open) {
    put($("login-error"), link.reason ? `Not let in: ${link.reason}.` : "");
    $("login").showModal();
    $("login-token").focus();
  }
  tick();
}

/** What depends on the time that passes, and not on what comes. */
function tick() {
  const silence = (performance.now() - link.heard) / 1000;
  const since = silence + link.late;
  const silent = parts.status.tick(last === null ? 0 : since, greeting?.info.period ?? 0.1);
  const late = link.state === "live" && silence <= OLD && since > OLD;
  const old = last !== null && (link.state !== "live" || since > OLD);
  document.documentElement.classList.toggle("old", old);
  put($("link-text"), late ? "late" : link.state === "live" && since > OLD ? "no answer" : LINK[link.state]);
  const [kind, text] = told(old, late, since, silence, silent);
  notice(kind, text, old || link.state === "lost" ? "bad" : "warn");
  const state = document.documentElement.dataset.breakers;
  const title = `${link.state === "paused" ? "paused" : old ? "old data" : state === "none" || state === undefined ? "no robot" : state.replace("_", " ")}${last?.robot ? ` · ${last.robot}` : ""} · wmrt`;
  if (document.title !== title) document.title = title;
}

/** What to know before all else: its kind, and words. */
function told(old, late, since, silence, silent) {
  if (link.state === "token") return ["token", link.reason ? `Not let in: ${link.reason}.` : "This service asks for its token."];
  if (old && late) return ["late", `Data arrive ${span(since)} late: what you see is old. The link is too slow.`];
  if (old) return [`old ${link.reason}`, `No data for ${span(silence)}: what you see is old. ${link.reason ? `${capital(link.reason)}; trying again.` : ""}`];
  if (link.state === "lost") return [`lost ${link.reason}`, `Not connected: ${link.reason}; trying again.`];
  if (last === null) return ["", ""];
  if (last.robot !== null && !last.here) return ["gone", `Robot ${last.robot} has left this process; what you see is its last.`];
  // The breakers' state tells of this robot's latch, and large.
  const why = last.robot === null ? last.reasons : last.reasons.filter((one) => !one.startsWith("latched"));
  const words = why.map((one) => `${capital(one)}.`);
  if (silent !== null) words.unshift(`Robot ${last.robot} has sent nothing for ${span(silent)}.`);
  return [`${silent !== null} ${why.length}`, words.join(" ")];
}

function notice(kind, text, tone) {
  const node = $("notice");
  node.classList.toggle("on", text !== "");
  node.dataset.tone = tone;
  // An alert is read out whenever its text changes; the seconds that pass are not worth that.
  node.setAttribute("aria-live", node.dataset.kind === kind ? "off" : "assertive");
  node.dataset.kind = kind;
  put(node, text);
}

function capital(words) {
  return words.charAt(0).toUpperCase() + words.slice(1);
}

$("robot").addEventListener("change", () => choose($("robot").value));
$("link").addEventListener("click", () => { if (link.state === "token") { $("login").showModal(); $("login-token").focus(); } else link.start(); });
$("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = $("login-token").value.trim();
  $("login-token").value = "";
  $("login").close();
  link.setToken(token);
});
$("login-no").addEventListener("click", () => $("login").close());
setInterval(tick, 250);
link.start();
