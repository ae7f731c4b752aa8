/** The page of a session: what it is, its subscriptions, and disconnecting it. */

import { ApiProblem, call, messageOf, segment } from "./api.js";
import { ask, field } from "./dialogs.js";
import { announce, fill, fillOnce, h } from "./dom.js";
import { icon } from "./icons.js";
import { bytes, count, dateTime, duration, NONE } from "./format.js";
import { STATES } from "./columns.js";
import { factList, subscriptionsTable } from "./list_page.js";
import { poll } from "./polling.js";
import { link } from "./router.js";
import { note, readingProblem } from "./table_view.js";

const PAUSE = 2000;

/** Show the page. @param {string} mark @returns {import("./router.js").View} */
export function sessionPage(mark) {
  const name = h("span", {}, mark);
  const state = h("span");
  const facts = h("div");
  const said = h("div", { "aria-live": "polite" });
  const button = h("button.button.danger", { type: "button", onclick: disconnect }, "Disconnect…");
  const subscriptions = subscriptionsTable(
    { mark },
    { title: "No subscriptions", text: "This client has not subscribed to a topic." },
  );

  async function read() {
    try {
      const session = await call(`sessions/${segment(mark)}`);
      show(session);
      fillOnce(said, "", () => null);
    } catch (error) {
      failed(error);
    }
  }

  /** @param {any} error */
  function failed(error) {
    if (error instanceof ApiProblem && error.status === 404) gone();
    else fillOnce(said, messageOf(error), () => readingProblem(error));
  }

  /** @param {any} session */
  function show(session) {
    fill(name, session.client || session.identity || `Session ${session.mark}`);
    fill(
      state,
      h(
        `span.badge.${/** @type {any} */ (STATES)[session.state] ?? "neutral"}`,
        {},
        String(session.state).replaceAll("_", " "),
      ),
    );
    fill(facts, factList(factsOf(session)));
  }

  function gone() {
    close();
    button.hidden = true;
    fill(state, h("span.badge.muted", {}, "gone"));
    fillOnce(said, "gone", () =>
      note("The session has ended", "Its client is not connected any more."),
    );
  }

  async function disconnect() {
    const reason = h("input", {
      id: "reason",
      name: "reason",
      type: "text",
      value: "disconnected by an operator",
      maxlength: "200",
      required: true,
    });
    const entered = await ask({
      title: `Disconnect ${name.textContent}?`,
      body: [
        h(
          "p",
          {},
          "The connection is closed after what is queued has been sent. Most clients connect again by themselves.",
        ),
        field("Reason", reason, "It is written to the log and to the audit, with the session."),
      ],
      submit: "Disconnect",
      danger: true,
    });
    if (!entered) return;
    button.disabled = true;
    try {
      await call(
        `sessions/${segment(mark)}`,
        { reason: String(entered.get("reason")) },
        { method: "DELETE" },
      );
      announce("The session is being disconnected");
      polling.now();
    } catch (error) {
      failed(error);
    }
    button.disabled = false;
  }

  function close() {
    polling.stop();
    subscriptions.close();
  }

  const polling = poll(read, PAUSE);
  const element = h(
    "div.page.fixed",
    {},
    h("a.back", { href: link("sessions") }, icon("back"), "Sessions"),
    h("div.page-head.row", {}, h("h1.name", {}, name), state, h("span.spring"), button),
    said,
    h("section.panel", { "aria-label": "Session" }, facts),
    subscriptions.element,
  );
  return { title: "Session", element, close };
}

/** @param {any} session @returns {[string, string][]} */
function factsOf(session) {
  return [
    ["Protocol", session.protocol ?? NONE],
    ["Identity", session.identity || "anonymous"],
    ["Address", session.address ?? NONE],
    [
      "Connected",
      `${dateTime(session.connected)}, ${duration(Date.now() / 1000 - session.connected / 1e6)}`,
    ],
    ["Subscriptions", count(session.subscriptions)],
    ["Messages in", `${count(session.messages_in)}, ${bytes(session.bytes_in)}`],
    ["Messages out", `${count(session.messages_out)}, ${bytes(session.bytes_out)}`],
    ["Queued", bytes(session.queued_bytes)],
    ["Messages behind", count(session.behind)],
    ["Mark in events", String(session.mark)],
  ];
}
