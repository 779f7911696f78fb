// One meaning for each colour, in figures and in players.
const COLOURS = 8;
export const series = (i) => `var(--series-${(i % COLOURS) + 1})`;

// Labels that mean the same everywhere; others take the colours that are free, in their order.
const MEANINGS = [
  [/^(math|compute|FLOPs|math at peak|bound by (math|cycles)|attention)$/, 0],
  [/^(net:|waiting|FSDP over|bound by net|mlp_dense)/, 1],
  [/^(hbm|HBM|memory|weights|load|copy|memory-bound|bound by HBM|embedding)/, 2],
  [/^router/, 3],
  [/^(math below peak|pipeline bubble|idle|lm_head)/, 4],
  [/^routed/, 5],
  [/^(usable|peak, |your batch|shared_experts)/, 6],
  [/^(waits for|other|norms|attention_core|math hides)/, 7],
];

export function palette(labels) {
  const taken = new Set(), found = labels.map((label) => {
    const meant = MEANINGS.find(([words]) => words.test(label))?.[1];
    if (meant === undefined || taken.has(meant)) return undefined;
    taken.add(meant);
    return meant;
  });
  const free = Array.from({length: COLOURS}, (_, i) => i).filter((i) => !taken.has(i));
  let next = 0;
  return found.map((i) => series(i ?? (free.length ? free[next++ % free.length] : next++)));
}
