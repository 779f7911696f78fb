// Draws one figure: its marks as Plot's, its colours from the page's variables; and plays a machine.
import * as Plot from "@observablehq/plot";
import {useEffect, useRef} from "react";
import {figureCsv, pngOf, save, svgText} from "./exports.js";
import {billions, binaryTicks, logTicks, short, words as asWords} from "./numbers.js";
import {palette, series} from "./palette.js";
import {hue, mountPlayer} from "./player.js";

// A figure's frame, and what is left in it.
const FRAME = 12;
const inside = (width) => width - 2 * FRAME - 2;

export function Figure({figure, width, tall = 0, found}) {
  const place = useRef(null);
  const labels = namesOf(figure);
  useEffect(() => place.current.replaceChildren(plotOf(figure, inside(width), labels, tall)), [figure, width, tall]);
  const keys = keysOf(figure, labels);
  const drawing = () => ({svg: place.current.firstChild, title: figure.title, labels: keys, source: found.source});
  return (
    <figure className="figure" data-figure={figure.id} style={{width}}>
      <figcaption><span className="title">{figure.title}</span><SaveFigure id={figure.id} title={figure.title} drawing={drawing} csv={() => figureCsv(figure)} /></figcaption>
      <div ref={place} />
      <Legend keys={keys} />
    </figure>
  );
}

export function Player({found, width, frame, turned}) {
  const place = useRef(null), hears = useRef(turned), data = found.player;
  hears.current = turned;
  useEffect(() => mountPlayer(place.current, data, {width: inside(width), at: frame, moved: (to) => hears.current(to)}), [data, width]);
  const drawing = () => {
    const all = (one) => [...place.current.querySelectorAll(one)], words = (one) => all(one).map((node) => node.textContent).join("");
    const labels = all(".legend li").map((item) => ({label: item.textContent, solid: true, colour: item.querySelector(".key").style.getPropertyValue("--key")}));
    return {svg: all("svg")[0], title: data.title, labels, source: found.source, under: words(".where"), below: words(".key-words")};
  };
  return (
    <figure className="figure" data-figure="player" style={{width}}>
      <figcaption><span className="title">{data.title}</span><SaveFigure id="player" title={data.title} drawing={drawing} /></figcaption>
      <div ref={place} />
    </figure>
  );
}

function SaveFigure({id, title, drawing, csv}) {
  const name = (end) => `shardwise-${id}.${end}`;
  const named = (end) => `${end}: ${title}`;
  return (
    <span className="save-figure">
      <button type="button" aria-label={named("SVG")} onClick={() => save(name("svg"), svgText(drawing()), "image/svg+xml")}>SVG</button>
      <button type="button" aria-label={named("PNG")} onClick={async () => save(name("png"), await pngOf(drawing()), "image/png")}>PNG</button>
      {csv && <button type="button" aria-label={named("CSV")} onClick={() => save(name("csv"), csv(), "text/csv")}>CSV</button>}
    </span>
  );
}

// What each label is drawn as; one label alone needs no key.
function keysOf(figure, labels) {
  if (labels.length < 2) return [];
  const of = (fits) => new Set(figure.marks.filter(fits).map((mark) => mark.label)), colours = palette(labels);
  const dashed = of((m) => m.dashed || m.kind === "rule"), solid = of((m) => ["bar", "range", "rect", "dot"].includes(m.kind));
  return labels.map((label, i) => ({label: asWords(label), colour: colours[i], dashed: dashed.has(label), solid: solid.has(label)}));
}

function Legend({keys}) {
  if (!keys.length) return null;
  return (
    <ul className="legend">
      {keys.map(({label, colour, dashed, solid}) => (
        <li key={label}>
          <span className={`key${dashed ? " dashed" : ""}${solid ? " solid" : ""}`} style={{"--key": colour}} />
          {label}
        </li>
      ))}
    </ul>
  );
}

export function namesOf(figure) {
  return [...new Set(figure.marks.map((mark) => mark.label).filter(Boolean))];
}

