/** Numbers, sizes and times as text, in one language, with figures that keep their width. */

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const PLACES = [0, 1, 2].map(
  (digits) =>
    new Intl.NumberFormat("en-US", {
      maximumFractionDigits: digits,
      minimumFractionDigits: digits,
    }),
);
const DATE = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
/** What is shown for a value that is not known. */
export const NONE = "–";

/** @param {any} value @returns {value is number} */
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** @param {number} value at least 0 @returns {string} three figures at the most after scaling */
function figures(value) {
  return PLACES[value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2].format(value);
}

/** Return a whole number with separators. @param {any} value @returns {string} */
export function count(value) {
  return isNumber(value) ? WHOLE.format(value) : NONE;
}

/**
 * Return a number in few figures, such as 1.25 M.
 *
 * @param {any} value
 * @returns {string}
 */
export function compact(value) {
  if (!isNumber(value)) return NONE;
  for (const [unit, size] of /** @type {[string, number][]} */ ([
    ["G", 1e9],
    ["M", 1e6],
    ["k", 1e3],
  ])) {
    if (Math.abs(value) >= size * (unit === "k" ? 10 : 1))
      return `${figures(value / size)} ${unit}`;
  }
  return value >= 100 || Number.isInteger(value) ? WHOLE.format(value) : figures(value);
}

/** Return a number for each second. @param {any} value @returns {string} */
export function rate(value) {
  return isNumber(value) ? `${compact(value >= 10 ? Math.round(value) : value)}/s` : NONE;
}

/** Return bytes, such as 1.5 MiB. @param {any} value @returns {string} */
export function bytes(value) {
  if (!isNumber(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let size = value;
  while (Math.abs(size) >= 1024 && at < units.length - 1) {
    size /= 1024;
    at += 1;
  }
  return `${at === 0 ? WHOLE.format(size) : figures(size)} ${units[at]}`;
}

/** Return bytes for each second. @param {any} value @returns {string} */
export function byteRate(value) {
  return isNumber(value) ? `${bytes(Math.round(value))}/s` : NONE;
}

/** Return a short time in seconds, such as 3.2 ms. @param {any} seconds @returns {string} */
export function latency(seconds) {
  if (!isNumber(seconds)) return NONE;
  if (seconds === 0) return "0 ms";
  // Not 1,000 of a unit, as which a little less would be shown.
  if (seconds < 999.5e-6) return `${figures(Math.round(seconds * 1e6))} µs`;
  if (seconds < 0.9995) return `${figures(seconds * 1e3)} ms`;
  return `${figures(seconds)} s`;
}

/** Return a long time in seconds in its two largest units. @param {any} seconds @returns {string} */
export function duration(seconds) {
  if (!isNumber(seconds)) return NONE;
  const whole = Math.max(0, Math.floor(seconds));
  const parts = /** @type {[number, string][]} */ ([
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ]);
  const first = parts.findIndex(([amount]) => amount > 0);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .filter(([amount], at) => at === 0 || amount > 0)
    .map(([amount, unit]) => `${amount} ${unit}`)
    .join(" ");
}

/** Return local date and time of µs since the epoch. @param {any} micros @returns {string} */
export function dateTime(micros) {
  return isNumber(micros) && micros > 0 ? DATE.format(micros / 1000) : NONE;
}

/** Return local time of µs since the epoch, with ms. @param {any} micros @returns {string} */
export function clock(micros) {
  if (!isNumber(micros)) return NONE;
  const millis = Math.floor(micros / 1000);
  return `${CLOCK.format(millis)}.${String(millis % 1000).padStart(3, "0")}`;
}

/** Return how long ago µs since the epoch are. @param {any} micros @returns {string} */
export function ago(micros) {
  if (!isNumber(micros) || micros <= 0) return NONE;
  const seconds = Math.max(0, Date.now() / 1000 - micros / 1e6);
  return seconds < 2 ? "now" : `${duration(seconds).split(" ").slice(0, 2).join(" ")} ago`;
}

/** Return a share of 1 as a percentage. @param {any} value @returns {string} */
export function percent(value) {
  return isNumber(value)
    ? `${value < 0.1 ? figures(Math.round(value * 1000) / 10) : WHOLE.format(value * 100)} %`
    : NONE;
}

/**
 * Return `amount` with the noun in its number, such as "1 topic".
 *
 * @param {number} amount
 * @param {string} one
 * @param {string} [many]
 * @returns {string}
 */
export function plural(amount, one, many = `${one}s`) {
  return `${count(amount)} ${amount === 1 ? one : many}`;
}
