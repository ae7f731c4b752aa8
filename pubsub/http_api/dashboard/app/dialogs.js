/**
 * Dialogs: a form in the browser's own modal dialog, which keeps the focus and closes by Escape, and
 * with the page that it belongs to.
 */

import { messageOf } from "./api.js";
import { fill, h } from "./dom.js";

let dialogs = 0;

/**
 * Show a dialog and return what was entered, or null if it was cancelled.
 *
 * With `attempt` the dialog stays until that has succeeded, and shows why it has failed.
 *
 * @param {{title: string, body: any[], submit: string, danger?: boolean, cancel?: boolean,
 *     attempt?: () => Promise<void>}} options
 * @returns {Promise<FormData | null>}
 */
export function ask({ title, body, submit, danger = false, cancel = true, attempt }) {
  return new Promise((resolve) => {
    dialogs += 1;
    const id = `dialog-title-${dialogs}`;
    const said = h("div", { role: "alert" });
    const button = h(`button.button.${danger ? "danger" : "primary"}`, { type: "submit" }, submit);
    const form = h(
      "form",
      { onsubmit: finish, novalidate: true },
      h("h2", { id }, title),
      body,
      said,
      h(
        "div.actions",
        {},
        cancel && h("button.button", { type: "button", onclick: () => close(null) }, "Cancel"),
        button,
      ),
    );
    let busy = false;
    const dialog = h("dialog.dialog", { "aria-labelledby": id }, form);
    /** @param {Event} event */
    async function finish(event) {
      event.preventDefault();
      if (busy || !form.reportValidity()) return;
      const entered = new FormData(form);
      busy = true;
      const done = !attempt || (await succeeds(attempt));
      busy = false;
      if (done) close(entered);
      else if (!dialog.open) resolve(null);
    }
    /** @param {() => Promise<void>} call @returns {Promise<boolean>} */
    async function succeeds(call) {
      button.disabled = true;
      fill(said);
      try {
        await call();
        return true;
      } catch (error) {
        fill(said, h("p.error", {}, `${messageOf(error)}.`));
        return false;
      } finally {
        button.disabled = false;
        if (document.activeElement === document.body) button.focus();
      }
    }
    /** @param {FormData | null} result */
    function close(result) {
      resolve(result);
      dialog.close();
    }
    const leave = () => dialog.close();
    addEventListener("hashchange", leave);
    // Escape closes it too; what has begun is waited for.
    dialog.addEventListener("close", () => {
      removeEventListener("hashchange", leave);
      dialog.remove();
      if (!busy) resolve(null);
    });
    document.body.append(dialog);
    dialog.showModal();
    dialog.querySelector("input, textarea, select")?.focus();
  });
}

/**
 * Return a labelled field.
 *
 * @param {string} label
 * @param {any} input has an id
 * @param {string} [hint]
 * @returns {HTMLElement}
 */
export function field(label, input, hint) {
  if (hint) input.setAttribute("aria-describedby", `${input.id}-hint`);
  return h(
    "div.field",
    {},
    h("label", { for: input.id }, label),
    input,
    hint && h("p.hint", { id: `${input.id}-hint` }, hint),
  );
}
