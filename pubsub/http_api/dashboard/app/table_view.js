/** A page with a table: its heading, filter, table, and what is shown instead of rows. */

import { access, messageOf } from "./api.js";
import { fill, fillOnce, h, setText } from "./dom.js";
import { icon } from "./icons.js";
import { count, plural } from "./format.js";
import { Table } from "./table.js";

/** @typedef {import("./rows.js").Rows} Rows */
/** @typedef {import("./table.js").Column} Column */
/** @typedef {import("./table.js").Row} Row */
/**
 * @typedef {Object} Choice values of one column of which one can be chosen
 * @property {string} id the column's
 * @property {string} label
 */

const FILTER_PAUSE = 150;

/**
 * Return the filter, the table and its states; `close` stops reading.
 *
 * @param {{label: string, noun: string, rows: Rows, columns: Column[], keyOf: (row: Row) => string,
 *     hrefOf?: (row: Row) => string | null, open?: (row: Row) => void, sort: string,
 *     choice?: Choice,
 *     empty: {title: string, text: string}}} options
 * @returns {{element: HTMLElement, close: () => void}}
 */
export function tableView(options) {
  const { rows, columns, noun, empty, choice } = options;
  const search = h("input", {
    type: "search",
    placeholder: `Filter ${noun}s`,
    "aria-label": `Filter ${noun}s`,
    spellcheck: "false",
    autocomplete: "off",
    oninput: later,
  });
  const chosen = choice ? chooser(choice, update) : null;
  const figures = h("p.figures", { role: "status" });
  const state = h("div.state");
  const table = new Table({ ...options, onsort: update });
  let timer = 0;

  function later() {
    clearTimeout(timer);
    timer = setTimeout(() => {
      rows.filter(search.value.trim());
      update();
    }, FILTER_PAUSE);
  }

  function update() {
    const text = search.value.trim().toLowerCase();
    const matching = matches(rows.rows, columns, rows.more ? "" : text).filter(
      (row) => chosen?.accepts(row) ?? true,
    );
    chosen?.offer(rows.rows);
    table.show(matching);
    setText(figures, figuresOf(rows, matching.length, noun));
    const filtered = text !== "" || (chosen?.active() ?? false);
    showState(state, rows, matching.length, filtered, noun, empty);
    table.element.hidden = matching.length === 0;
    state.hidden = matching.length > 0 && !rows.error;
  }

  rows.addEventListener("change", update);
  rows.read();
  update();
  const bar = h(
    "div.toolbar",
    {},
    h("div.search", {}, icon("search"), search),
    chosen?.element,
    figures,
    h(
      "button.icon-button",
      {
        type: "button",
        "aria-label": "Read again",
        title: "Read again",
        onclick: () => rows.read(),
      },
      icon("refresh"),
    ),
  );
  return {
    element: h(
      "section.panel.table-panel",
      { "aria-label": options.label },
      bar,
      state,
      table.element,
    ),
    close: () => rows.close(),
  };
}

/**
 * Return the rows of which a column has the text; `*` and `?` are wildcards.
 *
 * @param {Row[]} rows
 * @param {Column[]} columns
 * @param {string} text
 * @returns {Row[]}
 */
function matches(rows, columns, text) {
  if (!text) return rows;
  const searched = columns.filter(({ kind }) => kind !== "number");
  const pattern = /[*?]/.test(text) ? wildcards(text) : null;
  const accepts = pattern
    ? (/** @type {string} */ value) => pattern.test(value)
    : (/** @type {string} */ value) => value.includes(text);
  return rows.filter((row) =>
    searched.some((column) => accepts(String(column.value(row) ?? "").toLowerCase())),
  );
}

/** @param {string} text @returns {RegExp} */
function wildcards(text) {
  const escaped = text
    .replace(/[.+^${}()|[\]\\]/g, "\\$&")
    .replaceAll("*", ".*")
    .replaceAll("?", ".");
  return new RegExp(`^${escaped}$`, "s");
}

/** @param {Rows} rows @param {number} shown @param {string} noun @returns {string} */
function figuresOf(rows, shown, noun) {
  if ((!rows.known || rows.error) && rows.rows.length === 0) return "";
  if (rows.more) return `The first ${count(shown)}; filter to find others`;
  if (shown === rows.rows.length) return plural(shown, noun);
  return `${count(shown)} of ${plural(rows.rows.length, noun)}`;
}

/**
 * @param {HTMLElement} state
 * @param {Rows} rows
 * @param {number} shown
 * @param {boolean} filtered
 * @param {string} noun
 * @param {{title: string, text: string}} empty
 */
function showState(state, rows, shown, filtered, noun, empty) {
  const { error } = rows;
  if (error) fillOnce(state, `error ${error.message}`, () => readingProblem(error));
  else if (!rows.known) fillOnce(state, "loading", () => h("p.muted", {}, "Loading…"));
  else if (shown === 0 && filtered) fillOnce(state, "filtered", () => noMatch(noun));
  else if (shown === 0) fillOnce(state, "empty", () => note(empty.title, empty.text));
  else fillOnce(state, "rows", () => null);
}

/** @param {string} noun @returns {HTMLElement} */
function noMatch(noun) {
  return note(`No ${noun} matches`, "Change or clear the filter to see others.");
}

/**
 * Return a note that explains why there is nothing.
 *
 * @param {string} title
 * @param {string} text
 * @returns {HTMLElement}
 */
export function note(title, text) {
  return h("div.note", {}, h("p.note-title", {}, title), h("p", {}, text));
}

/** Return an error as a box. @param {any} error @returns {HTMLElement} */
export function problem(error) {
  const ask = () => access.dispatchEvent(new Event("ask"));
  const button = h("button.button.small", { type: "button", onclick: ask }, "Enter a token");
  return h(
    "div.problem",
    { role: "alert" },
    icon("warning"),
    h("p", {}, `${messageOf(error)}.`),
    error.needsToken && button,
  );
}

/**
 * Return an error of what is read again and again. If the broker is away, the notice above the page
 * says so once, and this is hidden.
 *
 * @param {any} error
 * @returns {HTMLElement}
 */
export function readingProblem(error) {
  const box = problem(error);
  box.classList.toggle("away", error.isAway === true);
  return box;
}

/** @param {Choice} choice @param {() => void} onchange */
function chooser(choice, onchange) {
  const select = h(
    "select",
    { "aria-label": choice.label, onchange },
    h("option", { value: "" }, `${choice.label}: all`),
  );
  let offered = "";
  return {
    element: select,
    active: () => select.value !== "",
    /** @param {Row} row */
    accepts: (row) => select.value === "" || row[choice.id] === select.value,
    /** @param {Row[]} rows */
    offer(rows) {
      const values = [...new Set(rows.map((row) => String(row[choice.id] ?? "")))]
        .filter(Boolean)
        .sort();
      if (values.join("\n") === offered || values.length > 50) return;
      offered = values.join("\n");
      const { value } = select;
      fill(
        select,
        h("option", { value: "" }, `${choice.label}: all`),
        values.map((text) => h("option", { value: text }, text)),
      );
      select.value = values.includes(value) ? value : "";
    },
  };
}
