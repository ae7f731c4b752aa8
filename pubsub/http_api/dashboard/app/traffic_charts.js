/** The charts of the first page. */

import { Chart } from "./chart.js";
import { h } from "./dom.js";
import { bytes, compact, latency } from "./format.js";
import { protocolNames } from "./rates.js";

/** @typedef {import("./chart.js").Line} Line */

const WINDOWS = /** @type {[string, number][]} */ ([
  ["1 min", 60],
  ["5 min", 300],
  ["15 min", 900],
]);
const OWN_COLOURS = new Set(["cafe", "nsd", "rheos", "spot", "fast", "http"]);

/** @returns {import("./overview.js").Part} */
export function chartsPart() {
  const charts = {
    in: new Chart({
      title: "Messages in",
      hint: "per second, by protocol",
      format: compact,
      least: 10,
    }),
    out: new Chart({
      title: "Messages out",
      hint: "per second, by protocol",
      format: compact,
      least: 10,
    }),
    latency: new Chart({ title: "Latency", hint: "from publish", format: latency, least: 1e-3 }),
    memory: new Chart({
      title: "Memory",
      hint: "held for clients, and the process",
      format: bytes,
      least: 1024 * 1024,
      binary: true,
    }),
    commits: new Chart({
      title: "Commits",
      hint: "to the history, per second",
      format: compact,
      least: 5,
    }),
    lag: new Chart({
      title: "Reactor",
      hint: "worst of each second",
      format: latency,
      least: 0.01,
    }),
  };
  let seconds = WINDOWS[0][1];
  let redraw = () => {};
  const buttons = WINDOWS.map(([label, length]) =>
    h(
      "button",
      { type: "button", "aria-pressed": String(length === seconds), onclick: () => choose(length) },
      label,
    ),
  );
  /** @param {number} length */
  function choose(length) {
    seconds = length;
    buttons.forEach((button, at) =>
      button.setAttribute("aria-pressed", String(WINDOWS[at][1] === length)),
    );
    redraw();
  }
  const heading = h(
    "div.section-head",
    {},
    h("h2", {}, "The last minutes"),
    h("div.segments", { role: "group", "aria-label": "Time that is shown" }, buttons),
  );
  return {
    element: h(
      "section",
      {},
      heading,
      h(
        "div.charts",
        {},
        Object.values(charts).map((chart) => chart.element),
      ),
    ),
    update(feed) {
      redraw = () => {
        const shown = feed.samples.slice(-seconds - 2);
        const names = protocolNames(feed.status.stats);
        charts.in.show(
          shown,
          names.map((name) => protocolLine(name, "messagesIn")),
          seconds,
        );
        charts.out.show(
          shown,
          names.map((name) => protocolLine(name, "messagesOut")),
          seconds,
        );
        charts.latency.show(shown, LATENCY, seconds);
        charts.memory.show(shown, MEMORY, seconds);
        charts.commits.show(shown, COMMITS, seconds);
        charts.lag.show(shown, LAG, seconds);
      };
      redraw();
    },
    close: () => Object.values(charts).forEach((chart) => chart.close()),
  };
}

/** @param {string} name @param {"messagesIn" | "messagesOut"} member @returns {Line} */
function protocolLine(name, member) {
  return {
    label: name,
    colour: colourOf(name),
    value: (sample) => sample.protocols[name]?.[member],
  };
}

/** Return the variable with a protocol's colour. @param {string} name @returns {string} */
export function colourOf(name) {
  return `--line-${OWN_COLOURS.has(name) ? name : "other"}`;
}

/** @type {Line[]} */
const LATENCY = [
  { label: "flush p99", colour: "--line-1", value: ({ stats }) => stats.latency?.flush?.p99 },
  {
    label: "flush p50",
    colour: "--line-1",
    dashed: true,
    value: ({ stats }) => stats.latency?.flush?.p50,
  },
  { label: "commit p99", colour: "--line-2", value: ({ stats }) => stats.latency?.commit?.p99 },
  {
    label: "commit p50",
    colour: "--line-2",
    dashed: true,
    value: ({ stats }) => stats.latency?.commit?.p50,
  },
];
/** @type {Line[]} */
const MEMORY = [
  {
    label: "for clients",
    colour: "--line-1",
    filled: true,
    value: ({ stats }) => stats.memory?.used,
  },
  { label: "process", colour: "--line-2", value: ({ stats }) => stats.memory?.process },
];
/** @type {Line[]} */
const COMMITS = [
  { label: "commits", colour: "--line-1", filled: true, value: ({ commits }) => commits },
];
/** @type {Line[]} */
const LAG = [
  { label: "lag", colour: "--line-1", filled: true, value: ({ stats }) => stats.reactor?.lag },
  {
    label: "collector pause",
    colour: "--line-2",
    value: ({ stats }) => stats.reactor?.collector_pause,
  },
];
