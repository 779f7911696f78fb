// What a view is saved as: SVG, PNG, CSV, and a page of its own.
import {answer} from "./source.js";
import {rowsOf} from "./figure.jsx";
import {short} from "./numbers.js";
import {rest} from "./player.js";

export function save(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], {type}));
  const link = Object.assign(document.createElement("a"), {href: url, download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// A drawing that can stand alone: title, legend and source in it, variables of the page as colours.
const SPACE = "http://www.w3.org/2000/svg", LINE = 20, LETTER = 6.6, CAPTION = 8.4; // pixels: a line, a letter, a bold one

function element(parent, name, attributes, text = "") {
  const node = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  parent.append(node);
  return node;
}

// Words in lines of so many letters.
function wrapped(text, most) {
  return text.split(" ").reduce((found, word) => {
    const longer = found.length ? `${found.at(-1)} ${word}` : word;
    return found.length && longer.length <= most ? [...found.slice(0, -1), longer] : [...found, word];
  }, []);
}

// What moves stands half way.
function halted(svg) {
  for (const motion of svg.querySelectorAll("animateMotion")) {
    const way = document.createElementNS(SPACE, "path");
    way.setAttribute("d", motion.getAttribute("path"));
    rest(motion.parentNode, way);
    motion.remove();
  }
}

// A label's key: a dashed or a whole line as it is drawn, a square of what is filled.
function keyOf(whole, x, y, {colour, solid, dashed}) {
  if (solid) return element(whole, "rect", {x, y: y - 9, width: 10, height: 10, rx: 2, fill: colour});
  return element(whole, "line", {x1: x, x2: x + 14, y1: y - 4, y2: y - 4, stroke: colour, "stroke-width": 3, "stroke-dasharray": dashed ? "4 2" : "none"});
}

function alone({svg, title, labels, source, under = "", below = ""}) {
  const {width, height} = svg.getBoundingClientRect();
  const whole = document.createElementNS(SPACE, "svg");
  element(whole, "rect", {width: "100%", height: "100%", fill: "var(--paper)"});
  const caption = wrapped(title, Math.floor((width - 16) / CAPTION)), most = Math.floor((width - 16) / LETTER);
  caption.forEach((line, i) => element(whole, "text", {x: 8, y: 19 + LINE * i, "font-size": 14, "font-weight": 600, fill: "var(--ink)"}, line));
  const said = (text, at) => (text ? wrapped(text, most) : []).map((line, i) => element(whole, "text", {x: 8, y: at + LINE * i, "font-size": 12, fill: "var(--soft)"}, line)).length * LINE;
  const head = LINE * caption.length, top = 10 + head + said(under, 19 + head);
  const copy = svg.cloneNode(true);
  halted(copy);
  for (const [key, value] of Object.entries({y: top, width, height, overflow: "visible"})) copy.setAttribute(key, value);
  whole.append(copy);
  let x = 8, y = top + height + 16;
  for (const {label, ...key} of labels) {
    const long = 24 + label.length * LETTER;
    if (x > 8 && x + long > width) [x, y] = [8, y + LINE];
    keyOf(whole, x, y, key);
    element(whole, "text", {x: x + 18, y, "font-size": 12, fill: "var(--ink)"}, label);
    x += long + 10;
  }
  if (labels.length) y += LINE;
  y += said(below, y);
  element(whole, "text", {x: 8, y, "font-size": 11, fill: "var(--soft)"}, `shardwise${source ? `; ${source}` : ""}`);
  for (const [key, value] of Object.entries({xmlns: SPACE, width, height: y + 10, viewBox: `0 0 ${width} ${y + 10}`, "font-family": "system-ui, sans-serif"})) whole.setAttribute(key, value);
  return whole;
}

export const svgText = (drawing) => coloured(alone(drawing));

function coloured(svg) {
  const style = getComputedStyle(document.documentElement);
  const text = new XMLSerializer().serializeToString(svg);
  return text.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
}

export async function pngOf(drawing) {
  const svg = alone(drawing), width = Number(svg.getAttribute("width")), height = Number(svg.getAttribute("height"));
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(coloured(svg))}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), {width: 2 * width, height: 2 * height});
  canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

