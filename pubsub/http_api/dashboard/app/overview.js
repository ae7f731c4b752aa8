/** The first page: what needs attention, the figures of this second, and the last minutes. */

import { fill, h, setText } from "./dom.js";
import { icon } from "./icons.js";
import { bytes, byteRate, count, latency, NONE, percent, plural, rate } from "./format.js";
import { protocolsPart } from "./protocol_table.js";
import { total } from "./rates.js";
import { shares } from "./shares.js";
import { chartsPart } from "./traffic_charts.js";

/** @typedef {import("./feed.js").Feed} Feed */
/** @typedef {import("./rates.js").Sample} Sample */

/** Show the page. @param {Feed} feed @returns {import("./router.js").View} */
export function overview(feed) {
  const parts = [attentionPart(), figuresPart(), chartsPart(), protocolsPart(), causesPart()];
  const update = () => {
    if (feed.status) for (const part of parts) part.update(feed);
  };
  feed.addEventListener("status", update);
  update();
  const element = h(
    "div.page",
    {},
    h("h1", {}, "Overview"),
    parts.map((part) => part.element),
  );
  return {
    title: "Overview",
    element,
    close() {
      feed.removeEventListener("status", update);
      for (const part of parts) part.close?.();
    },
  };
}

/**
 * @typedef {Object} Part
 * @property {HTMLElement} element
 * @property {(feed: Feed) => void} update
 * @property {() => void} [close]
 */

/** @returns {Part} */
function attentionPart() {
  const list = h(
    "div.attention-list",
    { role: "status" },
    h("p.muted", {}, "Waiting for the broker…"),
  );
  let shown = "";
  return {
    element: h("section.attention", { "aria-label": "What needs attention" }, list),
    update({ status }) {
      const items = status.attention ?? [];
      const state = JSON.stringify([items, status.ready]);
      if (state === shown) return;
      shown = state;
      fill(list, items.length ? items.map(attentionItem) : calm(status));
    },
  };
}

/** @param {{level: string, what: string, do: string}} item @returns {HTMLElement} */
function attentionItem(item) {
  const level = item.level === "critical" ? "critical" : "warning";
  return h(
    `div.attention-item.${level}`,
    {},
    icon(level),
    h(
      "div",
      {},
      h("p.attention-what", {}, h("span.hidden-text", {}, `${level}: `), sentence(item.what)),
      item.do && h("p.attention-do", {}, `${sentence(item.do)}.`),
    ),
  );
}

/** @param {string} text @returns {string} */
function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1).replace(/\.$/, "");
}

/** @param {any} status @returns {HTMLElement} */
function calm(status) {
  const text =
    status.ready === false
      ? "The broker is not ready: it starts or is being drained."
      : "Nothing needs attention.";
  return h(
    `div.attention-item.${status.ready === false ? "warning" : "good"}`,
    {},
    icon(status.ready === false ? "warning" : "check"),
    h("p", {}, text),
  );
}

/** @returns {Part} */
function figuresPart() {
  const tiles = {
    in: tile("Messages in"),
    out: tile("Messages out"),
    connections: tile("Connections"),
    latency: tile("Publish to flush, p99"),
    commit: tile("Publish to commit, p99"),
    memory: tile("Memory", true),
  };
  return {
    element: h(
      "section.tiles",
      { "aria-label": "Now" },
      Object.values(tiles).map((one) => one.element),
    ),
    update(feed) {
      const { stats, all } = /** @type {Sample} */ (feed.samples.at(-1));
      tiles.in.set(rate(all.messagesIn), byteRate(all.bytesIn));
      tiles.out.set(rate(all.messagesOut), byteRate(all.bytesOut));
      tiles.connections.set(
        count(total(stats, "connections")),
        plural(stats.subscriptions ?? 0, "subscription"),
      );
      tiles.latency.set(
        latency(stats.latency?.flush?.p99),
        `median ${latency(stats.latency?.flush?.p50)}`,
      );
      tiles.commit.set(
        latency(stats.latency?.commit?.p99),
        `median ${latency(stats.latency?.commit?.p50)}`,
      );
      setMemory(tiles.memory, stats.memory ?? {});
    },
  };
}

/** @param {ReturnType<typeof tile>} shown @param {any} memory */
function setMemory(shown, memory) {
  const share = memory.limit ? memory.used / memory.limit : 0;
  shown.set(
    bytes(memory.used),
    memory.limit ? `${percent(share)} of ${bytes(memory.limit)}` : "without a limit",
    share,
  );
}

/** @param {string} label @param {boolean} [metered] */
function tile(label, metered = false) {
  const value = h("p.tile-value", {}, NONE);
  const more = h("p.tile-more", {}, "\u00a0");
  const bar = h("span");
  const meter = metered ? h("div.meter", { "aria-hidden": "true" }, bar) : null;
  return {
    element: h("div.tile", {}, h("h2.tile-label", {}, label), value, more, meter),
    /** @param {string} text @param {string} below @param {number} [share] */
    set(text, below, share = 0) {
      setText(value, text);
      setText(more, below);
      bar.style.width = `${Math.min(100, share * 100)}%`;
      bar.className = share > 0.9 ? "critical" : share > 0.75 ? "warning" : "";
    },
  };
}

/** @returns {Part} */
function causesPart() {
  const memory = shares({ title: "Memory by account", empty: "Nothing is held.", format: bytes });
  const drops = shares({
    title: "Dropped messages and evictions",
    empty: "No message was dropped, and no client was disconnected to protect others.",
    format: count,
  });
  return {
    element: h("div.halves", {}, memory.element, drops.element),
    update({ status: { stats } }) {
      memory.show(stats.memory?.accounts ?? {});
      drops.show({ ...stats.drops, ...named(stats.evictions ?? {}, "evicted: ") });
    },
  };
}

/** @param {Record<string, number>} amounts @param {string} prefix @returns {Record<string, number>} */
function named(amounts, prefix) {
  return Object.fromEntries(Object.entries(amounts).map(([name, one]) => [prefix + name, one]));
}
