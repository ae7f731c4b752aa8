/** A list of amounts by name, the largest first, with a bar for each. */

import { fill, h, setText } from "./dom.js";

/**
 * Return the list; `show` takes other amounts.
 *
 * @param {{title: string, empty: string, format: (value: any) => string}} options
 * @returns {{element: HTMLElement, show: (amounts: Record<string, number>) => void}}
 */
export function shares({ title, empty, format }) {
  const list = h("ul.shares");
  const none = h("p.muted", {}, empty);
  let names = "";

  /** @param {Record<string, number>} amounts */
  function show(amounts) {
    const rows = Object.entries(amounts).filter(([, amount]) => amount > 0);
    rows.sort(([a, x], [b, y]) => y - x || a.localeCompare(b));
    none.hidden = rows.length > 0;
    const shown = rows.map(([name]) => name).join("\n");
    if (shown !== names) fill(list, rows.map(share));
    names = shown;
    rows.forEach(([, amount], at) => update(list.children[at], amount, rows[0][1], format));
  }

  return { element: h("section.panel", {}, h("h2", {}, title), none, list), show };
}

/** @param {[string, number]} row @returns {HTMLElement} */
function share([name]) {
  const bar = h("span.bar", { "aria-hidden": "true" }, h("span"));
  return h("li", {}, h("span", { title: name }, name.replaceAll("_", " ")), h("span.amount"), bar);
}

/**
 * @param {Element} line
 * @param {number} amount
 * @param {number} most
 * @param {(value: any) => string} format
 */
function update(line, amount, most, format) {
  const [, text, bar] = line.children;
  setText(text, format(amount));
  const filled = bar.firstElementChild;
  if (filled instanceof HTMLElement) filled.style.width = `${(100 * amount) / most}%`;
}
