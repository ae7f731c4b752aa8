/**
 * The rows of a list of the API: all pages up to a bound, read again from time to time.
 *
 * While the list is complete, filtering is done in the page. Of a longer list the broker sends what
 * matches the filter (`match`), so that each of its rows can be found.
 */

import { call } from "./api.js";

/** @typedef {Record<string, any>} Row */

const PAGE = 1000;
const MOST_ROWS = 10_000;
/** Seconds between two readings, for a list of one page and for a longer one. */
const SHORT_PAUSE = 3;
const LONG_PAUSE = 20;

export class Rows extends EventTarget {
  /** @type {Row[]} */
  rows = [];
  /** Whether there are more rows than are shown. */
  more = false;
  /** @type {any} */
  error = null;
  /** Whether a first answer has come. */
  known = false;
  #path;
  #parameters;
  #member;
  #match = "";
  #timer = 0;
  #reading = new AbortController();

  /**
   * @param {string} path
   * @param {import("./api.js").Parameters} [parameters]
   * @param {string} [member] the name of the list in the answer, if it is not `items`
   */
  constructor(path, parameters = {}, member = "items") {
    super();
    this.#path = path;
    this.#parameters = parameters;
    this.#member = member;
  }

  /** Read all rows, now, and again later. */
  async read() {
    this.close();
    const reading = new AbortController();
    this.#reading = reading;
    try {
      await this.#readPages(reading.signal);
      this.error = null;
    } catch (error) {
      if (reading.signal.aborted) return;
      this.error = error;
    }
    this.known = true;
    const pause = this.rows.length > PAGE ? LONG_PAUSE : SHORT_PAUSE;
    this.#timer = setTimeout(() => this.read(), pause * 1000);
    this.dispatchEvent(new Event("change"));
  }

  /** Stop reading. */
  close() {
    clearTimeout(this.#timer);
    this.#reading.abort();
  }

  /**
   * Let the broker filter, if it has more rows than are here.
   *
   * @param {string} text of the filter; without a wildcard it stands for names that contain it
   */
  filter(text) {
    const pattern = patternOf(text);
    if (pattern === this.#match || !(this.more || this.#match)) return;
    this.#match = pattern;
    this.read();
  }

  /** @param {AbortSignal} signal */
  async #readPages(signal) {
    /** @type {Row[]} */
    const found = [];
    let after = null;
    do {
      const parameters = { ...this.#parameters, limit: PAGE, after, match: this.#match };
      const answer = await call(this.#path, parameters, { signal });
      for (const row of answer.items ?? answer[this.#member] ?? []) found.push(row);
      after = answer.next ?? null;
      if (!this.known) this.#show(found.slice(), after !== null);
    } while (after !== null && found.length < MOST_ROWS);
    this.#show(found, after !== null);
  }

  /** @param {Row[]} rows @param {boolean} more */
  #show(rows, more) {
    this.rows = rows;
    this.more = more;
    this.dispatchEvent(new Event("change"));
  }
}

/**
 * Return the pattern of the broker for the text of a filter. It finds what the page itself would:
 * large and small letters are the same, and only `*` and `?` are wildcards.
 *
 * @param {string} text @returns {string}
 */
function patternOf(text) {
  if (!text) return "";
  const pattern = Array.from(text, (sign) => {
    if (sign === "[") return "[[]";
    const [small, large] = [sign.toLowerCase(), sign.toUpperCase()];
    // Some letters have no single large one.
    const whole = [small, large].every((form) => Array.from(form).length === 1);
    return whole && small !== large ? `[${small}${large}]` : sign;
  }).join("");
  return /[*?]/.test(text) ? pattern : `*${pattern}*`;
}
