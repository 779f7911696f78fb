// Plays an animation: rectangles over time, cells of a machine, or devices with blocks on their way.
// The page mounts it as a view's figure; the file of --html is this script and nothing else.
import {short} from "./numbers.js";
import {palette} from "./palette.js";

const SVG = "http://www.w3.org/2000/svg", WAIT = 700; // milliseconds a frame at speed 1
const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

function add(parent, name, attributes = {}, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

function made(name, attributes, ...children) {
  const node = Object.assign(document.createElement(name), attributes);
  node.append(...children);
  return node;
}

const SERIES = 8;
export const hue = (i) => `hsl(${(i * 137.508) % 360} 52% 42%)`;

// A colour for each kind: the page's own while there are enough, hues beyond.
function colours(kinds) {
  const few = kinds.filter((kind) => kind !== "idle"), own = palette(few);
  return (kind) => {
    const i = few.indexOf(kind);
    if (i < 0) return "var(--line)";
    return few.length <= SERIES ? own[i] : hue(i);
  };
}

// Mounts the player in a node. `at` is the first frame shown; `moved(frame)` hears of others.
export function mountPlayer(node, data, {width, at, moved = () => {}, drawn = () => {}}) {
  const last = Math.max(0, data.frames.length - 1);
  const scene = data.bars.length ? overTime(data, width) : data.places.length ? network(data, width) : machine(data, width);
  let frame = Math.min(at ?? (data.bars.length ? last : 0), last), timer = null, speed = 1;
  const play = made("button", {type: "button", className: "play", textContent: "Play"});
  const back = made("button", {type: "button", textContent: "Back"});
  const step = made("button", {type: "button", textContent: "Step"});
  const range = made("input", {type: "range", min: 0, max: last, value: frame, ariaLabel: "Frame"});
  const speeds = made("select", {ariaLabel: "Speed"}, ...SPEEDS.map((s) => made("option", {value: s, textContent: `${s}×`, selected: s === 1})));
  const where = made("output", {className: "where"});
  const show = (run) => {
    scene.show(frame, run && !still() ? WAIT / speed : 0);
    range.value = frame;
    where.textContent = `${frame + 1} of ${last + 1}: ${data.frames[frame]?.label ?? ""}${onTheWay(data.frames[frame]?.moves ?? [])}`;
    drawn(scene.svg);
  };
  const go = (to, run = false) => {
    frame = Math.max(0, Math.min(last, to));
    show(run);
    if (!run || frame === last) moved(frame);
  };
  const stop = () => { clearInterval(timer); timer = null; play.textContent = "Play"; };
  const tick = () => { if (frame < last) go(frame + 1, true); else { stop(); show(false); } };
  const start = () => { clearInterval(timer); timer = setInterval(tick, WAIT / speed); play.textContent = "Pause"; };
  play.onclick = () => {
    if (timer) { stop(); show(false); moved(frame); return; }
    if (frame === last) go(0, true);
    start();
  };
  back.onclick = () => { stop(); go(frame - 1); };
  step.onclick = () => { stop(); go(frame + 1); };
  range.oninput = () => { stop(); go(Number(range.value)); };
  speeds.onchange = () => { speed = Number(speeds.value); if (timer) start(); };
  const bar = made("div", {className: "player", role: "group", ariaLabel: "Player"}, play, back, step, speeds, range, where);
  node.replaceChildren(...(last ? [bar] : []), scene.svg, legend(data, scene.colour), made("p", {className: "key-words", textContent: meaning(data)}));
  show(false);
  return stop;
}

// How much moves in a frame: what each transfer has where that is one size, else all of them.
function onTheWay(moves) {
  if (!moves.length) return "";
  const sizes = moves.map((move) => move.bytes), same = sizes.every((size) => size === sizes[0]);
  const all = same ? `${short(sizes[0], "bytes")} each` : `${short(sizes.reduce((a, b) => a + b), "bytes")} in all`;
  return `, ${moves.length} transfer${moves.length > 1 ? "s" : ""} of ${all}`;
}

// What squares and dots of a network mean, and the bars of a rank's further chunks.
function meaning({places, reduces, bars}) {
  const chunks = Math.max(0, ...bars.map(chunkOf));
  if (chunks) return `Lighter, with ': ${chunks > 1 ? "later chunks of a rank, a ' for each before" : "the second chunk of a rank"}.`;
  const has = reduces ? "the device has the sum of that block, or a part of it" : "the device has that block";
  return places.length ? `Filled square: ${has}. Faded square: it does not. Dot: a block on its way.` : "";
}

const chunkOf = ({values = {}}) => ("microbatch" in values ? values.chunk : 0);

function legend(data, colour) {
  const kinds = data.places.length ? [] : data.kinds;
  return made("ul", {className: "legend"}, ...kinds.map((kind) => {
    const key = made("span", {className: "key solid"});
    key.style.setProperty("--key", colour(kind));
    return made("li", {}, key, data.names?.[kind] ?? kind.replaceAll("_", " "));
  }));
}

function canvas(data, width, height) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of Object.entries({width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": data.title, "font-size": 12, "font-family": "system-ui, sans-serif"})) svg.setAttribute(key, value);
  return svg;
}

// A rectangle with its word, as large as fits; below seven pixels there is none.
function box(parent, cell, {x, y, width, height}, fill) {
  const group = add(parent, "g");
  const chunk = cell.text ? chunkOf(cell) : 0, text = cell.text + "'".repeat(chunk);
  add(group, "rect", {x, y, width: Math.max(width, 0.5), height: Math.max(height, 0.5), rx: Math.min(3, width / 4), fill, "fill-opacity": chunk ? 0.5 : 1});
  const size = Math.min(13, height * 0.7, (width - 2) / Math.max(cell.text.length + chunk / 2, 1) * 1.7);
  if (size >= 7) add(group, "text", {x: x + width / 2, y: y + height / 2, "font-size": size, "text-anchor": "middle", "dominant-baseline": "central", fill: cell.kind === "idle" ? "var(--soft)" : chunk ? "var(--ink)" : "var(--on-series)"}, text);
  const more = Object.entries(cell.values ?? {}).map(([name, value]) => `${name.replaceAll("_", " ")}: ${value}`);
  add(group, "title", {}, [`${cell.kind} ${cell.text}`.trim(), ...more].join("\n"));
  return group;
}

// ---- what takes how long, a row for each rank or slot

function overTime(data, width) {
  const longest = Math.max(0, ...data.rows.map((name) => name.length));
  const left = data.rows.length ? 16 + longest * 6.6 : 12, top = 8, foot = 40;
  const rows = Math.max(data.rows.length, ...data.bars.map((bar) => bar.y + bar.height));
  const tall = Math.max(14, Math.min(34, 420 / rows)), height = top + rows * tall + foot;
  const end = Math.max(...data.bars.map((bar) => bar.x + bar.width)) || 1;
  const px = (x) => left + (x / end) * (width - left - 16), py = (y) => top + y * tall;
  const svg = canvas(data, width, height), colour = colours(data.kinds);
  data.rows.forEach((name, i) => add(svg, "text", {x: left - 8, y: py(i + 0.5), "text-anchor": "end", "dominant-baseline": "central", fill: "var(--ink)"}, name));
  const base = top + rows * tall;
  for (const tick of ticks(end, Math.max(2, Math.floor((width - left) / 90)))) {
    add(svg, "line", {x1: px(tick), x2: px(tick), y1: base, y2: base + 5, stroke: "var(--soft)"});
    add(svg, "text", {x: px(tick), y: base + 16, "text-anchor": tick === 0 ? "start" : "middle", fill: "var(--ink)"}, data.x_unit === "s" ? short(tick, "s") : Number(tick.toPrecision(3)));
  }
  add(svg, "text", {x: width - 16, y: base + 33, "text-anchor": "end", fill: "var(--ink)"}, data.x_unit ? `${data.x_label} [${data.x_unit}]` : data.x_label);
  const bars = data.bars.map((bar) => [bar, box(svg, bar, {x: px(bar.x) + 0.5, y: py(bar.y) + 0.5, width: px(bar.x + bar.width) - px(bar.x) - 1, height: bar.height * tall - 1}, colour(bar.kind))]);
  const now = add(svg, "line", {y1: top - 6, y2: base, stroke: "var(--ink)", "stroke-width": 1.5});
  const show = (frame) => {
    const moment = data.frames[frame], over = !moment || frame === data.frames.length - 1;
    const at = over ? end : moment.at;
    for (const [bar, group] of bars) group.setAttribute("opacity", over || bar.x < at || (bar.x === at && at === 0) ? 1 : 0.18);
    now.setAttribute("x1", px(Math.min(at, end)));
    now.setAttribute("x2", px(Math.min(at, end)));
    now.setAttribute("opacity", over ? 0 : 1);
  };
  return {svg, colour, show};
}

function ticks(end, most) {
  const raw = end / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= raw);
  return Array.from({length: Math.floor(end / step + 1e-9) + 1}, (_, i) => i * step);
}

// ---- cells on a grid of unit squares

function machine(data, width) {
  const cells = data.frames.flatMap((frame) => frame.cells);
  const low = [Math.min(0, ...cells.map((c) => c.x)), Math.min(0, ...cells.map((c) => c.y))];
  const high = [Math.max(1, ...cells.map((c) => c.x + c.width)), Math.max(1, ...cells.map((c) => c.y + c.height))];
  const unit = Math.min((width - 16) / (high[0] - low[0]), 520 / (high[1] - low[1]), 56);
  const svg = canvas(data, width, (high[1] - low[1]) * unit + 16), colour = colours(data.kinds);
  const layer = add(svg, "g");
  const show = (frame) => {
    layer.replaceChildren();
    for (const cell of data.frames[frame]?.cells ?? []) box(layer, cell, {x: 8 + (cell.x - low[0]) * unit + 1, y: 8 + (cell.y - low[1]) * unit + 1, width: cell.width * unit - 2, height: cell.height * unit - 2}, colour(cell.kind));
  };
  return {svg, colour, show};
}

// ---- devices, their links, and the blocks that each has

function network(data, width) {
  const devices = data.places.filter((place) => place.kind === "device");
  const xs = data.places.map((p) => p.x), ys = data.places.map((p) => p.y);
  const span = [Math.max(...xs) - Math.min(...xs) + 1.2, Math.max(...ys) - Math.min(...ys) + 1.2];
  const free = width < 520 ? innerHeight * 0.6 - 300 : innerHeight - 450; // beside title, sentence and buttons, and the sheet of a phone
  const room = Math.max(240, Math.min(406, free));
  const unit = Math.min((width - 24) / span[0], room / span[1], 150);
  const apart = Math.min(...data.places.flatMap((a, i) => data.places.slice(i + 1).map((b) => Math.hypot(a.x - b.x, a.y - b.y))));
  const side = Math.max(16, unit * Math.min(1, apart * 0.56)), blocks = devices.length;
  const svg = canvas(data, width, span[1] * unit + 24), colour = (kind) => hue(devices.findIndex((d) => d.text === kind));
  const off = (width - span[0] * unit) / 2;
  const px = (i) => off + (data.places[i].x - Math.min(...xs) + 0.6) * unit, py = (i) => 12 + (data.places[i].y - Math.min(...ys) + 0.6) * unit;
  const links = new Map(), ends = data.frames.flatMap((frame) => frame.moves);
  const near = 1.3 * Math.min(...ends.map((move) => Math.hypot(px(move.target) - px(move.source), py(move.target) - py(move.source))));
  const wires = add(svg, "g", {fill: "none"}), lit = add(svg, "g", {fill: "none"}), dots = add(svg, "g"), boxes = add(svg, "g"); // a dot hides no block
  const names = add(svg, "g", {fill: "var(--ink)", stroke: "var(--paper)", "stroke-width": 3, "paint-order": "stroke", "font-size": 11, "text-anchor": "end"});
  for (const move of ends) {
    const key = [move.source, move.target].sort((a, b) => a - b).join(" ");
    if (!links.has(key)) links.set(key, add(wires, "path", {d: path(move.source, move.target), stroke: "var(--line)", "stroke-width": 1.5}));
  }
  // A link between neighbours is straight; one that passes over others is an arc beside them.
  function path(source, target) {
    const [a, b] = [source, target].sort((one, other) => one - other);
    const [x1, y1, x2, y2] = source === a ? [px(a), py(a), px(b), py(b)] : [px(b), py(b), px(a), py(a)];
    const dx = x2 - x1, dy = y2 - y1, far = Math.hypot(dx, dy);
    if (far < near) return `M${x1},${y1} L${x2},${y2}`;
    const bend = Math.min(unit * 0.46, far * 0.2) * (source === a ? 1 : -1);
    return `M${x1},${y1} Q${(x1 + x2) / 2 + (-dy / far) * bend * 2},${(y1 + y2) / 2 + (dx / far) * bend * 2} ${x2},${y2}`;
  }
  const root = Math.ceil(Math.sqrt(blocks)), cell = (side - 6) / root;
  const held = data.places.map((place, i) => {
    const group = add(boxes, "g"), x = px(i) - side / 2, y = py(i) - side / 2;
    add(group, "rect", {x, y, width: side, height: side, rx: 4, fill: "var(--paper)", stroke: place.kind === "device" ? colour(place.text) : "var(--soft)", "stroke-width": 2});
    add(group, "title", {}, `${place.kind} ${place.text}`);
    if (unit >= 34) add(names, "text", {x: x + side, y: y - 4}, place.text); // beside what comes through the middle of a side
    return place.kind === "device" ? devices.map((_, b) => add(group, "rect", {x: x + 3 + (b % root) * cell, y: y + 3 + Math.floor(b / root) * cell, width: Math.max(1, cell - 1), height: Math.max(1, cell - 1), fill: hue(b), opacity: 0.1})) : [];
  });
  const show = (frame, run) => {
    const has = holdings(data, devices.length, frame);
    held.forEach((cells, i) => cells.forEach((rect, b) => rect.setAttribute("opacity", has[i].has(b) ? 1 : 0.1)));
    lit.replaceChildren();
    dots.replaceChildren();
    for (const move of data.frames[frame]?.moves ?? []) {
      const d = path(move.source, move.target), stroke = colour(move.kind);
      const line = add(lit, "path", {d, stroke, "stroke-width": 4, "stroke-opacity": 0.55});
      add(line, "title", {}, `${move.text}, ${move.bytes.toLocaleString()} bytes`);
      const dot = add(dots, "circle", {r: Math.max(3, Math.min(7, side / 6)), fill: stroke, stroke: "var(--paper)"});
      if (run) {
        const motion = add(dot, "animateMotion", {path: d, dur: `${run * 0.8}ms`, fill: "freeze", begin: "indefinite"});
        motion.beginElement();
      } else rest(dot, line);
    }
  };
  return {svg, colour, show};
}

// Puts a dot that does not move half way along its link and on its right, beside that of the other way.
export function rest(dot, way) {
  const half = way.getTotalLength() / 2, aside = Number(dot.getAttribute("r")) + 1;
  const [a, b] = [way.getPointAtLength(half - 1), way.getPointAtLength(half + 1)], far = Math.hypot(b.x - a.x, b.y - a.y) || 1;
  dot.setAttribute("cx", (a.x + b.x) / 2 - ((b.y - a.y) / far) * aside);
  dot.setAttribute("cy", (a.y + b.y) / 2 + ((b.x - a.x) / far) * aside);
}

// The blocks that each place has by a frame. A copy stays where it was; a partial sum does not, until
// the block has all of its parts, which it has where it belongs.
function holdings(data, devices, frame) {
  const every = Array.from({length: devices}, (_, i) => i);
  const found = data.places.map((_, i) => new Set(i >= devices ? [] : data.reduces ? every : [i]));
  const whole = every.map((i) => new Set([i]));
  for (const {moves} of data.frames.slice(0, frame + 1)) {
    for (const {source, blocks} of moves) for (const block of blocks) if (data.reduces && !whole[block].has(source)) found[source].delete(block);
    for (const {source, target, blocks} of moves) {
      for (const block of blocks) {
        found[target].add(block);
        if (whole[block].has(source)) whole[block].add(target);
      }
    }
  }
  return found;
}
