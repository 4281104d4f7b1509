// What an operator does. Everything is confirmed; what the service refuses is told in its words.
import { $, put, words } from "./format.js";
import { refusal } from "./link.js";

const TEXTS = {
  estop: ["Press the emergency stop?", "Stop now", "The next action is the fallback's, and the breakers latch: an operator has to release, reset and engage. This goes over the network; it does not replace the stop on the machine."],
  release: ["Release the emergency stop?", "Release", "Nothing moves yet: the breakers stay latched."],
  reset: ["Reset the latch?", "Reset", "Nothing moves yet: the fallback drives until you engage the policy. Make sure that what latched the breakers is gone."],
  engage: ["Engage the policy?", "Engage", "The policy will drive the robot from the next step on. Make sure that nobody is in its way."],
  disengage: ["Disengage the policy?", "Disengage", "The fallback drives until an operator engages again."],
};
const FREE = new Set(["estop", "disengage"]);
const DONE = { estop: "The emergency stop is pressed.", release: "The stop is released.", reset: "The latch is reset.", engage: "The policy is engaged.", disengage: "The policy is disengaged." };

export class Operator {
  /** @param {Link} link has the clients' token */
  constructor(link) {
    this.link = link;
    this.robot = null;
    this.asked = null;
    this.busy = false;
    for (const button of document.querySelectorAll("[data-action]")) {
      button.addEventListener("click", () => this.ask(button.dataset.action));
    }
    $("operator-form").addEventListener("submit", (event) => event.preventDefault());
    $("stop").addEventListener("click", () => this.ask("estop"));
    $("confirm-no").addEventListener("click", () => $("confirm").close());
    $("confirm-yes").addEventListener("click", () => this.confirmed());
    $("confirm").addEventListener("close", () => { this.asked = null; });
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
    return true;
  }

  async confirmed() {
    if (this.asked === null || this.busy) return;
    const { action, robot } = this.asked;
    this.busy = true;
    $("confirm-yes").setAttribute("aria-busy", "true");
    try {
      const headers = FREE.has(action) ? this.link.headers() : { Authorization: `Bearer ${$("operator-token").value.trim()}` };
      const answer = await fetch(`v1/breakers/${action}`, {
        method: "POST", credentials: "omit", redirect: "error", signal: AbortSignal.timeout(8000),
        headers: { ...headers, "Content-Type": "application/json" },
        body: JSON.stringify({ robot, operator: $("operator-name").value.trim() }),
      });
      if (!answer.ok) throw new Error(await refusal(answer));
      this.update(robot, await answer.json());
      this.say(`${DONE[action]} Robot ${robot}.`, false);
      $("confirm").close();
    } catch (error) {
      const words = error.name === "TimeoutError" ? "no answer within 8 s; what became of it is not known" : error.message;
      put($("confirm-error"), `Not done: ${words}`);
    } finally {
      this.busy = false;
      $("confirm-yes").removeAttribute("aria-busy");
    }
  }

  say(text, bad) {
    put($("operator-result"), text);
    $("operator-result").dataset.flag = bad ? "warn" : "";
  }
}
