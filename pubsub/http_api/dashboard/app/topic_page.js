/** The page of a topic: follow it, look back, publish, see who subscribes. */

import { ApiProblem, call, messageOf, segment } from "./api.js";
import { fill, fillOnce, h } from "./dom.js";
import { icon } from "./icons.js";
import { ago, bytes, count, NONE } from "./format.js";
import { factList, subscriptionsTable } from "./list_page.js";
import { managePart } from "./manage_part.js";
import { messagesPart } from "./message_list.js";
import { poll } from "./polling.js";
import { publishForm } from "./publish_form.js";
import { link } from "./router.js";
import { readingProblem } from "./table_view.js";

const PAUSE = 3000;
/** For a topic that does not exist, as the broker counts requests for it as refused. */
const LONG_PAUSE = 15_000;
const NOT_YET = "This topic does not exist yet. It is created when a message is published on it.";

/** Show the page. @param {string} topic @returns {import("./router.js").View} */
export function topicPage(topic) {
  const facts = h("div.topic-facts");
  const parts = {
    messages: messagesPart(topic),
    publish: publishPart(topic),
    subscriptions: subscriptionsPart(topic),
    manage: managePart(topic, () => polling.now()),
  };
  const labels = {
    messages: "Messages",
    publish: "Publish",
    subscriptions: "Subscribers",
    manage: "Manage",
  };
  const content = h("div.tab-content");
  const tabs = Object.entries(labels).map(([name, label]) =>
    h("button", { type: "button", onclick: () => choose(name) }, label),
  );

  /** @param {string} chosen */
  function choose(chosen) {
    Object.keys(labels).forEach((name, at) =>
      tabs[at].setAttribute("aria-pressed", String(name === chosen)),
    );
    fill(content, /** @type {any} */ (parts)[chosen].show());
  }

  async function read() {
    try {
      const row = await call(`topics/${segment(topic)}`);
      fill(facts, factList(factsOf(row)));
      parts.manage.update(row);
      delete facts.dataset.content;
      return PAUSE;
    } catch (error) {
      if (!(error instanceof ApiProblem && error.status === 404)) {
        if (!(error instanceof ApiProblem && error.isAway && facts.hasChildNodes()))
          fillOnce(facts, messageOf(error), () => readingProblem(error));
        return PAUSE;
      }
      parts.manage.update(null);
      fillOnce(facts, "none", () => h("p.muted", {}, NOT_YET));
      return LONG_PAUSE;
    }
  }

  choose("messages");
  const polling = poll(read, PAUSE);
  const element = h(
    "div.page.fixed",
    {},
    h("a.back", { href: link("topics") }, icon("back"), "Topics"),
    h(
      "div.page-head.row",
      {},
      h("h1.name", {}, topic),
      h("span.spring"),
      h("div.segments", { role: "group", "aria-label": "Parts of the topic" }, tabs),
    ),
    facts,
    content,
  );
  return {
    title: topic,
    element,
    close() {
      polling.stop();
      Object.values(parts).forEach((part) => part.close());
    },
  };
}

/** @param {any} row @returns {[string, string][]} */
function factsOf(row) {
  const closed = [row.keyed && "queue key", row.exclusive && "exclusive"]
    .filter(Boolean)
    .join(", ");
  return [
    ["Durability", row.durability ?? NONE],
    ["Subscribers", count(row.subscribers)],
    ["Messages since start", count(row.messages)],
    ["Bytes since start", bytes(row.bytes)],
    ["Last message", ago(row.last_timestamp)],
    ["Access", closed || "open"],
  ];
}

/** @param {string} topic */
function publishPart(topic) {
  const form = h("section.panel", { "aria-label": "Publish" }, publishForm(topic));
  return { show: () => form, close() {} };
}

/** @param {string} topic */
function subscriptionsPart(topic) {
  /** @type {{element: HTMLElement, close: () => void} | null} */
  let view = null;
  return {
    show() {
      view ??= subscriptionsTable(
        { topic },
        {
          title: "No subscribers",
          text: "Messages are stored if the topic is, and wait for readers of the history.",
        },
      );
      return view.element;
    },
    close: () => view?.close(),
  };
}
