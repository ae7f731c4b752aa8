/**
 * A table of any number of rows, of which those in view are elements.
 *
 * It is a real table, with the number of each row for screen readers. The links of its first column
 * are one stop of the tab key; arrow keys, Page Up, Page Down, Home and End go from row to row.
 *
 * @typedef {Record<string, any>} Row
 *
 * @typedef {Object} Column
 * @property {string} id
 * @property {string} label
 * @property {(row: Row) => any} value what is sorted by
 * @property {(row: Row) => string | Node} [cell] what is shown; by default the value as text
 * @property {"text" | "number" | "code"} [kind]
 * @property {number} [width] the share of the table's width, 1 by default
 * @property {string} [fixed] a width in its place; then other columns share what is left
 * @property {1 | 2 | 3} [rank] 2 is left out of narrow tables, 3 of middle ones too
 * @property {boolean} [descending] the first click on the heading sorts the largest first
 */

import { h, oncePerFrame, setText } from "./dom.js";

/** The height of a row in pixels, as in the style sheet. */
const ROW_HEIGHT = 40;
/** Rows beyond each edge of what is in view. */
const MARGIN = 8;
const STEPS = { ArrowDown: 1, ArrowUp: -1 };

export class Table {
  /** @type {Row[]} in the order in which they are shown */
  rows = [];
  /** @type {HTMLElement} */
  element;
  #columns;
  #keyOf;
  #hrefOf;
  #open;
  #isCurrent;
  #sort = { id: "", descending: false };
  #body;
  #above = h("tr.spacer", { "aria-hidden": "true" });
  #below = h("tr.spacer", { "aria-hidden": "true" });
  /** @type {HTMLTableRowElement[]} */
  #lines = [];
  #first = 0;
  /** The place of the row that was chosen last; -1 if there is none. */
  #active = -1;
  /** The place of the row that the tab key reaches. */
  #stop = 0;
  #table;

