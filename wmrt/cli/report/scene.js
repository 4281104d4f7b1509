// The road from above: the car, its trail, its neighbours. Lengths in metres, y to the right (down).
"use strict";

const CAR = { length: 5, width: 2 };

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

function roundedBox(context, width, height, radius) {
  context.beginPath();
  context.roundRect(-width / 2, -height / 2, width, height, radius);
  context.fill();
}

function drawScene(canvas, data, trace, step) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const lanes = data.lanes || { centres: [trace.y[0]], width: 4 };
  const top = Math.min(...lanes.centres) - lanes.width / 2;
  const bottom = Math.max(...lanes.centres) + lanes.width / 2;
  // Phones see less road rather than smaller cars.
  const scale = Math.min((height - 16) / (bottom - top + 4), Math.max(width / 130, 4.5));
  const x0 = trace.x[step] - Math.min(40, (0.35 * width) / scale);
  const toX = (x) => (x - x0) * scale;
  const toY = (y) => height / 2 + (y - (top + bottom) / 2) * scale;
  drawRoad(context, lanes, { top, bottom, width, x0, scale, toX, toY });
  drawTrail(context, trace, step, toX, toY);
  drawCars(context, trace, step, scale, toX, toY);
}

function drawRoad(context, lanes, view) {
  context.fillStyle = colour("road");
  context.fillRect(0, view.toY(view.top), view.width, (view.bottom - view.top) * view.scale);
  context.strokeStyle = colour("mark");
  context.lineWidth = 1.5;
  context.setLineDash([3 * view.scale, 5 * view.scale]);
  context.lineDashOffset = (view.x0 % 8) * view.scale;
  for (const centre of lanes.centres) {
    const y = view.toY(centre + lanes.width / 2);
    if (centre + lanes.width / 2 >= view.bottom) continue;
    context.beginPath();
    context.moveTo(0, y);
    context.lineTo(view.width, y);
    context.stroke();
  }
  context.setLineDash([]);
}

function drawTrail(context, trace, step, toX, toY) {
  context.strokeStyle = colour("trail");
  context.globalAlpha = 0.45;
  context.lineWidth = 2;
  context.beginPath();
  for (let i = Math.max(step - 60, 0); i <= step; i++) context.lineTo(toX(trace.x[i]), toY(trace.y[i]));
  context.stroke();
  context.globalAlpha = 1;
}

function drawCars(context, trace, step, scale, toX, toY) {
  const others = trace.others[step];
  context.fillStyle = colour("other");
  for (let i = 0; i < others.length; i += 2) {
    context.save();
    context.translate(toX(trace.x[step] + others[i] / 10), toY(others[i + 1] / 10));
    roundedBox(context, CAR.length * scale, CAR.width * scale, 2.5);
    context.restore();
  }
  const hit = trace.crashed && step === trace.x.length - 1;
  context.fillStyle = colour(hit ? "bad" : "accent");
  context.save();
  context.translate(toX(trace.x[step]), toY(trace.y[step]));
  context.rotate(trace.heading[step]);
  roundedBox(context, CAR.length * scale, CAR.width * scale, 2.5);
  context.restore();
}
