// What runs: model, recipe, kernels, threads, bytes; what was requested and what came of it.
import { $, bytes, make, ms, plain, put, whole, words } from "./format.js";

export class Report {
  start(hello) {
    const { info } = hello;
    const crew = info.crew;
    const run = crew.run ?? {};
    const thread = crew.inference_thread?.resolved ?? {};
    put($("run-text"), `wmrt ${info.wmrt}`);
    const facts = [
      ["Model", crew.model], ["Weights", crew.model_sha256?.slice(0, 16)], ["Recipe", crew.recipe],
      ["Kernels", Object.entries(run.kernels ?? {}).map(([name, n]) => `${name} × ${n}`).join(", ")],
      ["Layout", run.layout && (run.layout.running ?? "as stored")],
      ["Resident bytes", run.model_bytes === undefined ? null : `${bytes(run.model_bytes)} (${whole(run.model_bytes)})`],
      ["Inference thread", placed(thread)], ["Consensus", crew.consensus?.resolved.join(", ")],
      ["Robots", `${crew.robots}${crew.robots > 1 ? (crew.shared_read_of_weights ? ", one read of the weights" : ", stepped in turn") : ""}`],
      ["Period", `${ms(info.period * 1000)} ms`], ["Deadline", info.deadline === null ? "none" : `${ms(info.deadline * 1000)} ms`],
      ["Clock", info.clock], ["Schema", info.schema_hash.slice(0, 16)],
      ["Limits", plain(info.limits)],
      ["Robots listed", hello.route_by && `those of one process of a fleet, in which the header ${hello.route_by} finds a robot's; for another one open /?robot=NAME`],
    ];
    $("facts").replaceChildren(...facts.filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: plain(value) }))));
    this.resolved(run.requested ?? {}, run.resolved ?? crew.resolved ?? {});
    this.held(run.bytes ?? {}, run.model_bytes);
  }

  /** What changes while it runs. */
  update({ reasons, warnings }) {
    put($("ready"), reasons.length ? `no: ${reasons.join("; ")}` : "yes");
    $("ready").dataset.flag = reasons.length ? "warn" : "";
    put($("warnings"), warnings.length ? warnings.join("; ") : "none");
    $("warnings").dataset.flag = warnings.length ? "warn" : "";
  }

  resolved(requested, resolved) {
    const names = [...new Set([...Object.keys(requested), ...Object.keys(resolved)])].filter((name) => !name.endsWith("_reason"));
    fill("resolved", names.map((name) => {
      const got = make("td", {}, name in resolved ? plain(resolved[name]) : "–");
      if (resolved[`${name}_reason`]) got.append(make("small", { textContent: resolved[`${name}_reason`] }));
      return make("tr", {}, make("th", { scope: "row", textContent: words(name) }), make("td", { textContent: name in requested ? (requested[name] === null ? "not said" : plain(requested[name])) : "–" }), got);
    }));
  }

  held(parts, total) {
    fill("bytes", Object.entries(parts).filter(([, n]) => n > 0).sort(([, a], [, b]) => b - a).map(([name, n]) => make("tr", {},
      make("th", { scope: "row", textContent: words(name) }), make("td", { className: "num", textContent: whole(n) }),
      make("td", { className: "num", textContent: `${((100 * n) / total).toFixed(1)} %` }))));
  }
}

/** Where the thread that steps the model runs, and why not as asked. */
function placed({ cpu, priority, reasons }) {
  const parts = [typeof cpu === "number" ? `pinned to processor ${cpu}` : "not pinned", priority ? `SCHED_FIFO ${priority}` : "no real-time priority"];
  return [...parts, ...Object.values(reasons ?? {}).map(plain)].join("; ");
}

function fill(id, rows) {
  const table = $(id);
  table.tBodies[0].replaceChildren(...rows);
  table.hidden = !rows.length;
  table.previousElementSibling.hidden = !rows.length;
}