  /**
   * @param {{label: string, columns: Column[], keyOf: (row: Row) => string,
   *     hrefOf?: (row: Row) => string | null, open?: (row: Row) => void, isCurrent?: (row: Row) => boolean,
   *     sort: string, onsort: () => void}} options
   *     a row leads to `hrefOf`, or calls `open`
   */
  constructor({ label, columns, keyOf, hrefOf, open, isCurrent, sort, onsort }) {
    this.#columns = columns;
    this.#keyOf = keyOf;
    this.#hrefOf = hrefOf;
    this.#open = open;
    this.#isCurrent = isCurrent;
    // Percentages are of the whole table, so they do not go with columns of a fixed width.
    const hasFixed = columns.some(({ fixed }) => fixed);
    const total = hasFixed ? 0 : columns.reduce((sum, { width = 1 }) => sum + width, 0);
    this.#body = h("tbody");
    this.#table = h(
      "table.rows",
      { "aria-label": label },
      h(
        "colgroup",
        {},
        columns.map((column) => columnElement(column, total)),
      ),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((column) => this.#heading(column, onsort)),
        ),
      ),
      this.#body,
    );
    this.element = h(
      "div.scroller",
      { tabindex: hrefOf || open ? null : "0", role: "group", "aria-label": label },
      this.#table,
    );
    this.element.addEventListener(
      "scroll",
      oncePerFrame(() => this.#render()),
      { passive: true },
    );
    this.#body.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) =>
      this.#step(event),
    );
    this.#body.addEventListener("click", (/** @type {MouseEvent} */ event) => this.#click(event));
    new ResizeObserver(oncePerFrame(() => this.#render())).observe(this.element);
    this.sortBy(sort, columns.find(({ id }) => id === sort)?.descending ?? false);
  }

  /** Show these rows, sorted. @param {Row[]} rows */
  show(rows) {
    const key = this.rows[this.#active] && this.#keyOf(this.rows[this.#active]);
    this.rows = this.#sorted(rows);
    this.#active = key === undefined ? -1 : this.rows.findIndex((row) => this.#keyOf(row) === key);
    this.#table.setAttribute("aria-rowcount", String(this.rows.length + 1));
    this.#render();
  }

  // Sorting

  /** @param {Column} column @param {() => void} onsort @returns {HTMLElement} */
  #heading(column, onsort) {
    const click = () => {
      const same = this.#sort.id === column.id;
      this.sortBy(column.id, same ? !this.#sort.descending : (column.descending ?? false));
      onsort();
    };
    return h(
      `th.${column.kind ?? "text"}${rankClass(column)}`,
      { scope: "col", "data-column": column.id },
      h(
        "button.sort",
        { type: "button", onclick: click },
        h("span", {}, column.label),
        h("span.arrow", { "aria-hidden": "true" }),
      ),
    );
  }

  /** Sort by this column from now on. @param {string} id @param {boolean} descending */
  sortBy(id, descending) {
    this.#sort = { id, descending };
    for (const heading of this.#table.querySelectorAll("th")) {
      if (heading.dataset.column !== id) heading.removeAttribute("aria-sort");
      else heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    }
  }

  /** @param {Row[]} rows @returns {Row[]} */
  #sorted(rows) {
    const column = this.#columns.find(({ id }) => id === this.#sort.id);
    if (!column) return rows;
    const sign = this.#sort.descending ? -1 : 1;
    const keyed = rows.map((row) => /** @type {[any, Row]} */ ([column.value(row) ?? "", row]));
    keyed.sort(([a], [b]) => sign * compare(a, b));
    return keyed.map(([, row]) => row);
  }

  // Rows in view

  #render() {
    const room = Math.ceil(this.element.clientHeight / ROW_HEIGHT);
    // A list that has become shorter is not scrolled beyond its end.
    const end = Math.max(0, this.rows.length - room);
    const top = Math.min(this.element.scrollTop / ROW_HEIGHT, end);
    const first = Math.max(0, Math.floor(top) - MARGIN);
    const shown = Math.min(this.rows.length - first, room + 2 * MARGIN);
    this.#first = first;
    // A row that is not in view has no element, and the tab key would pass the table over.
    const isInView = first <= this.#active && this.#active < first + shown;
    this.#stop = isInView ? this.#active : Math.ceil(top);
    this.#above.style.height = `${first * ROW_HEIGHT}px`;
    this.#below.style.height = `${Math.max(0, this.rows.length - first - shown) * ROW_HEIGHT}px`;
    if (this.#lines.length !== shown || this.#above.parentNode !== this.#body) {
      while (this.#lines.length < shown) this.#lines.push(this.#newLine());
      this.#lines.length = shown;
      this.#place();
    }
    this.#lines.forEach((line, at) => this.#fillLine(line, first + at));
  }

  /** Put the lines between the spacers; those that are there keep the focus. */
  #place() {
    if (this.#above.parentNode !== this.#body) this.#body.append(this.#above, this.#below);
    for (const line of this.#lines) if (line.parentNode !== this.#body) this.#below.before(line);
    for (
      let line = this.#below.previousElementSibling;
      line !== this.#lines.at(-1) && line !== this.#above;
    ) {
      const before = line.previousElementSibling;
      line.remove();
      line = before;
    }
  }

  /** @returns {any} */
  #newLine() {
    return h(
      "tr",
      {},
      this.#columns.map((column, at) => {
        const content = at === 0 ? this.#newHead() : h("span");
        const tag = at === 0 ? "th" : "td";
        return h(
          `${tag}.${column.kind ?? "text"}${rankClass(column)}`,
          { scope: at === 0 ? "row" : null },
          content,
        );
      }),
    );
  }

  /** @returns {HTMLElement} what the first cell of a line has */
  #newHead() {
    if (this.#hrefOf) return h("a", { tabindex: "-1" });
    return this.#open ? h("button.row-button", { type: "button", tabindex: "-1" }) : h("span");
  }

  /** @param {any} line @param {number} place */
  #fillLine(line, place) {
    const row = this.rows[place];
    line.setAttribute("aria-rowindex", String(place + 2));
    this.#columns.forEach((column, at) => {
      const content = line.children[at].firstElementChild;
      const shown = column.cell ? column.cell(row) : String(column.value(row) ?? "");
      if (shown instanceof Node) {
        if (!content.firstChild?.isEqualNode?.(shown)) content.replaceChildren(shown);
      } else {
        setText(content, shown);
        if (column.kind !== "number" && content.title !== shown) content.title = shown;
      }
    });
    if (this.#hrefOf || this.#open) this.#setLink(line, row, place);
    if (this.#isCurrent) line.setAttribute("aria-current", String(this.#isCurrent(row)));
  }

  /** @param {any} line @param {Row} row @param {number} place */
  #setLink(line, row, place) {
    const head = line.firstElementChild.firstElementChild;
    const href = this.#hrefOf?.(row);
    if (href && head.getAttribute("href") !== href) head.setAttribute("href", href);
    head.tabIndex = place === this.#stop ? 0 : -1;
  }

  // The keyboard

  /** @param {KeyboardEvent} event */
  #step(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const at = this.#lineOf(event);
    const target = at < 0 ? null : this.#target(event.key, this.#first + at);
    if (target === null) return;
    event.preventDefault();
    this.#active = Math.min(this.rows.length - 1, Math.max(0, target));
    this.#reveal(this.#active);
    this.#render();
    const head = this.#lines[this.#active - this.#first]?.querySelector("a, button");
    if (head instanceof HTMLElement) head.focus({ preventScroll: true });
  }

  /** The whole line can be clicked. @param {MouseEvent} event */
  #click(event) {
    const at = this.#lineOf(event);
    const target = /** @type {Element} */ (event.target);
    const isHead = target.closest("a, button") !== null;
    if (at < 0 || getSelection()?.toString()) return;
    this.#active = this.#first + at;
    if (this.#open) this.#open(this.rows[this.#active]);
    else if (!isHead) this.#lines[at].querySelector("a")?.click();
    this.#render();
  }

  /** @param {Event} event @returns {number} the place of its line among those in view, or -1 */
  #lineOf(event) {
    return this.#lines.findIndex((line) => line.contains(/** @type {Node} */ (event.target)));
  }

  /** @param {string} key @param {number} place @returns {number | null} */
  #target(key, place) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / ROW_HEIGHT) - 2);
    if (key in STEPS) return place + STEPS[/** @type {keyof typeof STEPS} */ (key)];
    if (key === "PageDown") return place + page;
    if (key === "PageUp") return place - page;
    if (key === "Home") return 0;
    return key === "End" ? this.rows.length - 1 : null;
  }

  /** Scroll so that this row is below the heading and above the lower edge. @param {number} place */
  #reveal(place) {
    const top = place * ROW_HEIGHT;
    const room = this.element.clientHeight - 2 * ROW_HEIGHT;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top > this.element.scrollTop + room) this.element.scrollTop = top - room;
  }
}

/** @param {Column} column @returns {string} */
function rankClass(column) {
  return column.rank && column.rank > 1 ? `.rank-${column.rank}` : "";
}

/** @param {Column} column @param {number} total of all shares @returns {HTMLElement} */
function columnElement(column, total) {
  const element = h(`col${rankClass(column)}`);
  if (column.fixed) element.style.width = column.fixed;
  else if (total > 0) element.style.width = `${(100 * (column.width ?? 1)) / total}%`;
  return element;
}

/** @param {any} a @param {any} b @returns {number} */
function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number") return 1;
  if (typeof b === "number") return -1;
  const [x, y] = [String(a), String(b)];
  return x < y ? -1 : x > y ? 1 : 0;
}
