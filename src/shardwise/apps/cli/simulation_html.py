"""--html of a simulator: one page that steps through its frames, without any network.

It draws what `book figure NAME --json` has, and nothing else: rectangles, arrows and moments.
"""

import json
from pathlib import Path

from shardwise.apps.cli.shard_animation import PALETTE
from shardwise.boundary import write_text
from shardwise.commands.tables.book_figure import SimulationAnswer


def write_simulation(found: SimulationAnswer, path: Path) -> None:
    """Write the page of a simulation. Raises BadRequest where that fails."""
    data = json.dumps({**found.result, "palette": PALETTE}, allow_nan=False).replace("</", "<\\/")
    write_text(path, _PAGE.replace("__DATA__", data), option="--html")


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>shardwise: a machine, step by step</title>
<meta name="viewport" content="width=device-width">
<style>
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { margin: 1rem auto; max-width: 1000px; padding: 0 1rem; }
h1 { font-size: 1.15rem; margin: 0; } p { margin: .3rem 0; }
svg { width: 100%; height: 60vh; border: 1px solid #8886; border-radius: 6px; }
button { font: inherit; padding: .25rem .8rem; } input { width: 40%; vertical-align: middle; }
table { border-collapse: collapse; } td { padding: 0 1rem 0 0; }
text { font-family: system-ui, sans-serif; text-anchor: middle; dominant-baseline: central; }
</style></head><body>
<h1 id="title"></h1><p id="source"></p>
<p><button id="play" aria-label="play or pause">play</button>
<button id="back" aria-label="one frame back">back</button>
<button id="step" aria-label="one frame on">step</button>
<input id="at" type="range" min="0" value="0" aria-label="frame">
<span id="where" aria-live="polite"></span></p>
<svg id="view" role="img" aria-labelledby="title"></svg>
<p id="legend"></p><table id="readings"></table>
<script>
"use strict";
const data = __DATA__, SVG = "http://www.w3.org/2000/svg", get = id => document.getElementById(id);
const view = get("view"), timed = data.bars.length > 0;
function add(parent, name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
}
const colour = kind => kind === "idle" ? "#8883" : data.kinds.includes(kind) ?
  data.palette[data.kinds.indexOf(kind) % data.palette.length] : "#888";
const every = timed ? data.bars : data.frames.flatMap(f => f.cells).concat(data.places);
const ends = every.map(c => [c.x, c.y, c.x + c.width, c.y + c.height]);
const low = [0, 1].map(i => Math.min(0, ...ends.map(e => e[i])));
const high = [2, 3].map(i => Math.max(1, ...ends.map(e => e[i])));
const W = 1000, H = 560, edge = 40, label = data.rows.length ? 70 : 0;
const across = (W - 2 * edge - label) / (high[0] - low[0]);
const down = (H - 2 * edge) / (high[1] - low[1]);
const sx = timed ? across : Math.min(across, down), sy = timed ? down : Math.min(across, down);
view.setAttribute("viewBox", `0 0 ${W} ${H}`);
const px = x => edge + label + (x - low[0]) * sx, py = y => edge + (y - low[1]) * sy;
function box(parent, cell, until) {
  const width = Math.min(cell.width, until - cell.x);
  if (width <= 0) return;
  const node = add(parent, "g", {});
  const place = {x: px(cell.x) + 1, y: py(cell.y) + 1, rx: 3, fill: colour(cell.kind),
    width: Math.max(width * sx - 2, 1), height: Math.max(cell.height * sy - 2, 1)};
  add(node, "rect", place);
  const room = width * sx / Math.max(cell.text.length, 2);
  const size = Math.min(18, cell.height * sy / 1.8, room * 1.6);
  const middle = {x: px(cell.x + width / 2), y: py(cell.y + cell.height / 2), "font-size": size};
  if (size > 5) add(node, "text", {...middle, fill: cell.kind === "idle" ? "#888" : "#fff"},
    cell.text);
  add(node, "title", {}, cell.kind + " " + JSON.stringify(cell.values));
}
function arrow(parent, move, names) {
  if (move.source < 0 || move.target < 0) return;
  const [a, b] = [data.places[move.source], data.places[move.target]];
  const [x1, y1, x2, y2] = [px(a.x + .5), py(a.y + .5), px(b.x + .5), py(b.y + .5)];
  const bend = 12 + Math.hypot(x2 - x1, y2 - y1) / 12, long = Math.hypot(x2 - x1, y2 - y1) || 1;
  const mx = (x1 + x2) / 2 - (y2 - y1) / long * bend, my = (y1 + y2) / 2 + (x2 - x1) / long * bend;
  const path = add(parent, "path", {d: `M${x1},${y1} Q${mx},${my} ${x2},${y2}`, fill: "none",
    stroke: colour(move.kind), "stroke-width": 2.5});
  add(path, "title", {}, `${move.text}, ${move.bytes} bytes`);
  add(parent, "circle", {cx: x2 + (mx - x2) * .25, cy: y2 + (my - y2) * .25, r: 5,
    fill: colour(move.kind)});
}
let frame = 0, timer = null;
function show() {
  view.replaceChildren();
  const now = data.frames[frame] || {at: Infinity, label: "", cells: [], moves: []};
  data.rows.forEach((name, i) =>
    add(view, "text", {x: edge + label / 2 - 8, y: py(i + .5), "font-size": 13,
      fill: "currentColor"}, name));
  const over = frame === data.frames.length - 1;
  for (const bar of data.bars) box(view, bar, over ? Infinity : now.at);
  for (const cell of data.places) {
    add(view, "circle", {cx: px(cell.x + .5), cy: py(cell.y + .5), r: Math.min(sx * .3, 24),
      fill: colour(cell.text)});
    add(view, "text", {x: px(cell.x + .5), y: py(cell.y + .5), "font-size": 13, fill: "#fff"},
      cell.text);
  }
  if (!timed) for (const cell of now.cells) box(view, cell, Infinity);
  for (const move of now.moves) arrow(view, move);
  get("where").textContent = `${frame + 1} of ${data.frames.length}: ${now.label}`;
  get("at").value = frame;
}
function go(to) { frame = Math.max(0, Math.min(data.frames.length - 1, to)); show(); }
function stop() { clearInterval(timer); timer = null; get("play").textContent = "play"; }
get("title").textContent = data.title;
get("source").textContent = data.source;
if (!data.places.length) data.kinds.forEach(kind => {
  const mark = document.createElement("span");
  mark.textContent = ` ■ ${kind} `;
  mark.style.color = colour(kind);
  get("legend").append(mark);
});
for (const [name, value] of Object.entries(data.readings)) {
  const row = get("readings").insertRow();
  row.insertCell().textContent = name;
  row.insertCell().textContent = `${+value.toPrecision(6)} ${data.units[name] || ""}`;
}
get("at").max = data.frames.length - 1;
get("at").oninput = event => { stop(); go(+event.target.value); };
get("back").onclick = () => { stop(); go(frame - 1); };
get("step").onclick = () => { stop(); go(frame + 1); };
get("play").onclick = () => {
  if (timer) return stop();
  if (frame >= data.frames.length - 1) go(0);
  get("play").textContent = "pause";
  timer = setInterval(() => frame < data.frames.length - 1 ? go(frame + 1) : stop(), 500);
};
show();
</script></body></html>
"""
