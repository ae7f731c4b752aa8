/** The page of the store: the history and what it occupies. */

import { ApiProblem, call, messageOf } from "./api.js";
import { fill, fillOnce, h } from "./dom.js";
import { bytes, count, dateTime, duration, NONE } from "./format.js";
import { factList } from "./list_page.js";
import { poll } from "./polling.js";
import { problem, readingProblem } from "./table_view.js";

const PAUSE = 3000;
const SIZES = new Set([
  "bytes",
  "index_bytes",
  "metadata_bytes",
  "disk_free",
  "disk_total",
  "retention_bytes",
  "max_bytes",
]);
const SECONDS = new Set([
  "seconds_since_commit",
  "stalled_seconds",
  "retention_seconds",
  "commit_seconds",
]);
const TIMES = new Set(["first_timestamp", "last_timestamp", "last_commit", "opened"]);
const LABELS = /** @type {Record<string, string>} */ ({
  durable: "Kept on disk",
  first_offset: "First offset",
  next_offset: "Next offset",
  committed: "Committed up to",
  commits: "Commits",
  bytes: "Size of the segments",
  index_bytes: "Size of the indexes",
  metadata_bytes: "Size of the metadata",
  retention: "Retention",
  segments: "Segments",
  seconds_since_commit: "Since the last commit",
  stalled_seconds: "Write or sync under way",
  disk_free: "Free on the disk",
  unreadable_segments: "Segments that cannot be read",
  damaged_offsets: "Damaged or missing offsets",
  damaged: "Damaged or missing",
});

/** Show the page. @returns {import("./router.js").View} */
export function storePage() {
  const body = h("div.stack");

  async function read() {
    try {
      fill(body, ...sections(await call("store")));
      delete body.dataset.content;
    } catch (error) {
      if (error instanceof ApiProblem && error.isAway && body.hasChildNodes()) return;
      fillOnce(body, messageOf(error), () => readingProblem(error));
    }
  }

  const polling = poll(read, PAUSE);
  return {
    title: "Store",
    element: h(
      "div.page",
      {},
      h(
        "div.page-head",
        {},
        h("h1", {}, "Store"),
        h("p.muted", {}, "The history of all topics, in one order, and what it occupies."),
      ),
      body,
    ),
    close: polling.stop,
  };
}

/** @param {any} answer @returns {HTMLElement[]} */
function sections({ summary, trouble, ...store }) {
  const plain = Object.entries(store).filter(
    ([, value]) => value === null || typeof value !== "object",
  );
  const nested = Object.entries(store).filter(
    ([, value]) => value !== null && typeof value === "object",
  );
  return [
    ...(trouble ? [problem(String(trouble))] : []),
    h(
      "section.panel.stack",
      { "aria-label": "History" },
      summary && h("p", {}, summary),
      factList(plain.map(([name, value]) => [labelOf(name), valueOf(name, value)])),
    ),
    ...nested.map(([name, value]) =>
      h("section.panel", {}, h("h2", {}, labelOf(name)), content(value)),
    ),
  ];
}

/** @param {any} value @returns {HTMLElement} */
function content(value) {
  if (Array.isArray(value)) {
    if (value.length === 0) return h("p.muted", {}, "None.");
    if (typeof value[0] !== "object") return h("p", {}, value.join(", "));
    return table(value);
  }
  return factList(Object.entries(value).map(([name, one]) => [labelOf(name), valueOf(name, one)]));
}

/** @param {Record<string, any>[]} rows @returns {HTMLElement} */
function table(rows) {
  const names = Object.keys(rows[0]);
  const heads = names.map((name) => h("th", { scope: "col" }, labelOf(name)));
  const lines = rows.map((row) =>
    h(
      "tr",
      {},
      names.map((name) => h("td", {}, valueOf(name, row[name]))),
    ),
  );
  return h(
    "div.wide",
    { tabindex: "0", role: "region", "aria-label": "Rows" },
    h("table.plain", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, lines)),
  );
}

/** @param {string} name @returns {string} */
function labelOf(name) {
  const words = LABELS[name] ?? name.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** @param {string} name @param {any} value @returns {string} */
function valueOf(name, value) {
  if (value === null || value === undefined || value === "") return NONE;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (SIZES.has(name)) return bytes(value);
  if (SECONDS.has(name)) return duration(value);
  if (TIMES.has(name)) return dateTime(value);
  return typeof value === "number"
    ? count(value)
    : typeof value === "object"
      ? JSON.stringify(value)
      : String(value);
}
