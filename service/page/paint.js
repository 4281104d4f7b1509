// Canvases: crisp at every pixel ratio, in the page's colours, redrawn when either changes.

const canvases = new Set();
let colours = {};

const NAMES = ["card", "ink", "muted", "line", "accent", "band", "closed", "degraded", "half_open", "open", "latched", "policy", "clamped", "planned", "consensus", "blocked", "fallback"];

function readColours() {
  const style = getComputedStyle(document.documentElement);
  colours = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name.replace("_", "-")}`).trim()]));
}

export function colour(name) {
  return colours[name] ?? colours.ink;
}

/** A canvas that is drawn by `draw(context, width, height)`, in CSS pixels. */
export class Canvas {
  constructor(element, draw) {
    this.element = element;
    this.context = element.getContext("2d");
    this.paint = draw;
    this.width = this.height = 0;
    canvases.add(this);
    this.observer = new ResizeObserver(() => { this.measure(); this.draw(); });
    this.observer.observe(element);
  }

  measure() {
    const { clientWidth, clientHeight } = this.element;
    const ratio = Math.min(devicePixelRatio || 1, 3);
    this.width = clientWidth;
    this.height = clientHeight;
    const width = Math.round(clientWidth * ratio);
    const height = Math.round(clientHeight * ratio);
    if (this.element.width !== width || this.element.height !== height) {
      this.element.width = width;
      this.element.height = height;
    }
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  draw() {
    if (!this.width || document.hidden) return;
    this.context.clearRect(0, 0, this.width, this.height);
    this.context.font = "11px system-ui, sans-serif";
    this.context.textBaseline = "middle";
    this.paint(this.context, this.width, this.height);
  }

  /** Forget it; the element is gone. */
  drop() {
    this.observer.disconnect();
    canvases.delete(this);
  }
}

export function text(context, words, x, y, name = "muted", align = "left") {
  context.fillStyle = colour(name);
  context.textAlign = align;
  context.fillText(words, x, y);
}

export function line(context, x1, y1, x2, y2, name, dash = []) {
  context.strokeStyle = colour(name);
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
  context.setLineDash([]);
}

/** Slanted lines over a rectangle: a mark that does not need colour. */
export function hatch(context, x, y, width, height, name, gap = 5) {
  if (width <= 0) return;
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour(name);
  context.lineWidth = 1;
  context.beginPath();
  for (let at = x - height - (x % gap); at < x + width; at += gap) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}

export function repaint() {
  readColours();
  for (const canvas of canvases) { canvas.measure(); canvas.draw(); }
}

readColours();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
addEventListener("themechange", repaint);
document.addEventListener("visibilitychange", () => { if (!document.hidden) repaint(); });