function plotOf(figure, width, labels, tall) {
  const narrow = width < 520;
  const rows = figure.y.names.length;
  const longest = Math.max(0, ...figure.y.names.map((name) => name.length));
  const left = rows ? Math.min(16 + longest * 6.6, width * 0.45) : figure.y.bare ? 12 : 72;
  const height = figure.square ? square(figure, width) : rows ? 50 + rows * (rows < 3 ? 44 : longest > letters(left) ? 36 : 26) : Math.max(narrow ? 280 : 340, tall);
  const made = Plot.plot({
    width,
    height,
    marginLeft: left,
    marginRight: single(figure) ? 66 : 18,
    marginTop: rows ? 6 : 24,
    marginBottom: figure.x.bare ? 12 : 44,
    style: {background: "transparent", color: "var(--ink)", fontSize: "12px"},
    x: scale(figure, "x", Math.max(2, Math.floor((width - left) / 74))),
    y: scale(figure, "y", 6, left),
    marks: [...ranges(figure, labels), ...bars(figure, labels), ...figure.marks.flatMap((mark) => marks(mark, figure, palette(labels)[labels.indexOf(mark.label)] ?? series(0))), ...named(figure), ...pointed(figure)],
  });
  const svg = made.tagName === "svg" ? made : made.querySelector("svg");
  for (const group of svg.querySelectorAll("[aria-label]")) group.removeAttribute("aria-label"); // of no role
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", figure.title);
  return svg;
}

function square(figure, width) {
  const [x, y] = [extent(figure, "x"), extent(figure, "y")];
  const drawn = width - 30;
  return Math.min(560, Math.max(90, (drawn * (y[1] - y[0])) / (x[1] - x[0]) + 36));
}

function extent(figure, which) {
  const log = figure[which].log;
  const far = which === "x" ? "x2" : "y2";
  const values = figure.marks.flatMap((m) => [...m[which], ...m[far]]);
  const drawn = values.filter((v) => typeof v === "number" && (!log || v > 0));
  return [Math.min(...drawn), Math.max(...drawn)];
}

// The longest row of bars that stand one after the other.
function longest(bars) {
  const ends = {};
  for (const mark of bars) mark.y.forEach((name, i) => { ends[name] = (ends[name] ?? 0) + mark.x[i]; });
  return Math.max(...Object.values(ends));
}

function scale(figure, which, most, left = 0) {
  const {label, unit, log, names, bare} = figure[which];
  if (names.length) return {type: "band", domain: names, label: null, tickFormat: (name) => shortened(name, letters(left))};
  const named = asWords(label), title = unit && unit !== label ? `${named} [${unit}]` : named;
  if (bare) return {axis: null, domain: extent(figure, which), reverse: which === "y"};
  const options = {label: title, labelArrow: "none", grid: true, tickFormat: textOf(figure[which])};
  options.labelAnchor = which === "x" ? "right" : "top";
  const bars = figure.marks.filter((m) => m.kind === "bar");
  if (!log && unit === "bytes") {
    const most_bytes = bars.length && which === "x" ? Math.max(longest(bars), extent(figure, which)[1]) : extent(figure, which)[1];
    return {...options, domain: [0, most_bytes || 1], ticks: binaryTicks(0, most_bytes || 1, most)};
  }
  const [least, top] = extent(figure, which);
  if (!log && !unit && top - least <= 12 && figure.marks.every((m) => m[which].every(Number.isInteger))) {
    return {...options, ticks: Array.from({length: top - least + 1}, (_, i) => least + i)};
  }
  if (!log) return {...options, ticks: most, nice: true, ...(bars.length && which === "x" ? {zero: true} : {})};
  const [low, high] = extent(figure, which);
  const room = figure.marks.every((m) => m.kind === "dot") ? 1.12 : 1;
  const wide = low === high ? [low / 10, high * 10] : [low / room, high * room];
  return {...options, type: "log", domain: wide, ticks: logTicks(...wide, most), tickFormat: options.tickFormat};
}

// A number of an axis: of things that are counted 1e9 is a B.
function textOf({label, unit}) {
  const counted = /^(parameters|tokens)$/.test(unit || label);
  return (v) => (counted && v >= 1e9 ? billions(v) : short(v, plainUnit(unit)));
}

const plainUnit = (unit) => (["s", "bytes", "bytes/s", "USD", "USD/Mtokens", "USD/h"].includes(unit) ? unit : "");

// Letters of a row's name that have room beside it.
const letters = (left) => Math.max(12, Math.floor((left - 8) / 6.6));

// A name in at most two lines.
function shortened(name, most) {
  const text = asWords(name), cut = (line) => (line.length > most ? `${line.slice(0, most - 1)}…` : line);
  const at = text.length > most ? text.lastIndexOf(" ", most) : 0;
  return at > 0 ? `${text.slice(0, at)}\n${cut(text.slice(at + 1))}` : cut(text);
}

