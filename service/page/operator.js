// What an operator does. Everything is confirmed; what the service refuses is told in its words.
import { $, put, words } from "./format.js";
import { fit, refusal } from "./link.js";

const ROOM_MS = 1000; // that a command waits before the stream gives it its connection
const UNKNOWN = "whether it was done is not known; look at the state.";

const TEXTS = {
  estop: ["Press the emergency stop?", "Stop now", "The next action is the fallback's, and the breakers latch: an operator has to release, reset and engage. This goes over the network; it does not replace the stop on the machine."],
  release: ["Release the emergency stop?", "Release", "Nothing moves yet: the breakers stay latched."],
  reset: ["Reset the latch?", "Reset", "Nothing moves yet: the fallback drives until you engage the policy. Make sure that what latched the breakers is gone."],
  engage: ["Engage the policy?", "Engage", "The policy will drive the robot from the next step on. Make sure that nobody is in its way."],
  disengage: ["Disengage the policy?", "Disengage", "The fallback drives until an operator engages again."],
};
const FREE = new Set(["estop", "disengage"]);
const DONE = { estop: "The emergency stop is pressed.", release: "The stop is released.", reset: "The latch is reset.", engage: "The policy is engaged.", disengage: "The policy is disengaged." };

const named = ({ action, robot }) => `"${TEXTS[action][1]}" for robot ${robot}`;

export class Operator {
  /** @param {Link} link has the clients' token */
  constructor(link) {
    this.link = link;
    this.robot = null;
    this.asked = null;
    for (const button of document.querySelectorAll("[data-action]")) {
      button.addEventListener("click", () => this.ask(button.dataset.action));
    }
    $("operator-form").addEventListener("submit", (event) => event.preventDefault());
    $("stop").addEventListener("click", () => this.ask("estop"));
    $("confirm-no").addEventListener("click", () => $("confirm").close());
    $("confirm-yes").addEventListener("click", () => this.confirmed());
    $("confirm").addEventListener("close", () => this.closed());
  }

  start(hello) {
    $("operator-none").hidden = hello.operator_token;
    $("operator-token").disabled = !hello.operator_token;
  }

  update(robotName, robot) {
    this.robot = robot === null ? null : robotName;
    $("stop").disabled = robot === null || robot.stop_pressed;
    put($("stop"), robot?.stop_pressed ? "Stop is pressed" : "Emergency stop");
    const latched = robot?.breakers === "latched";
    const next = robot === null ? "" : robot.stop_pressed ? "release" : latched ? "reset" : robot.engaged ? "" : "engage";
    const order = ["release", "reset", "engage"];
    for (const step of $("way").children) {
      const name = step.dataset.step;
      step.dataset.is = name === next ? "next" : next && order.indexOf(name) < order.indexOf(next) ? "done" : "";
      step.firstElementChild.disabled = name !== next;
    }
    document.querySelector("[data-action=disengage]").disabled = robot === null || !robot.engaged;
  }

  ask(action) {
    if (this.robot === null) return;
    if (!FREE.has(action) && !this.mayAsk(action)) return;
    const [title, yes, text] = TEXTS[action];
    this.asked = { action, robot: this.robot };
    put($("confirm-title"), title);
    const who = $("operator-name").value.trim();
    put($("confirm-text"), `Robot ${this.robot}${who ? `, by ${who}` : ""}. ${text}`);
    put($("confirm-error"), "");
    put($("confirm-yes"), yes);
    $("confirm-yes").removeAttribute("aria-busy");
    $("confirm-yes").className = action === "estop" ? "danger" : "primary";
    $("confirm").showModal();
    // A stop is one more Enter away; what brings motion back is not.
    $(action === "estop" ? "confirm-yes" : "confirm-no").focus();
  }

  mayAsk(action) {
    for (const [id, what] of [["operator-name", "Enter your name"], ["operator-token", "Enter the operator's token"]]) {
      if (!$(id).value.trim()) {
        this.say(`${what}: ${words(action)} goes on record, and takes the operator's token.`, true);
        $(id).focus();
        return false;
      }
    }
    if (!fit($("operator-token").value.trim())) {
      this.say("What was typed is no token: those are letters, digits and signs of ASCII, without spaces.", true);
      $("operator-token").focus();
      return false;
    }
    return true;
  }

  closed() {
    if ($("confirm").open) return; // again, for another command
    if (this.asked?.sent) this.say(`Sent, and not answered yet: ${named(this.asked)}.`, true);
    this.asked = null;
  }

  /** Commands do not wait for each other: a stop is sent whatever else is under way. */
  async confirmed() {
    const mine = this.asked;
    if (mine === null || mine.sent) return;
    mine.sent = true;
    $("confirm-yes").setAttribute("aria-busy", "true");
    const room = setTimeout(() => this.link.pause(), ROOM_MS);
    const { done, text, robot } = await this.send(mine).catch((error) => (
      { done: false, text: `No answer${error.name === "TimeoutError" ? " within 8 s" : ""}: ${UNKNOWN}` }));
    clearTimeout(room);
    this.link.resume();
    if (this.asked !== mine) {
      this.say(`Late answer to ${named(mine)}: ${text}`, !done);
      return;
    }
    mine.sent = false;
    $("confirm-yes").removeAttribute("aria-busy");
    if (!done) { put($("confirm-error"), text); return; }
    if (robot !== null && mine.robot === this.robot) this.update(mine.robot, robot);
    this.say(`${text} Robot ${mine.robot}.`, false);
    $("confirm").close();
    this.next();
  }

  /** @returns {{done: boolean, text: string, robot: ?object}} what the service says; how the robot is then, if it tells */
  async send({ action, robot }) {
    const headers = { ...this.link.headers(robot), "Content-Type": "application/json" };
    if (!FREE.has(action)) headers.Authorization = `Bearer ${$("operator-token").value.trim()}`;
    const answer = await fetch(`v1/breakers/${action}`, {
      method: "POST", credentials: "omit", redirect: "error", signal: AbortSignal.timeout(8000), headers,
      body: JSON.stringify({ robot, operator: $("operator-name").value.trim() }),
    });
    if (answer.ok) return { done: true, text: DONE[action], robot: await answer.json().catch(() => null) };
    const { name, message } = await refusal(answer);
    const refused = name !== "" && name !== "internal"; // and not a proxy that has lost the service
    return { done: false, text: refused ? `Not done: ${message}` : `${message}: ${UNKNOWN}`, robot: null };
  }

  /** The focus was on a button that can be pressed no more. */
  next() {
    const at = document.activeElement; // still in the dialog until the next paint
    if (at !== document.body && !at.disabled && !$("confirm").contains(at)) return;
    (document.querySelector("#way [data-is=next] button") ?? document.querySelector("[data-action=disengage]:enabled"))?.focus();
  }

  say(text, bad) {
    put($("operator-result"), text);
    $("operator-result").dataset.flag = bad ? "warn" : "";
  }
}
