/** Pages and parts of pages that are made of a list of the API. */

import { badge, number, STATES, text } from "./columns.js";
import { ask } from "./dialogs.js";
import { h } from "./dom.js";
import { count, NONE } from "./format.js";
import { sessionLink } from "./lists.js";
import { link } from "./router.js";
import { Rows } from "./rows.js";
import { tableView } from "./table_view.js";

/** @typedef {import("./table.js").Row} Row */

/**
 * Show all that a row has, as narrow tables leave columns out.
 *
 * @param {import("./table.js").Column[]} columns
 * @param {Row} row
 */
function showRow(columns, row) {
  const [[, title], ...facts] = columns.map(
    ({ label, value, cell }) =>
      /** @type {[string, string]} */ ([label, (cell ? cell(row) : value(row)) || NONE]),
  );
  void ask({ title, body: [factList(facts)], submit: "Close", cancel: false });
}

/** Show a list as a page. @param {import("./lists.js").List} list @returns {import("./router.js").View} */
export function listPage(list) {
  const view = tableView({
    ...list,
    open: list.hrefOf ? undefined : (row) => showRow(list.columns, row),
    label: list.title,
    rows: new Rows(list.path, {}, list.member),
  });
  return {
    title: list.title,
    element: h(
      "div.page.fixed",
      {},
      h("div.page-head", {}, h("h1", {}, list.title), h("p.muted", {}, list.text)),
      view.element,
    ),
    close: view.close,
  };
}

/**
 * Return the subscriptions of a topic or of a session as a table.
 *
 * @param {{topic?: string, mark?: string}} of
 * @param {{title: string, text: string}} empty
 */
export function subscriptionsTable(of, empty) {
  const columns =
    of.topic === undefined
      ? [
          text("topic", "Topic", { width: 3 }),
          badge("state", "State", STATES),
          number("behind", "Behind", count, { rank: 2 }),
        ]
      : [
          {
            id: "client",
            label: "Client",
            width: 2,
            value: (/** @type {Row} */ row) => row.client || row.mark,
          },
          text("protocol", "Protocol"),
          badge("state", "State", STATES, { rank: 2 }),
          number("behind", "Behind", count, { rank: 2 }),
        ];
  return tableView({
    label: "Subscriptions",
    noun: "subscription",
    rows: new Rows("subscriptions", of),
    columns,
    keyOf: (row) => `${row.mark} ${row.topic}`,
    hrefOf: of.topic === undefined ? (row) => link("topics", String(row.topic)) : sessionLink,
    sort: columns[0].id,
    empty,
  });
}

/**
 * Return facts as a list of names and values.
 *
 * @param {[string, string][]} facts
 * @returns {HTMLElement}
 */
export function factList(facts) {
  return h(
    "dl.facts",
    {},
    facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}
