/**
 * Pages by the fragment of the URL, such as #/topics/orders%2F2025.
 *
 * @typedef {Object} View what a page shows
 * @property {string} title
 * @property {HTMLElement} element
 * @property {() => void} [close] called when another page is shown
 *
 * @typedef {(name: string) => View} Page makes the view; `name` is the last segment, or empty
 */

/** Return the link of a page. @param {string} page @param {string} [name] @returns {string} */
export function link(page, name) {
  return name === undefined ? `#/${page}` : `#/${page}/${encodeURIComponent(name)}`;
}

/** Return page and name of the current URL. @returns {[string, string]} */
export function place() {
  const [page = "", name = ""] = location.hash.replace(/^#\/?/, "").split("/");
  try {
    return [page, decodeURIComponent(name)];
  } catch {
    return [page, name];
  }
}

/** Go to another page. @param {string} target a link @returns {void} */
export function go(target) {
  location.hash = target;
}

/**
 * Show the page of the URL now and whenever it changes.
 *
 * @param {(page: string, name: string, first: boolean) => void} show
 */
export function route(show) {
  addEventListener("hashchange", () => show(...place(), false));
  show(...place(), true);
}
