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

const OLD = 1.5; // s without a message after which data are called old
const LINK = { connecting: "connecting", live: "live", lost: "not connected", token: "token needed" };

const parts = { status: new Status(), histogram: new Histogram(), timeline: new Timeline(), fields: new Fields(), issues: new Issues(), report: new Report() };
const link = new Link({ hello, frame, change });
const operator = new Operator(link);
let greeting = null;
let last = null;
let waiting = false; // for the next paint
let described = 0;

function hello(message) {
  greeting = message;
  last = null;
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
  const here = message.here;
  robots(message);
  const said = parts.status.update(message, here);
  if (said) put($("says"), said);
  operator.update(message.robot, here ? message.robots[message.robot] : null);
  const wall = Date.now() - message.at_ms;
  parts.timeline.add(message.slots ?? [], message.at_ms, wall);
  if (message.latency) parts.histogram.update(message.latency);
  parts.fields.update(message.state);
  parts.issues.update(message, wall);
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
  const told = JSON.stringify(names);
  if (select.dataset.names !== told) {
    select.dataset.names = told;
    const options = names.map((name) => make("option", { value: name, textContent: name in message.robots ? name : `${name} (gone)` }));
    select.replaceChildren(...(options.length ? options : [make("option", { textContent: "none yet" })]));
    select.disabled = names.length < 1;
  }
  if (message.robot !== null && select.value !== message.robot && document.activeElement !== select) select.value = message.robot;
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
  const since = (performance.now() - link.heard) / 1000;
  const silent = parts.status.tick(last === null ? 0 : since, greeting?.info.period ?? 0.1);
  const old = last !== null && (link.state !== "live" || since > OLD);
  document.documentElement.classList.toggle("old", old);
  put($("link-text"), link.state === "live" && since > OLD ? "no answer" : LINK[link.state]);
  let text = "";
  if (link.state === "token") text = link.reason ? `Not let in: ${link.reason}.` : "This service asks for its token.";
  else if (old) text = `No data for ${span(since)}: what you see is old. ${link.reason ? `${capital(link.reason)}; trying again.` : ""}`;
  else if (link.state === "lost") text = `Not connected: ${link.reason}; trying again.`;
  else if (last !== null && last.robot !== null && !last.here) text = `Robot ${last.robot} has left this process; what you see is its last.`;
  else if (silent !== null) text = `Robot ${last.robot} has sent nothing for ${span(silent)}.`;
  else if (last !== null && last.reasons.length && last.robot === null) text = `${capital(last.reasons.join("; "))}.`;
  notice(text, old || link.state === "lost" ? "bad" : "warn");
  const state = document.documentElement.dataset.breakers;
  const title = `${old ? "old data" : state === "none" || state === undefined ? "no robot" : state.replace("_", " ")}${last?.robot ? ` · ${last.robot}` : ""} · wmrt`;
  if (document.title !== title) document.title = title;
}

function notice(text, tone) {
  const node = $("notice");
  node.classList.toggle("on", text !== "");
  node.dataset.tone = tone;
  // An alert is read out whenever its text changes; the seconds that pass are not worth that.
  node.setAttribute("aria-live", node.dataset.kind === text.slice(0, 8) ? "off" : "assertive");
  node.dataset.kind = text.slice(0, 8);
  put(node, text);
}

function capital(words) {
  return words.charAt(0).toUpperCase() + words.slice(1);
}

$("robot").addEventListener("change", () => link.show($("robot").value));
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
