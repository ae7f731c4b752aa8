/** Columns of tables, by the kind of what they show. */

import { h } from "./dom.js";
import { ago, count, NONE } from "./format.js";

/** @typedef {import("./table.js").Column} Column */
/** @typedef {import("./table.js").Row} Row */

/**
 * Return a column of text.
 *
 * @param {string} id
 * @param {string} label
 * @param {Partial<Column>} [more]
 * @returns {Column}
 */
export function text(id, label, more = {}) {
  return { id, label, value: (row) => row[id] ?? "", cell: (row) => shown(row[id]), ...more };
}

/** Return any value as text. @param {any} value @returns {string} */
export function shown(value) {
  if (value === null || value === undefined || value === "") return NONE;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/**
 * Return a column of numbers, with the largest first when it is chosen.
 *
 * @param {string} id
 * @param {string} label
 * @param {(value: any) => string} [format]
 * @param {Partial<Column>} [more]
 * @returns {Column}
 */
export function number(id, label, format = count, more = {}) {
  return {
    id,
    label,
    kind: "number",
    descending: true,
    value: (row) => row[id],
    cell: (row) => format(row[id]),
    ...more,
  };
}

/**
 * Return a column of how long ago something was.
 *
 * @param {string} id
 * @param {string} label
 * @param {Partial<Column>} [more]
 * @returns {Column}
 */
export function time(id, label, more = {}) {
  return number(id, label, ago, { rank: 2, ...more });
}

/**
 * Return a column of one word in a box.
 *
 * @param {string} id
 * @param {string} label
 * @param {Record<string, string>} tones of the words that are not plain
 * @param {Partial<Column>} [more]
 * @returns {Column}
 */
export function badge(id, label, tones, more = {}) {
  /** @param {Row} row */
  const cell = (row) => {
    const word = String(row[id] ?? "");
    return word ? h(`span.badge.${tones[word] ?? "neutral"}`, {}, word.replaceAll("_", " ")) : NONE;
  };
  return { id, label, value: (row) => row[id] ?? "", cell, ...more };
}

/** The tones of the states of sessions. */
export const STATES = { live: "good", catching_up: "warning", paused: "warning", leaving: "muted" };
