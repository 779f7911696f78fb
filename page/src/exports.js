// What a view is saved as: SVG, PNG, CSV, and a page of its own.
import {answer} from "./source.js";
import {rowsOf} from "./figure.jsx";

export function save(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], {type}));
  const link = Object.assign(document.createElement("a"), {href: url, download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// The drawing by itself: variables of the page become colours.
export function svgText(svg) {
  const copy = svg.cloneNode(true);
  const style = getComputedStyle(document.documentElement);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const back = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of [["width", "100%"], ["height", "100%"], ["fill", "var(--paper)"]]) {
    back.setAttribute(name, value);
  }
  copy.prepend(back);
  const text = new XMLSerializer().serializeToString(copy);
  return text.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
}

export async function pngOf(svg) {
  const {width, height} = svg.getBoundingClientRect();
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(svg))}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), {width: 2 * width, height: 2 * height});
  canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

export function csvOf(found) {
  const blocks = found.figures.map(figureRows).concat(found.tables.map(tableRows));
  return blocks.map((rows) => rows.map((row) => row.map(cell).join(",")).join("\n")).join("\n\n") + "\n";
}

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
  const first = await answer(name, state, false);
  return first.refines ? answer(name, state, true) : first;
}
