// Where answers come from: the API of this host, or what an exported page carries.
const carried = () => window.__SHARDWISE__;

export const exported = () => Boolean(carried());

export async function views() {
  if (carried()) return [carried().view];
  return get("api/views");
}

export async function answer(view, state, fine, signal) {
  if (carried()) {
    const {slider, documents} = carried();
    return documents[slider ? state[slider] : ""];
  }
  const query = new URLSearchParams(fine ? {...state, fine: "yes"} : state);
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

async function get(url, signal) {
  const reply = await fetch(url, {signal});
  const found = await reply.json();
  if (!reply.ok) throw new Error(found.error ?? `the server answered ${reply.status}`);
  return found;
}
