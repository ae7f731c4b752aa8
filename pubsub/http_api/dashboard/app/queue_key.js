/** Queue keys: which one a topic gets, and the one time that a new one is shown. */

import { ask, field } from "./dialogs.js";
import { h, setText } from "./dom.js";

const BYTES = 24;
const OPEN = "open";
const NEW = "new";
const OWN = "own";

/** @returns {string} a new random key */
function makeKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(BYTES));
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_");
}

/**
 * Return the fields that choose a key; `key` returns it, and whether it is a new one.
 *
 * @param {boolean} mayBeOpen whether there may be none
 * @returns {{fields: HTMLElement[], key: () => {key: string | null, isNew: boolean}}}
 */
export function keyChoice(mayBeOpen) {
  const kind = h(
    "select",
    { id: "key-kind", onchange: show },
    mayBeOpen && h("option", { value: OPEN }, "None: the access rules alone decide"),
    h("option", { value: NEW }, "A new one, which is shown once"),
    h("option", { value: OWN }, "One that I enter"),
  );
  const entered = h("input", {
    id: "own-key",
    type: "password",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: "255",
  });
  const own = field("Key to use", entered);
  const made = makeKey();

  function show() {
    own.hidden = kind.value !== OWN;
    entered.required = kind.value === OWN;
  }
  show();
  return {
    fields: [
      field("Queue key", kind, "Clients need it to publish on the topic and to read it."),
      own,
    ],
    key() {
      if (kind.value === OPEN) return { key: null, isNew: false };
      return kind.value === NEW
        ? { key: made, isNew: true }
        : { key: entered.value, isNew: false };
    },
  };
}

/**
 * Show a new key until the dialog is closed; the page keeps it nowhere.
 *
 * @param {string} topic
 * @param {string} key
 */
export async function showKey(topic, key) {
  const shown = h("input.key", { id: "new-key", type: "text", readonly: true, value: key });
  const copy = h("button.button", { type: "button", onclick: copyKey }, "Copy");
  async function copyKey() {
    shown.select();
    try {
      await navigator.clipboard.writeText(key);
      setText(copy, "Copied");
    } catch {
      // Browsers have no clipboard for pages without TLS.
      setText(copy, "Press Ctrl+C");
    }
  }
  await ask({
    title: `The queue key of ${topic}`,
    body: [
      field("New key", shown, "Store it now: it is not shown again. A lost key can be replaced."),
      h("div.actions.start", { "aria-live": "polite" }, copy),
    ],
    submit: "Done",
    cancel: false,
  });
}
