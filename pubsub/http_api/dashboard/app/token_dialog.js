/** Asks for the token: once for the tab, and again when the broker refuses it. */

import { messageOf, token } from "./api.js";
import { ask, field } from "./dialogs.js";
import { h } from "./dom.js";

let open = false;

/**
 * Ask for a token and return whether there is another one now.
 *
 * @param {any} error why the broker refused the request, or null
 * @returns {Promise<boolean>}
 */
export async function askForToken(error) {
  if (open) return false;
  open = true;
  const known = token.get() !== "";
  const input = h("input", {
    id: "token",
    name: "token",
    type: "password",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
  });
  const refused = known && error;
  const entered = await ask({
    title: refused ? "The broker refused the token" : "This broker asks for a token",
    body: [
      error && h(`p.${refused ? "error" : "hint"}`, { role: "alert" }, `${messageOf(error)}.`),
      field(
        "Token",
        input,
        "It is kept in this tab until the tab is closed, and sent to this broker only.",
      ),
      h(
        "p.hint",
        {},
        "A token that may see everything: ",
        h("code", {}, "pubsub token make --secret-file FILE --permission admin"),
      ),
    ],
    submit: "Continue",
  });
  open = false;
  if (!entered) return false;
  token.set(String(entered.get("token") ?? "").trim());
  return true;
}
