// Where answers come from: the API of this host, the files of an exported site, or what a page carries.
import {sizeOf} from "./numbers.js";
import {write} from "./url.js";

const carried = () => window.__SHARDWISE__;
const grid = document.getElementById("root").dataset.grid;
let index; // of a site: the views, and the file of each state

export const exported = () => Boolean(carried());

export async function views() {
  if (carried()) return [carried().view];
  if (!grid) return get("api/views");
  index = await packed(grid);
  return index.views;
}

// What the site's states are looked up by: words that are not the usual ones, numbers as the positions spell them.
const spelt = (control, word, state) => (control.kind === "slider" && control.values.find((one) => sizeOf(control, one) === sizeOf(control, word, state))) || word;

async function stored(name, state, signal) {
  const view = index.views.find((one) => one.name === name);
  const words = view.controls.map((one) => [one, spelt(one, state[one.name], state)]).filter(([one, word]) => word !== one.default);
  const file = index.states[name][words.map(([one, word]) => `${one.name}=${word}`).join("&")];
  const found = file ? await packed(`grid/${name}/${file}.json.gz`, signal) : {error: "this site holds a grid of answers, and none for these controls; the command below works it out"};
  if (!found.error) return found;
  throw Object.assign(new Error(found.error), {command: `shardwise ui --open --at '${write(view, state).slice(1)}'`});
}

// A file that is packed, unless the host unpacks it.
async function packed(url, signal) {
  const reply = await fetch(url, {signal});
  if (!reply.ok) throw new Error(`the host answered ${reply.status} for ${url}; write the site again`);
  const bytes = new Uint8Array(await reply.arrayBuffer());
  if (bytes[0] !== 0x1f) return JSON.parse(new TextDecoder().decode(bytes));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

export async function answer(view, state, fine, signal) {
  if (carried()) {
    const {slider, documents} = carried();
    return documents[slider ? state[slider] : ""];
  }
  if (grid) return stored(view, state, signal);
  const query = new URLSearchParams(fine === "no" ? state : {...state, fine});
  return get(`api/view/${view}?${query}`, signal);
}

export const lecture = (chapter) => get(`api/lecture/${chapter}`);

// The rows of the decision sheet for each growth, one after the other.
export async function decision(view, state, growths, heard) {
  const parts = [];
  for (const [i, growth] of growths.entries()) {
    heard(i, growths.length);
    parts.push(await get(`api/sheet/${view}/${growth}?${new URLSearchParams(state)}`));
  }
  const all = (name) => [...new Set(parts.flatMap((part) => part[name]))];
  return {header: parts[0].header, rows: all("rows"), commands: all("commands"), notes: all("notes")};
}

// Files for the server of this page to keep: a line that names them, then their bytes. Gives its word for them.
const LARGEST = 64 * 2 ** 20; // bytes, as apps/page/given.py has them: a server that refuses in the middle is not heard
export async function give(name, files) {
  if (files.reduce((sum, {size}) => sum + size, 0) > LARGEST - 2 ** 14) throw new Error(`${name} has over ${LARGEST / 2 ** 20} MiB; give less, or name it by its path on the machine of this page`);
  const heading = JSON.stringify({name, files: files.map((file) => [file.name, file.size])});
  return get("api/given", undefined, {method: "POST", body: new Blob([`${heading}\n`, ...files])});
}
export const gives = () => !carried() && !grid;

async function get(url, signal, more = {}) {
  const reply = await fetch(url, {signal, ...more});
  const found = await reply.json();
  if (!reply.ok) throw new Error(found.error ?? `the server answered ${reply.status}`);
  return found;
}
