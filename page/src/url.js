// The whole state stands behind the # of the URL: #VIEW?control=value&..., and the frame that is shown.
const FRAME = "frame";

export function read(views) {
  const [name, words] = location.hash.slice(1).split("?");
  const view = views.find((one) => one.name === name) ?? views[0];
  const given = new URLSearchParams(words ?? "");
  const state = {};
  for (const {name, default: value} of view.controls) state[name] = given.get(name) ?? value;
  return {view, state, frame: given.has(FRAME) ? Number(given.get(FRAME)) || 0 : undefined, hash: location.hash};
}

export function write(view, state, frame) {
  const changed = view.controls.filter(({name, default: value}) => state[name] !== value);
  const words = new URLSearchParams(changed.map(({name}) => [name, state[name]]));
  if (frame !== undefined) words.set(FRAME, frame);
  const query = String(words);
  return `#${view.name}${query ? `?${query}` : ""}`;
}
