// The breakers' state, large, and the figures beside it.
import { $, fixed, put, span, whole, words } from "./format.js";

const SAYS = {
  closed: "The policy drives.",
  degraded: "The policy drives; one consensus channel is voted out or dead.",
  half_open: "The policy drives within a fraction of its limits.",
  open: "The fallback drives until the input and the answers are good again.",
  latched: "The fallback drives until an operator resets the latch.",
};
// A shape for each state, so that none depends on its colour.
const SHAPES = {
  closed: "M24 3a21 21 0 1 0 0 42a21 21 0 0 0 0-42zM14 25l7 7l14-15",
  degraded: "M24 5L45 42H3zM24 18v11M24 34v3",
  half_open: "M24 3a21 21 0 1 0 0 42a21 21 0 0 0 0-42zM24 3v42M30 12v24M36 15v18",
  open: "M24 3a21 21 0 1 0 0 42a21 21 0 0 0 0-42zM15 15l18 18M33 15l-18 18",
  latched: "M15 3h18l12 12v18l-12 12h-18l-12-12v-18zM16 22h16v12h-16zM19 22v-4a5 5 0 0 1 10 0v4",
};
const NOBODY = "M24 3a21 21 0 1 0 0 42a21 21 0 0 0 0-42zM16 24h16";

export class Status {
  constructor() {
    this.state = null;
    this.age = null; // s since the last step, when the frame was made
  }

  /** @returns what is worth announcing, or "" */
  update(frame, here) {
    const robot = here ? frame.robots[frame.robot] : null;
    const state = robot?.breakers ?? null;
    const said = state !== this.state && this.state !== null && state !== null ? `Breakers of ${frame.robot}: ${words(state)}. ${SAYS[state] ?? ""}` : "";
    this.state = state;
    this.age = robot?.age_ms ?? null;
    document.documentElement.dataset.breakers = state ?? "none";
    put($("state-name"), state === null ? (frame.robot === null ? "no robot" : "gone") : words(state));
    put($("state-text"), this.sentence(frame, robot));
    $("glyph").firstElementChild.setAttribute("d", SHAPES[state] ?? NOBODY);
    put($("engaged"), robot === null ? "–" : robot.engaged ? "engaged" : "disengaged");
    $("engaged").dataset.flag = robot !== null && !robot.engaged ? "warn" : "";
    put($("client"), robot === null ? "–" : robot.connected ? "connected" : "not connected");
    put($("rate"), frame.rate_hz === undefined ? "–" : fixed(frame.rate_hz, 1));
    if (frame.last !== undefined) {
      put($("source"), frame.last.source);
      $("source").dataset.flag = frame.last.source === "policy" ? "" : "warn";
      put($("step"), whole(frame.last.step));
      put($("misses"), `${whole(frame.late)} of ${whole(frame.steps)}`);
      $("misses").parentElement.dataset.flag = frame.last.late ? "warn" : "";
    }
    return said;
  }

  sentence(frame, robot) {
    if (robot === null) {
      return frame.robot === null ? "Nobody has opened a session yet." : `Robot ${frame.robot} is not in this process; what is shown is its last.`;
    }
    const says = SAYS[robot.breakers] ?? "";
    if (robot.stop_pressed) return `The emergency stop is pressed. The fallback drives, and an operator has to release, reset and engage.`;
    if (!robot.engaged && robot.breakers !== "latched") return "The fallback drives until an operator engages the policy.";
    return says;
  }

  clear() {
    this.age = null;
    for (const id of ["source", "engaged", "rate", "misses", "step", "client", "age"]) put($(id), "–");
  }

  /** Seconds since the robot's last step, now. */
  tick(sinceFrame, period) {
    if (this.age === null) { put($("age"), "–"); return null; }
    const seconds = this.age / 1000 + sinceFrame;
    const old = seconds > Math.max(1, 10 * period);
    put($("age"), seconds < 1 ? "now" : `${span(seconds)} ago`);
    $("age").dataset.flag = old ? "warn" : "";
    return old ? seconds : null;
  }
}
