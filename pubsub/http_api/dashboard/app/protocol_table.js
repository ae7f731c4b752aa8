/** The table of protocols of the first page. */

import { h, setText } from "./dom.js";
import { count, duration, plural, rate } from "./format.js";
import { protocolNames } from "./rates.js";
import { colourOf } from "./traffic_charts.js";

/** @typedef {import("./feed.js").Feed} Feed */

/** @returns {import("./overview.js").Part} */
export function protocolsPart() {
  const heads = [
    "Protocol",
    "Connections",
    "Sessions",
    "In",
    "Out",
    "Messages in",
    "Messages out",
    "Dropped",
    "Refused",
  ];
  const body = h("tbody");
  const table = h(
    "table.plain",
    {},
    h("caption.hidden-text", {}, "Protocols"),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        heads.map((head, at) => h(at ? `th.number${RANKS[at]}` : "th", { scope: "col" }, head)),
      ),
    ),
    body,
  );
  const footer = h("p.muted.small");
  return {
    element: h(
      "section.panel",
      {},
      h("h2", {}, "Protocols"),
      h("div.wide", { tabindex: "0", role: "region", "aria-label": "Protocols" }, table),
      footer,
    ),
    update(feed) {
      const names = protocolNames(feed.status.stats);
      while (body.children.length > names.length) body.lastElementChild.remove();
      while (body.children.length < names.length) body.append(protocolRow());
      names.forEach((name, at) => fillRow(body.children[at], name, feed));
      const { stats } = feed.status;
      setText(
        footer,
        `${plural(stats.topics ?? 0, "topic")}. Totals are since the start, ${duration(stats.uptime)} ago.`,
      );
    },
  };
}

const RANKS = ["", "", ".rank-3", "", "", ".rank-2", ".rank-2", ".rank-2", ".rank-2"];

/** @returns {HTMLElement} */
function protocolRow() {
  const first = h("th", { scope: "row" }, h("span.swatch"), h("span"));
  return h(
    "tr",
    {},
    first,
    RANKS.slice(1).map((rank) => h(`td.number${rank}`)),
  );
}

/** @param {any} row @param {string} name @param {Feed} feed */
function fillRow(row, name, feed) {
  const rates = feed.samples.at(-1)?.protocols[name];
  const { connections, sessions, messages_in, messages_out, dropped, refused } =
    feed.status.stats.protocols[name];
  row.firstElementChild.firstElementChild.style.setProperty("--swatch", `var(${colourOf(name)})`);
  setText(row.firstElementChild.lastElementChild, name);
  const texts = [
    count(connections),
    count(sessions),
    rate(rates?.messagesIn),
    rate(rates?.messagesOut),
    count(messages_in),
    count(messages_out),
    count(dropped),
    count(refused),
  ];
  texts.forEach((text, at) => setText(row.children[at + 1], text));
}
