// The whole state stands behind the # of the URL: #VIEW?control=value&..., and the frame that is shown.
const FRAME = "frame";

// What a link says that this page does not know, and what stands in its place; "" of most links.
const quoted = (names) => names.map((one) => `'${one.slice(0, 40)}'`).join(", ");
function unknown(view, name, given) {
  if (name && name !== view.name) return `This page has no view ${quoted([name])}. It shows ${view.title} instead; the menu has the others.`;
  const own = view.controls.map((one) => one.name), others = [...new Set(given.keys())].filter((one) => one !== FRAME && !own.includes(one));
  return others.length ? `${view.title} has no control ${quoted(others)}. What the link says of it is left out. The controls are ${own.join(", ")}.` : "";
}

export function read(views) {
  const [name, words] = location.hash.slice(1).split("?");
  const view = views.find((one) => one.name === name) ?? views[0];
  const given = new URLSearchParams(words ?? "");
  const state = {};
  for (const {name, default: value} of view.controls) state[name] = given.get(name) ?? value;
  return {view, state, frame: given.has(FRAME) ? Number(given.get(FRAME)) || 0 : undefined, hash: location.hash, unknown: unknown(view, name, given)};
}

export function write(view, state, frame) {
  const changed = view.controls.filter(({name, default: value}) => state[name] !== value);
  const words = new URLSearchParams(changed.map(({name}) => [name, state[name]]));
  if (frame !== undefined) words.set(FRAME, frame);
  const query = String(words);
  return `#${view.name}${query ? `?${query}` : ""}`;
}
