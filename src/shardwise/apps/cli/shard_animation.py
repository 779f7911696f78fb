"""A collective hop by hop, as HTML page and in the terminal, from what `sharding.simulate` traced.

What is shown is what was executed: every arrow is a transfer of the trace with its own bytes.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from shardwise.boundary import write_text
from shardwise.boundary.records import plain
from shardwise.sharding.simulate import CollectiveTrace, trace_frames
from shardwise.units import format_bytes

PALETTE = (
    *("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#9c755f", "#76b7b2", "#edc948"),
    *("#2f5d8a", "#c06a12", "#3b7d36", "#b83a40", "#86507a", "#6d4c36", "#4d8f8a", "#b8982a"),
)


def animate(trace: CollectiveTrace, path: Path) -> None:
    """Write one HTML file that replays the trace with play, step and a slider; no network needed.

    Devices are discs, on a circle or a grid; a round's transfers are arrows with the blocks that
    they carry (named by the device they come from, or are summed for) and their bytes; below stand
    the bytes so far on the busiest link. Raises BadRequest where the file cannot be written.
    """
    data = {**plain(trace_frames(trace)), "palette": PALETTE}
    text = _PAGE.replace("__DATA__", json.dumps(data, allow_nan=False).replace("</", "<\\/"))
    write_text(path, text, option="path")


def animate_terminal(trace: CollectiveTrace) -> Iterator[str]:
    """One frame of text per round: what every device sends, and the busiest link so far."""
    data = trace_frames(trace)
    yield f"{data.title}\n{data.algorithm}"
    for number, moves in enumerate(data.rounds, 1):
        lines = [f"round {number} of {len(data.rounds)}"]
        lines += [f"  {m.from_} -> {m.to}  {m.text}" for m in moves]
        yield "\n".join(
            [*lines, f"  most over one link so far: {format_bytes(data.busiest[number])}"]
        )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>shardwise: a collective, hop by hop</title>
<style>
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { margin: 1rem auto; max-width: 1000px; padding: 0 1rem; }
h1 { font-size: 1.15rem; margin: 0; } p { margin: .3rem 0; }
svg { width: 100%; height: 62vh; border: 1px solid #8886; border-radius: 6px; }
button { font: inherit; padding: .25rem .8rem; } input { width: 40%; vertical-align: middle; }
text { font: 13px system-ui, sans-serif; fill: currentColor; text-anchor: middle; }
.arrow { stroke-width: 2.5; fill: none; }
</style></head><body>
<h1 id="title"></h1><p id="algorithm"></p>
<p><button id="play" aria-label="play or pause">play</button>
<button id="back" aria-label="one round back">back</button>
<button id="step" aria-label="one round on">step</button>
<input id="at" type="range" min="0" value="0" aria-label="round">
<span id="where" aria-live="polite"></span></p>
<svg id="view" role="img" aria-labelledby="title"></svg>
<p id="load"></p>
<script>
"use strict";
const data = __DATA__, SVG = "http://www.w3.org/2000/svg", view = document.getElementById("view");
const W = 960, H = 540;
view.setAttribute("viewBox", `0 0 ${W} ${H}`);
const get = id => document.getElementById(id);
function add(parent, name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
}
const used = data.shape.map((n, i) => i).filter(i => data.shape[i] > 1);
const circle = used.length <= 1;
function spot(place) {
  if (circle) {
    const n = data.devices.length, i = used.length ? place[used[0]] : 0;
    const angle = 2 * Math.PI * i / n - Math.PI / 2;
    return [W / 2 + 380 * Math.cos(angle), H / 2 + 210 * Math.sin(angle)];
  }
  let row = 0, rows = 1, col = 0, cols = 1;
  used.forEach((axis, k) => {
    const n = data.shape[axis];
    if ((used.length - 1 - k) % 2) { row = row * n + place[axis]; rows *= n; }
    else { col = col * n + place[axis]; cols *= n; }
  });
  return [(col + .5) * W / cols, (row + .5) * H / rows];
}
const at = data.places.map(spot);
const size = Math.max(14, Math.min(46, 420 / Math.sqrt(data.devices.length)));
const colour = i => data.palette[i % data.palette.length];
const arrows = add(view, "g", {});
data.devices.forEach((name, i) => {
  add(view, "circle", {cx: at[i][0], cy: at[i][1], r: size / 2, fill: colour(i)});
  add(view, "text", {x: at[i][0], y: at[i][1] + 4, style: "fill:#fff"}, name);
});
let round = 0, timer = null;
function curve(move) {
  const [x1, y1] = at[move.src], [x2, y2] = at[move.dst];
  const long = Math.hypot(x2 - x1, y2 - y1) || 1, bend = 14 + long / 14;
  const mx = (x1 + x2) / 2 - (y2 - y1) / long * bend;
  const my = (y1 + y2) / 2 + (x2 - x1) / long * bend;
  return {d: `M${x1},${y1} Q${mx},${my} ${x2},${y2}`, mx, my};
}
function show() {
  arrows.replaceChildren();
  const moves = round ? data.rounds[round - 1] : [];
  for (const move of moves) {
    if (move.src < 0 || move.dst < 0) continue;
    const {d, mx, my} = curve(move);
    const path = add(arrows, "path", {d, class: "arrow", stroke: colour(move.colour)});
    add(path, "title", {}, `${move.from} to ${move.to}: ${move.text}`);
    const dot = add(arrows, "circle", {r: 6, fill: colour(move.colour)});
    const run = {path: d, dur: "0.9s", fill: "freeze", begin: "indefinite"};
    add(dot, "animateMotion", run).beginElement();
    if (moves.length <= 40) add(arrows, "text", {x: mx, y: my}, move.text);
  }
  get("where").textContent = `round ${round} of ${data.rounds.length}, ${moves.length} transfers`;
  const most = data.busiest[round].toLocaleString();
  get("load").textContent = `most over one link so far: ${most} bytes`;
  get("at").value = round;
}
function go(to) { round = Math.max(0, Math.min(data.rounds.length, to)); show(); }
function stop() { clearInterval(timer); timer = null; get("play").textContent = "play"; }
get("title").textContent = data.title;
get("algorithm").textContent = data.algorithm;
get("at").max = data.rounds.length;
get("at").oninput = event => { stop(); go(+event.target.value); };
get("back").onclick = () => { stop(); go(round - 1); };
get("step").onclick = () => { stop(); go(round + 1); };
get("play").onclick = () => {
  if (timer) return stop();
  if (round >= data.rounds.length) go(0);
  get("play").textContent = "pause";
  go(round + 1);
  timer = setInterval(() => round < data.rounds.length ? go(round + 1) : stop(), 1100);
};
show();
</script></body></html>
"""