export function csvOf(found) {
  const blocks = found.figures.map(figureRows).concat(found.tables.map(tableRows));
  return blocks.map((rows) => rows.map((row) => row.map(cell).join(",")).join("\n")).join("\n\n") + "\n";
}

export const figureCsv = (figure) => figureRows(figure).map((row) => row.map(cell).join(",")).join("\n") + "\n";

function figureRows(figure) {
  const name = ({label, unit}, other) => (unit ? `${label} [${unit}]` : label || other);
  const header = [`figure: ${figure.title}`, name(figure.x, "x"), name(figure.y, "y"), "to x", "to y", "text"];
  const rows = figure.marks.flatMap((mark) =>
    rowsOf(mark, figure).map((d) => [mark.label, d.x, d.y, d.x2, d.y2, d.text]));
  return [header, ...rows];
}

function tableRows(table) {
  return [[`table: ${table.title}`], table.header, ...table.rows];
}

function cell(value) {
  const text = value === null || value === undefined ? "" : String(value);
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

// A decision sheet: chips x price x growth, with the answer it goes with and the commands it is from.
export function sheetCsv(view, found, {header, rows, notes, commands}) {
  const said = [found.says, ...notes, ...commands, location.href].map((line) => [line]);
  return [[`decision sheet: ${view.title}`], ...said, [], header, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

export function sheetHtml(view, found, {header, rows, notes, commands}) {
  const one = (tag, text) => `<${tag}>${String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;")}</${tag}>`;
  const row = (tag, cells) => `<tr>${cells.map((value) => one(tag, short(value))).join("")}</tr>`;
  return [
    '<!doctype html><html lang="en"><head><meta charset="utf-8">',
    `${one("title", `Decision: ${view.title}`)}<style>body{font:15px/1.5 system-ui,sans-serif;margin:24px;max-width:1100px}`,
    "table{border-collapse:collapse}td,th{padding:3px 10px;border-bottom:1px solid #c9ced6;text-align:left}pre{white-space:pre-wrap}</style></head><body>",
    one("h1", found.says),
    ...found.lines.map((line) => one("p", line)),
    one("h2", "Chips x price x growth"),
    `<table><thead>${row("th", header)}</thead><tbody>${rows.map((cells) => row("td", cells)).join("")}</tbody></table>`,
    ...notes.map((line) => one("p", line)),
    one("h2", "Commands"),
    one("pre", [...found.commands, ...commands].join("\n")),
    one("p", `Made ${new Date().toISOString().slice(0, 10)}. ${location.href}`),
    "</body></html>",
  ].join("\n");
}

// One file: the page, and the answer at every position of one slider.
export async function pageOf(view, state, slider, heard) {
  const control = view.controls.find(({name}) => name === slider);
  const positions = control ? control.values : [""];
  const documents = {};
  for (const [i, value] of positions.entries()) {
    heard(i, positions.length);
    const asked = control ? {...state, [slider]: value} : state;
    try {
      documents[value] = await finest(view.name, asked);
    } catch (error) {
      documents[value] = {error: error.message};
    }
  }
  const [script, sheet] = await Promise.all(["app.js", "app.css"].map(async (url) => (await fetch(url)).text()));
  const defaults = view.controls.map((one) => ({...one, default: state[one.name]}));
  const carried = JSON.stringify({view: {...view, controls: defaults}, slider, documents});
  return [
    '<!doctype html><html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    `<title>shardwise: ${view.title}</title><style>${sheet}</style></head>`,
    '<body><div id="root"></div>',
    `<script>window.__SHARDWISE__=${carried.replaceAll("<", "\\u003c")}</script>`,
    `<script>${script}</script></body></html>`,
  ].join("\n");
}

async function finest(name, state) {
  const first = await answer(name, state, "no");
  return first.refines ? answer(name, state, "yes") : first;
}