function marks(mark, figure, stroke) {
  const points = rowsOf(mark, figure);
  const title = (d) => tip(d, figure, mark);
  const dash = mark.dashed ? "5,4" : undefined;
  switch (mark.kind) {
    case "line":
      return [
        Plot.line(points, {x: "x", y: "y", stroke, strokeWidth: 2, strokeDasharray: dash}),
        ...(points.length === 1 ? [Plot.dot(points, {x: "x", y: "y", fill: stroke})] : []),
      ];
    case "dot":
      return [
        Plot.dot(points, {x: "x", y: "y", fill: stroke, stroke: "var(--paper)", r: radius(mark, figure), title}),
      ];
    case "bar":
    case "range":
      return []; // together: bars stand one after the other, dots stand on ranges
    case "rect":
      return [
        Plot.rect(points, {x1: "x", x2: "x2", y1: "y", y2: "y2", fill: mark.hues.length ? (d) => d.fill : stroke, fillOpacity: 0.85, inset: 0.5, title}),
        ...words(points, mark.hues.length ? "#ffffff" : "var(--on-series)"),
      ];
    case "rule":
      return [
        ...(mark.x.length ? [Plot.ruleX(points, {x: "x", stroke, strokeDasharray: "2,3", strokeWidth: 1.5, title})] : []),
        ...(mark.y.length ? [Plot.ruleY(points, {y: "y", stroke, strokeDasharray: "2,3", strokeWidth: 1.5, title})] : []),
      ];
    case "arrow":
      return [Plot.arrow(points, {x1: "x", y1: "y", x2: "x2", y2: "y2", stroke, bend: figure.square, strokeWidth: 2, headLength: 6, title})];
    case "text":
      return [Plot.text(points, {x: "x", y: "y", text: "text", fill: "var(--ink)"})];
    default:
      throw new Error(`a figure has a mark '${mark.kind}', which this page cannot draw`);
  }
}

// One tooltip for all lines and dots: that of the nearest point.
function pointed(figure) {
  const marks = figure.marks.filter(({kind}) => kind === "line" || kind === "dot");
  const points = marks.flatMap((mark) => rowsOf(mark, figure).map((d) => ({...d, mark})));
  if (!points.length || figure.x.names.length || figure.y.names.length) return [];
  return [Plot.tip(points, Plot.pointer({x: "x", y: "y", title: (d) => tip(d, figure, d.mark), fill: "var(--paper)", stroke: "var(--line)"}))];
}

function bars(figure, labels) {
  const every = figure.marks.filter(({kind}) => kind === "bar");
  const rows = every.flatMap((mark) => rowsOf(mark, figure).map((d) => ({...d, mark})));
  if (!rows.length) return [];
  const colours = palette(labels), fill = (d) => colours[labels.indexOf(d.mark.label)] ?? series(0);
  const drawn = [Plot.barX(rows, {x: "x", y: "y", fill, inset: 0.5, title: (d) => tip(d, figure, d.mark)})];
  const text = textOf(figure.x), value = (d) => text(d.x), middle = {text: value, fontSize: 11, fontVariant: "tabular-nums"};
  if (single(figure)) return [...drawn, Plot.text(rows, {...middle, x: "x", y: "y", dx: 5, textAnchor: "start", fill: "var(--ink)"})];
  const fits = (d, scales) => value(d).length * 6.4 + 4 < scales.x(d.x) - scales.x(0);
  return [...drawn, Plot.text(rows, Plot.stackX({...middle, x: "x", y: "y", fill: "var(--on-series)", render: only((i, scales) => fits(rows[i], scales))}))];
}

// Whether each row has one bar: then its number stands at its end.
function single(figure) {
  const rows = figure.marks.filter(({kind}) => kind === "bar").flatMap(({y}) => y);
  return rows.length > 0 && new Set(rows).size === rows.length;
}

// A mark's render that keeps some of its places.
const only = (keep) => (index, scales, values, dimensions, context, next) => next(index.filter((i) => keep(i, scales, values)), scales, values, dimensions, context);

