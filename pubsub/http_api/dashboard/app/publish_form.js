/** Publishes a message on a topic. */

import { segment, send } from "./api.js";
import { field } from "./dialogs.js";
import { fill, h } from "./dom.js";
import { icon } from "./icons.js";
import { count } from "./format.js";
import { problem } from "./table_view.js";

/** Return the form. @param {string} topic @returns {HTMLElement} */
export function publishForm(topic) {
  const value = h("textarea", { id: "publish-value", rows: "8", spellcheck: "false" });
  const kind = h(
    "select",
    { id: "publish-kind" },
    h("option", { value: "text" }, "Text"),
    h("option", { value: "json" }, "JSON, checked before it is sent"),
    h("option", { value: "hex" }, "Hexadecimal"),
  );
  const sender = h("input", {
    id: "publish-sender",
    type: "text",
    autocomplete: "off",
    maxlength: "255",
  });
  const headers = h("textarea", { id: "publish-headers", rows: "2", spellcheck: "false" });
  const said = h("div.publish-result", { "aria-live": "polite" });
  const button = h("button.button.primary", { type: "submit" }, icon("send"), "Publish");

  /** @param {Event} event */
  async function submit(event) {
    event.preventDefault();
    button.disabled = true;
    try {
      const line = { ...payloadOf(kind.value, value.value), headers: headersOf(headers.value) };
      const answer = await publish(topic, line, sender.value);
      fill(said, h("p.success", {}, icon("check"), resultOf(answer)));
    } catch (error) {
      fill(said, problem(error));
    }
    button.disabled = false;
  }

  return h(
    "form.publish",
    { onsubmit: submit },
    field("Payload", value),
    h(
      "div.columns",
      {},
      field("Kind", kind),
      field("Sender", sender, "Without one, the subject of the token."),
    ),
    field("Headers", headers, "One a line, as name: value."),
    h("div.actions.start", {}, button, said),
  );
}

/**
 * @param {string} topic
 * @param {any} line a message as the API takes it
 * @param {string} sender
 * @returns {Promise<any>}
 */
async function publish(topic, line, sender) {
  /** @type {Record<string, string>} */
  const headers = { "Content-Type": "application/x-ndjson" };
  // Header fields are bytes to a browser; the broker takes them for UTF-8.
  if (sender) headers["Pubsub-Sender"] = String.fromCharCode(...new TextEncoder().encode(sender));
  const body = `${JSON.stringify(line)}\n`;
  const response = await send(`topics/${segment(topic)}/messages`, {
    method: "POST",
    body,
    headers,
  });
  return response.json();
}

/** @param {string} kind @param {string} text @returns {{value: string} | {value_base64: string}} */
function payloadOf(kind, text) {
  if (kind === "json") {
    try {
      JSON.parse(text);
    } catch (error) {
      throw new Error(`the payload is not JSON: ${/** @type {Error} */ (error).message}`);
    }
  }
  if (kind !== "hex") return { value: text };
  const digits = text.replace(/\s+/g, "");
  if (!/^([0-9a-fA-F]{2})*$/.test(digits))
    throw new Error("the payload is not hexadecimal: expected pairs of 0 to 9 and a to f");
  const data = (digits.match(/../g) ?? []).map((pair) => String.fromCharCode(parseInt(pair, 16)));
  return { value_base64: btoa(data.join("")) };
}

/** @param {string} text @returns {{key: string, value: string}[]} */
function headersOf(text) {
  const lines = text.split("\n").filter((line) => line.trim() !== "");
  return lines.map((line) => {
    const at = line.indexOf(":");
    if (at < 1)
      throw new Error(`the header ${JSON.stringify(line)} has no name; expected name: value`);
    return { key: line.slice(0, at).trim(), value: line.slice(at + 1).trim() };
  });
}

/** @param {any} answer @returns {string} */
function resultOf(answer) {
  if (answer.level !== "stored") return "Published; the broker has accepted it";
  return answer.offset === null
    ? "Published and stored"
    : `Published and stored at offset ${count(answer.offset)}`;
}
