// The stream of frames, over fetch so that the token travels in a header; comes back by itself.

const QUIET_MS = 3000; // the service says something five times a second
const WAITS_MS = [300, 700, 1500, 3000, 5000];
const MOST = 8 << 20; // characters of one event
const KEY = "wmrt-token";

/** Why there is no stream, in words for people. */
class Lost extends Error {}

export class Link {
  /** @param {{hello, frame, change}} on functions: of messages, and of the link's own state */
  constructor(on) {
    this.on = on;
    this.robot = null;
    this.state = "connecting";
    this.reason = "";
    this.heard = performance.now(); // when the last message came
    this.tries = 0;
    this.token = "";
    try { this.token = sessionStorage.getItem(KEY) ?? ""; } catch { /* memory alone */ }
    this.stopper = null;
    this.timer = 0;
    addEventListener("online", () => this.hurry());
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.hurry(); });
    setInterval(() => this.watch(), 500);
  }

  setToken(token) {
    this.token = token;
    try { sessionStorage.setItem(KEY, token); } catch { /* memory alone */ }
    this.set("connecting");
    this.start();
  }

  show(robot) {
    this.robot = robot;
    this.start();
  }

  headers() {
    return this.token ? { Authorization: `Bearer ${this.token}` } : {};
  }

  start() {
    clearTimeout(this.timer);
    this.stopper?.abort();
    const stopper = this.stopper = new AbortController();
    this.run(stopper).catch((error) => {
      if (!(error instanceof Lost)) console.error(error); // a fault of this page
      if (stopper === this.stopper) this.lost(error.message);
    });
  }

  hurry() {
    if (this.state === "lost") { this.tries = 0; this.start(); }
  }

  watch() {
    if (this.state === "live" && performance.now() - this.heard > QUIET_MS) {
      this.stopper.abort();
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
    this.stopper = null;
    this.set("lost", reason);
    const wait = WAITS_MS[Math.min(this.tries, WAITS_MS.length - 1)];
    this.tries += 1;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.start(), wait * (0.8 + 0.4 * Math.random()));
  }

  async run(stopper) {
    const query = this.robot === null ? "" : `?robot=${encodeURIComponent(this.robot)}`;
    const late = setTimeout(() => stopper.abort(), QUIET_MS + 2000);
    let answer;
    try {
      answer = await fetch(`v1/live${query}`, {
        headers: this.headers(), cache: "no-store", credentials: "omit", redirect: "error", signal: stopper.signal,
      });
    } catch {
      throw new Lost("the service does not answer");
    } finally {
      clearTimeout(late);
    }
    if (stopper !== this.stopper) return;
    if (answer.status === 401) { this.stopper = null; this.set("token", this.token ? "the token is not this service's" : ""); return; }
    if (!answer.ok) throw new Lost(await refusal(answer));
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

  take(message) {
    this.heard = performance.now();
    if (message.kind === "hello") this.on.hello(message);
    else if (message.kind === "frame") { this.tries = 0; this.set("live"); this.on.frame(message); }
    else if (message.kind === "stopping") throw new Lost("the service is stopping");
  }
}

/** The words of a refusal. */
export async function refusal(answer) {
  try {
    const { error } = await answer.json();
    return error.message;
  } catch {
    return `status ${answer.status}`;
  }
}
