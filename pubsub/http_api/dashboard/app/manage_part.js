/** The part of a topic's page that creates it, gives it a queue key, and deletes it. */

import { fillOnce, h } from "./dom.js";
import { go, link } from "./router.js";
import { changeKey, createTopic, deleteTopic } from "./topic_actions.js";

/**
 * Return the part; `update` takes what the broker says of the topic, or null if there is none.
 *
 * @param {string} topic
 * @param {() => void} reread called after a change
 */
export function managePart(topic, reread) {
  const waiting = h("p.muted", {}, "The broker has not told anything about this topic yet.");
  const element = h("section.panel", { "aria-label": "Manage" }, waiting);

  /** @param {() => Promise<any>} change */
  const then = (change) => async () => {
    if (await change()) reread();
  };

  /** @param {any} row */
  const ofTopic = (row) => [
    action(
      "Queue key",
      row.keyed
        ? "Clients need the key of this topic. A new one shuts out those that have only the present one."
        : "The topic has no queue key: the access rules alone decide who may use it.",
      row.keyed ? "Replace the key…" : "Close with a key…",
      then(() => changeKey(topic, row.keyed)),
    ),
    action(
      "Delete",
      "Deletes the topic with its messages and its queue key, and ends its subscriptions.",
      "Delete the topic…",
      async () => {
        if (await deleteTopic(topic)) go(link("topics"));
      },
      "danger",
    ),
  ];

  /** @param {any} row */
  function update(row) {
    const key = row === null ? "none" : `keyed ${row.keyed}`;
    fillOnce(element, key, () =>
      h(
        "div.manage-actions",
        {},
        row === null
          ? action(
              "Create",
              "Creates the topic now, also with a queue key.",
              "Create the topic…",
              then(() => createTopic(topic)),
            )
          : ofTopic(row),
      ),
    );
  }

  return { show: () => element, close() {}, update };
}

/**
 * @param {string} title
 * @param {string} text
 * @param {string} label
 * @param {() => void} onclick
 * @param {string} [tone]
 * @returns {HTMLElement}
 */
function action(title, text, label, onclick, tone = "") {
  return h(
    "div.manage-action",
    {},
    h("div", {}, h("h2", {}, title), h("p.muted", {}, text)),
    h(`button.button${tone && `.${tone}`}`, { type: "button", onclick }, label),
  );
}
