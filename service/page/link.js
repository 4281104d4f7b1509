// The stream of frames, over fetch so that the token travels in a header; comes back by itself.

const QUIET_MS = 3000; // the service says something five times a second
const HIDDEN_MS = 5000; // of a page that nobody sees, until it lets its connection go
const DRIFT = 5e-4; // of two machines' clocks, at most: what time services correct by
const WAITS_MS = [300, 700, 1500, 3000, 5000];
const MOST = 8 << 20; // characters of one event
const KEY = "wmrt-token";
const TOKEN = /^[\x21-\x7e]+$/; // what a header can carry

/** Whether a text can be a token at all. */
export const fit = (token) => TOKEN.test(token);

/** Why there is no stream, in words for people. */
class Lost extends Error {}

export class Link {
  /** @param {{hello, frame, change}} on functions: of messages, and of the link's own state */
  constructor(on) {
    this.on = on;
    this.robot = null; // null: the service chooses
    this.header = "x-session-id"; // by which a fleet finds the robot's process
    this.state = "connecting";
    this.reason = "";
    this.heard = performance.now(); // when the last message came
    this.late = 0; // s that it took longer than the quickest one on this connection
    this.least = Infinity; // ms between the service's clock and this one, for the quickest
    this.tries = 0;
    this.token = "";
    try { this.token = sessionStorage.getItem(KEY) ?? ""; } catch { /* memory alone */ }
    this.stopper = null;
    this.timer = this.hiding = 0;
    addEventListener("online", () => this.hurry());
    document.addEventListener("visibilitychange", () => this.seen());
    this.seen();
    setInterval(() => this.watch(), 500);
  }

  setToken(token) {
    this.token = token;
    try { if (fit(token)) sessionStorage.setItem(KEY, token); } catch { /* memory alone */ }
    this.set("connecting");
    this.start();
  }

  show(robot) {
    this.robot = robot;
    this.start();
  }

  /** Of a request about a robot, or about none. */
  headers(robot) {
    const made = this.token ? { Authorization: `Bearer ${this.token}` } : {};
    if (robot !== null) made[this.header] = robot;
    return made;
  }

  start() {
    this.end();
    const stopper = this.stopper = new AbortController();
    this.late = 0;
    this.least = Infinity;
    this.run(stopper).catch((error) => {
      if (!(error instanceof Lost)) console.error(error); // a fault of this page
      if (stopper === this.stopper) this.lost(error.message);
    });
  }

  end() {
    clearTimeout(this.timer);
    this.stopper?.abort();
    this.stopper = null;
  }

  /** HTTP/1.1 has six connections to a host: pages that nobody sees would leave none for a stop. */
  seen() {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.pause(), HIDDEN_MS);
    else { this.resume(); this.hurry(); }
  }

  pause() {
    if (this.state === "token") return;
    this.end();
    this.set("paused");
  }

  resume() {
    if (this.state !== "paused" || document.hidden) return;
    this.set("connecting");
    this.start();
  }

  hurry() {
    if (this.state === "lost") { this.tries = 0; this.start(); }
  }

  watch() {
    if (this.state === "live" && performance.now() - this.heard > QUIET_MS) {
      this.lost("the service says nothing");
    }
  }

  set(state, reason = "") {
    if (state === this.state && reason === this.reason) return;
    this.state = state;
    this.reason = reason;
    this.on.change();
  }

  lost(reason) {
    this.end();
    this.set("lost", reason);
    const wait = WAITS_MS[Math.min(this.tries, WAITS_MS.length - 1)];
    this.tries += 1;
    this.timer = setTimeout(() => this.start(), wait * (0.8 + 0.4 * Math.random()));
  }

  async run(stopper) {
    if (this.token && !fit(this.token)) {
      this.token = "";
      this.end();
      this.set("token", "what was typed is no token: those are letters, digits and signs of ASCII, without spaces");
      return;
    }
    const query = this.robot === null ? "" : `?robot=${encodeURIComponent(this.robot)}`;
    const late = setTimeout(() => stopper.abort(), QUIET_MS + 2000);
    let answer;
    try {
      answer = await fetch(`v1/live${query}`, {
        headers: this.headers(this.robot), cache: "no-store", credentials: "omit", redirect: "error", signal: stopper.signal,
      });
    } catch {
      throw new Lost("the service does not answer");
    } finally {
      clearTimeout(late);
    }
    if (stopper !== this.stopper) return;
    if (answer.status === 401) { this.stopper = null; this.set("token", this.token ? "the token is not this service's" : ""); return; }
    if (!answer.ok) throw new Lost((await refusal(answer)).message);
    await this.read(answer.body.getReader(), stopper);
    if (stopper === this.stopper) throw new Lost("the service closed the connection");
  }

  async read(reader, stopper) {
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read().catch(() => { throw new Lost("the connection broke"); });
      if (done || stopper !== this.stopper) return;
      text += decoder.decode(value, { stream: true });
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        this.take(JSON.parse(text.slice(text.indexOf(":") + 1, end)));
        text = text.slice(end + 2);
      }
      if (text.length > MOST) throw new Lost("a message is too long");
    }
  }

  /** A link that carries less than is sent holds more and more of it back. */
  measure(at, since) {
    const between = this.heard - at;
    this.least = Math.min(between, this.least + DRIFT * since);
    this.late = (between - this.least) / 1000;
  }

  take(message) {
    const before = this.heard;
    this.heard = performance.now();
    if (message.kind === "frame") this.measure(message.at_ms, this.heard - before);
    if (message.kind === "hello") this.on.hello(message);
    else if (message.kind === "frame") { this.tries = 0; this.set("live"); this.on.frame(message); }
    else if (message.kind === "stopping") throw new Lost("the service is stopping");
  }
}

/** What a service that answers says of a refusal: its name, "" if it is none, and words. */
export async function refusal(answer) {
  try {
    const { error } = await answer.json();
    return { name: String(error.name), message: String(error.message) };
  } catch {
    return { name: "", message: `status ${answer.status}` };
  }
}
