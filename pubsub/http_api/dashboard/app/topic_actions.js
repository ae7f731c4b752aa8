/** Creates topics, gives them other queue keys and deletes them, each after a confirmation. */

import { call, segment } from "./api.js";
import { ask, field } from "./dialogs.js";
import { announce, h } from "./dom.js";
import { count, plural } from "./format.js";
import { keyChoice, showKey } from "./queue_key.js";

/**
 * Create a topic and return its name, or null if that was cancelled.
 *
 * @param {string} [name] of the topic, if it is not to be asked for
 * @returns {Promise<string | null>}
 */
export async function createTopic(name = "") {
  const input = h("input", {
    id: "new-topic",
    name: "topic",
    type: "text",
    value: name,
    readonly: name !== "",
    required: true,
    maxlength: "255",
    autocomplete: "off",
    spellcheck: "false",
  });
  const durability = h(
    "select",
    { id: "new-durability" },
    h("option", { value: "" }, "As the broker is configured"),
    h("option", { value: "sync" }, "sync: acknowledged when they are on disk"),
  );
  const choice = keyChoice(true);
  const entered = await ask({
    title: "New topic",
    body: [field("Name", input), field("Messages", durability), ...choice.fields],
    submit: "Create",
    async attempt() {
      const { key } = choice.key();
      const body = {
        ...(durability.value && { sync: true }),
        ...(key !== null && { queue_key: key }),
      };
      await call(`topics/${segment(input.value)}`, {}, { method: "PUT", body });
    },
  });
  if (!entered) return null;
  announce("The topic exists");
  const { key, isNew } = choice.key();
  if (isNew && key !== null) await showKey(input.value, key);
  return input.value;
}

/**
 * Give a topic another queue key, or its first one.
 *
 * @param {string} topic
 * @param {boolean} isKeyed
 * @returns {Promise<boolean>} whether it has one now
 */
export async function changeKey(topic, isKeyed) {
  const choice = keyChoice(false);
  const text = isKeyed
    ? "The present key stops working at once. Subscriptions of clients without the new one end."
    : "Subscriptions end. From then on clients need the key.";
  let said = "";
  const entered = await ask({
    title: isKeyed ? `Replace the queue key of ${topic}?` : `Close ${topic} with a queue key?`,
    body: [h("p", {}, text), ...choice.fields],
    submit: isKeyed ? "Replace" : "Close with the key",
    danger: true,
    async attempt() {
      const body = { queue_key: choice.key().key };
      const path = `topics/${segment(topic)}`;
      if (isKeyed) {
        const { kept, ended } = await call(`${path}/key`, {}, { method: "POST", body });
        said = `${plural(kept, "subscription")} kept, ${count(ended)} ended`;
      } else {
        await call(path, {}, { method: "PUT", body });
        said = "The topic has a queue key";
      }
    },
  });
  if (!entered) return false;
  announce(said);
  const { key, isNew } = choice.key();
  if (isNew && key !== null) await showKey(topic, key);
  return true;
}

/**
 * Delete a topic; its name has to be entered.
 *
 * @param {string} topic
 * @returns {Promise<boolean>} whether it has been deleted
 */
export async function deleteTopic(topic) {
  const input = h("input", {
    id: "deleted-topic",
    type: "text",
    required: true,
    autocomplete: "off",
    spellcheck: "false",
    oninput: check,
  });
  function check() {
    input.setCustomValidity(input.value === topic ? "" : "Enter the name of the topic");
  }
  check();
  const entered = await ask({
    title: `Delete ${topic}?`,
    body: [
      h(
        "p",
        {},
        "Its messages and its queue key are deleted, and its subscriptions end. This cannot be undone.",
      ),
      field("Name of the topic", input, "Enter it to confirm."),
    ],
    submit: "Delete",
    danger: true,
    async attempt() {
      await call(`topics/${segment(topic)}`, {}, { method: "DELETE" });
    },
  });
  if (entered) announce("The topic has been deleted");
  return entered !== null;
}
