/** What a payload is, and its three views: text, a tree of JSON, hexadecimal. */

import { fill, h } from "./dom.js";
import { bytes, count } from "./format.js";

const MOST_TEXT = 256 * 1024;
const MOST_HEX = 16 * 1024;
const MOST_MEMBERS = 200;
const OPEN_DEPTH = 2;
/** Bytes of a line, so that it fits a narrow screen. */
const HEX_WIDTH = 8;

/**
 * Return the bytes of base64.
 *
 * @param {string} text
 * @returns {Uint8Array}
 */
export function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/**
 * Return text, or its bytes in hexadecimal if it is not UTF-8.
 *
 * @param {Uint8Array} data
 * @returns {string}
 */
export function readable(data) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    return [...data.subarray(0, 32)].map(hex).join(" ");
  }
}

/** A payload as the API sends it: text, or base64 of what is not UTF-8. */
export class Payload {
  /** @type {string | null} null if the payload is not text */
  text;
  #data;

  /** @param {{value?: string, value_base64?: string}} message */
  constructor(message) {
    this.text = message.value ?? null;
    this.#data = message.value_base64 === undefined ? null : fromBase64(message.value_base64);
  }

  /** @returns {Uint8Array} */
  get data() {
    return (this.#data ??= new TextEncoder().encode(this.text ?? ""));
  }

  /** One line for the list. @returns {string} */
  get preview() {
    if (this.text === null) return [...this.data.subarray(0, 24)].map(hex).join(" ");
    return this.text.slice(0, 200).replace(/\s+/g, " ");
  }

  /** The value if the text is an object or a list of JSON, else undefined. @returns {any} */
  get json() {
    if (this.text === null || !/^\s*[[{]/.test(this.text)) return undefined;
    try {
      return JSON.parse(this.text);
    } catch {
      return undefined;
    }
  }
}

/** @param {number} byte @returns {string} */
function hex(byte) {
  return byte.toString(16).padStart(2, "0");
}

/** @typedef {"text" | "json" | "hex"} Form */

/** Return the form that suits a payload. @param {Payload} payload @returns {Form} */
export function bestForm(payload) {
  if (payload.text === null) return "hex";
  return payload.json === undefined ? "text" : "json";
}

/** Return a view of the payload. @param {Payload} payload @param {Form} form @returns {HTMLElement} */
export function payloadView(payload, form) {
  if (form === "hex") return hexView(payload.data);
  if (form === "json") return jsonView(payload);
  if (payload.text === null) return h("p.muted", {}, "The payload is not text (UTF-8).");
  if (payload.text === "") return h("p.muted", {}, "The payload is empty.");
  const cut = payload.text.length > MOST_TEXT;
  return h(
    "div",
    {},
    h(
      "pre.payload",
      { tabindex: "0", "aria-label": "Payload as text" },
      payload.text.slice(0, MOST_TEXT),
    ),
    cut &&
      h("p.muted.small", {}, `The first ${bytes(MOST_TEXT)} of ${bytes(payload.data.length)}.`),
  );
}

/** @param {Uint8Array} data @returns {HTMLElement} */
function hexView(data) {
  if (data.length === 0) return h("p.muted", {}, "The payload is empty.");
  const lines = [];
  for (let at = 0; at < Math.min(data.length, MOST_HEX); at += HEX_WIDTH) {
    const row = data.subarray(at, at + HEX_WIDTH);
    const codes = [...row]
      .map(hex)
      .join(" ")
      .padEnd(3 * HEX_WIDTH - 1);
    const text = [...row]
      .map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·"))
      .join("");
    lines.push(`${at.toString(16).padStart(4, "0")}  ${codes}  ${text}`);
  }
  return h(
    "div",
    {},
    h(
      "pre.payload.hex",
      { tabindex: "0", "aria-label": "Payload as hexadecimal" },
      lines.join("\n"),
    ),
    data.length > MOST_HEX &&
      h("p.muted.small", {}, `The first ${bytes(MOST_HEX)} of ${bytes(data.length)}.`),
  );
}

/** @param {Payload} payload @returns {HTMLElement} */
function jsonView(payload) {
  const value = payload.json;
  if (value === undefined)
    return h("p.muted", {}, "The payload is not an object or a list of JSON.");
  return h("div.tree", {}, node(null, value, 0));
}

/**
 * Return a value with its name; what it contains is made when it is opened.
 *
 * @param {string | null} name
 * @param {any} value
 * @param {number} depth
 * @returns {HTMLElement}
 */
function node(name, value, depth) {
  const label = name === null ? null : h("span.tree-name", {}, `${name}: `);
  if (value === null || typeof value !== "object")
    return h("div.tree-leaf", {}, label, leaf(value));
  const entries = Object.entries(value);
  const summary = Array.isArray(value)
    ? `[${count(entries.length)}]`
    : `{${count(entries.length)}}`;
  const inside = h("div.tree-inside");
  const details = h("details", {}, h("summary", {}, label, h("span.muted", {}, summary)), inside);
  const open = () => {
    if (details.open && !inside.hasChildNodes()) fill(inside, members(entries, depth + 1));
  };
  details.addEventListener("toggle", open);
  details.open = depth < OPEN_DEPTH;
  open();
  return details;
}

/** @param {[string, any][]} entries @param {number} depth @returns {HTMLElement[]} */
function members(entries, depth) {
  const nodes = entries.slice(0, MOST_MEMBERS).map(([name, value]) => node(name, value, depth));
  const rest = entries.slice(MOST_MEMBERS);
  if (rest.length) {
    const more = h(
      "button.button.small",
      { type: "button", onclick: () => more.replaceWith(...members(rest, depth)) },
      `Show ${count(rest.length)} more`,
    );
    nodes.push(more);
  }
  return nodes;
}

/** @param {any} value @returns {HTMLElement} */
function leaf(value) {
  const kind = value === null ? "null" : typeof value;
  return h(
    `span.tree-${kind}`,
    {},
    typeof value === "string" ? JSON.stringify(value) : String(value),
  );
}
