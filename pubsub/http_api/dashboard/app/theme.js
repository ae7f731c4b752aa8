/** The theme: that of the system, or the one that was chosen. */

import { fill, h } from "./dom.js";
import { icon } from "./icons.js";

const KEY = "pubsub.theme";
const THEMES = /** @type {const} */ (["system", "light", "dark"]);
const LABELS = { system: "as the system", light: "light", dark: "dark" };
const ICONS = /** @type {const} */ ({ system: "system", light: "sun", dark: "moon" });
const SYSTEM = matchMedia("(prefers-color-scheme: dark)");

/** Fires `change` when colours change. */
export const themeChanges = new EventTarget();
SYSTEM.addEventListener("change", () => themeChanges.dispatchEvent(new Event("change")));

/** @returns {"system" | "light" | "dark"} */
function chosen() {
  const value = document.documentElement.dataset.theme;
  return value === "light" || value === "dark" ? value : "system";
}

/** @param {"system" | "light" | "dark"} theme */
function choose(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (theme === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // The choice lasts as long as the page.
  }
  themeChanges.dispatchEvent(new Event("change"));
}

/** Return the button that changes the theme. @returns {HTMLButtonElement} */
export function themeButton() {
  const button = h("button.icon-button", { type: "button", onclick: next });
  function show() {
    const label = `Theme: ${LABELS[chosen()]}`;
    fill(button, icon(ICONS[chosen()]));
    button.setAttribute("aria-label", label);
    button.title = label;
  }
  function next() {
    choose(THEMES[(THEMES.indexOf(chosen()) + 1) % THEMES.length]);
    show();
  }
  show();
  return button;
}
