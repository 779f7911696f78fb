// Numbers for people: three digits and a prefix. Memory is counted in GiB, rates in powers of ten.
const SI = ["", "k", "M", "G", "T", "P", "E"];
const SMALL = ["", "m", "µ", "n", "p", "f"];
const BINARY = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];

export function short(value, unit = "") {
  if (value === null || value === undefined) return "unknown";
  if (typeof value !== "number") return String(value);
  if (unit === "days") return `${Number(value.toPrecision(4)).toLocaleString("en")} days`;
  if (unit === "ratio" || unit === "value") return short(value);
  if (/^USD(\/h|\/Mtokens)?$/.test(unit)) return unit === "USD/h" ? `${dollars(value, true)}/h` : dollars(value);
  if (unit === "share") return `${digits(value * 100)} %`;
  if (/^[a-zA-Z]{4,}(\/\w+)?$/.test(unit) && unit !== "bytes" && unit !== "bytes/s" && !/FLOP/.test(unit)) return worded(value, unit);
  if (unit === "bytes") return scaled(value, 1024, BINARY, "B");
  if (unit === "bytes/s") return scaled(value, 1000, SI, "B/s");
  if (unit === "ms") return short(value / 1000, "s");
  if (unit === "s" && Math.abs(value) >= 1000) return `${digits(value)} s`;
  if (value !== 0 && Math.abs(value) < 1 && unit === "s") return small(value, unit);
  if (Math.abs(value) >= 1e4 || (unit && Math.abs(value) >= 1000)) return scaled(value, 1000, SI, unit);
  return unit ? `${digits(value)} ${unit}` : digits(value);
}

// $4.20, $19.2k, $25M; rates have cents always, as they stand below each other.
function dollars(value, always = false) {
  const size = Math.abs(value);
  if (size >= 1e4) return `$${billions(value).replace(" ", "")}`;
  if (size > 0 && size < 0.1) return `$${digits(value)}`;
  const cents = size < 1000 && (always || !Number.isInteger(value)) ? 2 : 0;
  return `$${value.toLocaleString("en", {minimumFractionDigits: cents, maximumFractionDigits: cents})}`;
}

// Things that are counted, whose unit is a word: 4,096 chips, 3 M tokens.
function worded(value, unit) {
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return `${value.toLocaleString("en")} ${unit}`;
  const number = Math.abs(value) < 1e4 ? digits(value) : billions(value);
  return `${number} ${unit}`;
}

// Of things that are counted 1e9 is a B.
export const billions = (value) => scaled(value, 1000, SI, "").replace("G", "B");

function small(value, unit) {
  let power = 0;
  while (Math.abs(value) < 1 && power < SMALL.length - 1) [value, power] = [value * 1000, power + 1];
  return `${digits(value)} ${SMALL[power]}${unit}`;
}

function scaled(value, base, names, unit) {
  let power = 0;
  while (Math.abs(value) >= base && power < names.length - 1) [value, power] = [value / base, power + 1];
  return `${digits(value)} ${names[power]}${unit}`.trim();
}

function digits(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(3)));
}

// The number that a word means: 240, 4Mi, 16e6, 15T; NaN of any other.
const SCALES = {k: 1e3, M: 1e6, G: 1e9, B: 1e9, T: 1e12, P: 1e15, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40};
export function number(word) {
  const found = /^([+-]?[\d.,]+(?:e[+-]?\d+)?)\s*([kMGBTP]i?|)$/.exec(String(word).trim());
  return found ? Number(found[1].replaceAll(",", "")) * (SCALES[found[2]] ?? (found[2] ? NaN : 1)) : NaN;
}

// The number that a word means to a control: 1GiB, 500ms, and 1024seq of one that counts in sequences.
const TIMES = {ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600};
export function sizeOf({unit, counts}, word, state = {}) {
  const typed = String(word).trim(), text = /^\d{1,3}(,\d{3})+$/.test(typed) ? typed.replaceAll(",", "") : typed;
  if (counts && text.endsWith(counts)) return number(text.slice(0, -counts.length)) * number(state[counts]);
  if (unit === "bytes" || unit === "bytes/s") return number(text.replace(/B(\/s)?$/, ""));
  const timed = (unit === "s" || unit === "ms") && /^(.*\d)(ns|us|ms|s|min|h)$/.exec(text);
  return timed ? (number(timed[1]) * TIMES[timed[2]]) / TIMES[unit] : number(text);
}

// A number as short as it can be typed back: 4Mi, 4.5e10.
export function typed(word) {
  const value = Number(word), power = Math.log2(value);
  if (Number.isNaN(value) || word.length < 7) return word;
  if (Number.isInteger(power)) return `${2 ** (power % 10)}${["", "Ki", "Mi", "Gi", "Ti"][Math.floor(power / 10)] ?? ""}`;
  const short = value.toExponential().replace("e+", "e");
  return Number(short) === value && short.length < word.length ? short : word;
}

// Memory's ticks: as many as there is room for, a power of two apart.
export function binaryTicks(low, high, most) {
  let step = 2 ** Math.floor(Math.log2((high - low) / most || 1));
  while ((high - low) / step > most) step *= 2;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}

function evenTicks(low, high, most) {
  const raw = (high - low) / Math.min(most, 4), power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= raw);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high; i += 1) found.push(Number((i * step).toPrecision(12)));
  return found;
}

// Names of fields as words; what is short for others as people write it.
const SHORT = {...Object.fromEntries(["hbm", "sram", "alu", "kv", "mfu", "usd", "ttft", "tpot", "lm", "mlp"].map((one) => [one, one.toUpperCase()])), flops: "FLOPs"};
const spelt = (text) => text.replace(/[a-z]+/g, (word) => SHORT[word] ?? word);
export const words = (name) => (/^[a-z][a-z0-9_.,]*( .*)?$/.test(name) ? spelt(name.replaceAll("_", " ")) : name);

// Ticks that do not touch: whole powers of ten, as many as there is room for.
export function logTicks(low, high, most) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  const found = [];
  for (let power = first; power <= last; power += step) found.push(10 ** power);
  if (found.length >= 2) return found;
  const few = [1, 2, 3, 5].flatMap((m) => [first - 1, first, last].map((p) => m * 10 ** p));
  const inside = [...new Set(few)].filter((v) => v >= low && v <= high).sort((a, b) => a - b);
  if (inside.length < 3) return evenTicks(low, high, most);
  return inside.filter((_, i) => i % Math.ceil(inside.length / most) === 0);
}