// From one end to the other, behind the dots.
function ranges(figure, labels) {
  const colours = palette(labels);
  return figure.marks.filter(({kind}) => kind === "range").map((mark) => {
    const stroke = colours[labels.indexOf(mark.label)], rows = rowsOf(mark, figure);
    const title = (d) => `${mark.label}: ${short(d.x, figure.x.unit)} to ${short(d.x2, figure.x.unit)}`;
    return Plot.ruleY(rows, {x1: "x", x2: "x2", y: "y", stroke, strokeWidth: 10, strokeOpacity: 0.4, strokeLinecap: "round", title});
  });
}

// Names beside dots, where they touch no other: those of the last marks first.
const LONGEST_NAME = 14, MOST_NAMED = 80;
function named(figure) {
  if (figure.x.bare || !figure.marks.every(({kind}) => kind === "dot" || kind === "rule")) return [];
  const points = figure.marks.filter(({kind}) => kind === "dot").flatMap((mark) => rowsOf(mark, figure)).reverse();
  if (points.length > MOST_NAMED || !points.every(({text}) => text && text.length <= LONGEST_NAME)) return [];
  const side = new Map(), touches = (one, box) => one.x < box.x + box.w && box.x < one.x + one.w && one.y < box.y + box.h && box.y < one.y + one.h;
  const place = (index, scales, width) => {
    const dots = Array.from(index, (i) => ({i, x: scales.x(points[i].x) - 5, y: scales.y(points[i].y) - 5, w: 10, h: 10})), kept = [];
    for (const {i, x, y} of dots) {
      const w = points[i].text.length * 7, h = 16, middle = x + 5 - w / 2;
      const boxes = {right: {x: x + 12, y: y - 3, w, h}, left: {x: x - 2 - w, y: y - 3, w, h}, above: {x: middle, y: y - 18, w, h}, below: {x: middle, y: y + 12, w, h}};
      const free = Object.keys(boxes).find((one) => {
        const box = boxes[one];
        return box.x > 72 && box.x + w < width && box.y > 24 && !kept.some((other) => touches(other, box)) && !dots.some((dot) => dot.i !== i && touches(dot, box));
      });
      side.set(i, free);
      if (free) kept.push(boxes[free]);
    }
  };
  const beside = (where, textAnchor, dx, dy) => Plot.text(points, {x: "x", y: "y", text: "text", dx, dy, textAnchor, fontSize: 11, fill: "var(--ink)", render(index, scales, values, dimensions, context, next) {
    if (!side.size) place(index, scales, dimensions.width);
    return next(index.filter((i) => side.get(i) === where), scales, values, dimensions, context);
  }});
  return [beside("right", "start", 8, 0), beside("left", "end", -8, 0), beside("above", "middle", 0, -13), beside("below", "middle", 0, 15)];
}

// A word in a rectangle only where it fits into the drawn width.
function words(points, fill) {
  return [
    Plot.text(points, {
      x: (d) => (d.x + d.x2) / 2,
      y: (d) => (typeof d.y === "number" ? (d.y + d.y2) / 2 : d.y),
      text: "text",
      fill,
      fontSize: 11,
      render: only((i, scales) => points[i].text && String(points[i].text).length * 6.4 < Math.abs(scales.x(points[i].x2) - scales.x(points[i].x))),
    }),
  ];
}

export function rowsOf(mark, figure) {
  const count = Math.max(mark.x.length, mark.y.length);
  const rows = [];
  for (let i = 0; i < count; i += 1) {
    const row = {x: mark.x[i], y: mark.y[i]};
    if (mark.x2.length) row.x2 = mark.x2[i];
    if (mark.y2.length) row.y2 = mark.y2[i];
    if (mark.text.length) row.text = mark.text[i];
    if (mark.hues.length) row.fill = hue(mark.hues[i]);
    rows.push(row);
  }
  return rows.filter((d) => drawable(d.x, figure.x) && drawable(d.y, figure.y));
}

// Dots of one row may lie on each other: the later ones are smaller.
function radius(mark, figure) {
  const dots = figure.marks.filter(({kind}) => kind === "dot");
  return figure.y.names.length && dots.length > 1 ? Math.max(3, 7 - 3 * dots.indexOf(mark)) : 5;
}

const drawable = (value, axis) => value !== null && !(axis.log && value <= 0);

function tip(d, figure, mark) {
  const at = (value, {label, unit}) => value !== undefined && `${label}: ${short(value, unit)}`;
  return [mark.label, d.text, at(d.x, figure.x), at(d.y, figure.y)].filter(Boolean).join("\n");
}
