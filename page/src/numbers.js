// Numbers for people: three digits and a prefix. Memory is counted in GiB, rates in powers of ten.
const SI = ["", "k", "M", "G", "T", "P", "E"];
const SMALL = ["", "m", "µ", "n", "p", "f"];
const BINARY = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];

export function short(value, unit = "") {
  if (value === null || value === undefined) return "unknown";
  if (typeof value !== "number") return String(value);
  if (unit === "bytes") return scaled(value, 1024, BINARY, "B");
  if (unit === "bytes/s") return scaled(value, 1000, SI, "B/s");
  if (unit === "s" && Math.abs(value) >= 1000) return `${digits(value)} s`;
  if (value !== 0 && Math.abs(value) < 1 && unit === "s") return small(value, unit);
  if (Math.abs(value) >= 1e4 || (unit && Math.abs(value) >= 1000)) return scaled(value, 1000, SI, unit);
  return unit ? `${digits(value)} ${unit}` : digits(value);
}

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

// Ticks that do not touch: whole powers of ten, as many as there is room for.
export function logTicks(low, high, most) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  const found = [];
  for (let power = first; power <= last; power += step) found.push(10 ** power);
  if (found.length >= 2) return found;
  const few = [1, 2, 3, 5].flatMap((m) => [first - 1, first, last].map((p) => m * 10 ** p));
  const inside = [...new Set(few)].filter((v) => v >= low && v <= high).sort((a, b) => a - b);
  return inside.filter((_, i) => i % Math.ceil(inside.length / most) === 0);
}
