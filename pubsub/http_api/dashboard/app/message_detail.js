/** One message: its facts, its headers, and its payload in one of three views. */

import { fill, h } from "./dom.js";
import { bytes, count, dateTime, NONE } from "./format.js";
import { factList } from "./list_page.js";
import { bestForm, payloadView } from "./payload.js";
import { note } from "./table_view.js";

/** @typedef {import("./tail.js").Message} Message */
/** @typedef {import("./payload.js").Form} Form */

/** Return the panel with one message. */
export function messageDetail() {
  const forms = /** @type {[Form, string][]} */ ([
    ["text", "Text"],
    ["json", "JSON"],
    ["hex", "Hex"],
  ]);
  const head = h("div");
  const body = h("div.payload-box");
  const buttons = forms.map(([form, label]) =>
    h("button", { type: "button", onclick: () => choose(form) }, label),
  );
  const group = h(
    "div.segments",
    { role: "group", "aria-label": "View of the payload", hidden: true },
    buttons,
  );
  /** @type {Message | null} */
  let shown = null;
  /** @type {Form | null} */
  let chosen = null;
  fill(
    body,
    note(
      "No message chosen",
      "Choose a message to see its payload as text, JSON or hexadecimal, and its headers.",
    ),
  );

  /** @param {Form} form */
  function choose(form) {
    chosen = form;
    if (shown) show(shown);
  }

  /** @param {Message} message */
  function show(message) {
    const form = chosen ?? bestForm(message.payload);
    shown = message;
    group.hidden = false;
    forms.forEach(([name], at) => buttons[at].setAttribute("aria-pressed", String(name === form)));
    fill(head, factList(messageFacts(message)));
    fill(body, payloadView(message.payload, form));
  }

  return {
    element: h(
      "section.panel.detail",
      { "aria-label": "Message", "aria-live": "polite" },
      group,
      head,
      body,
    ),
    show,
  };
}

/** @param {Message} message @returns {[string, string][]} */
function messageFacts(message) {
  return [
    ["Time", dateTime(message.timestamp)],
    ["Offset", count(message.offset)],
    ["Sender", message.sender || NONE],
    ["Protocol", message.protocol],
    ["Size", bytes(message.payload.data.length)],
    ...message.headers.map(
      ({ key, value }) => /** @type {[string, string]} */ ([`Header ${key}`, value]),
    ),
  ];
}
