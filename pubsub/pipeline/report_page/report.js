/**
 * Draws the charts of the report when they come into view. `uPlot` and the dashboard's `plot.js`
 * precede this text in the same module; the data is in the element `charts`.
 *
 * @typedef {Object} Series
 * @property {string} name
 * @property {string} colour a variable of the style sheet
 * @property {(number | null)[]} values what the legend shows
 * @property {(number | null)[]} drawn the same, or the sum with those below it in a stack
 *
 * @typedef {Object} ChartData
 * @property {"area" | "line" | "bar"} kind
 * @property {"" | "B" | "B/s" | "ms" | "1/s"} unit
 * @property {Series[]} series the highest of a stack first
 */

const { times, charts } = JSON.parse(document.getElementById("charts").textContent);
const HEIGHT = 250;
const NONE = "\u2013";
/** Steps of an axis of whole numbers, and of one of milliseconds. */
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6, 1e7];
const TIMES = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 3e5, 6e5, 36e5];
const dark = matchMedia("(prefers-color-scheme: dark)");
const cursors = uPlot.sync("time");

/** @param {number} value @param {string[]} units @returns {string} with a unit of thousands */
function scaled(value, units) {
  let at = 0;
  while (Math.abs(value) >= 999.5 && at < units.length - 1) {
    value /= 1000;
    at++;
  }
  const digits = Math.abs(value) >= 100 || Number.isInteger(value) ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}${units[at]}`;
}

/** @param {number} value milliseconds @returns {string} */
function duration(value) {
  if (value < 1000) return `${Math.round(value)} ms`;
  if (value < 120e3) return `${scaled(value / 1000, [""])} s`;
  return value < 72e5 ? `${scaled(value / 6e4, [""])} min` : `${scaled(value / 36e5, [""])} h`;
}

/** @type {Record<string, (value: number) => string>} */
const FORMATS = {
  "": (value) => scaled(value, ["", " k", " M", " G"]),
  "1/s": (value) => scaled(value, ["", " k", " M", " G"]),
  B: (value) => scaled(value, [" B", " kB", " MB", " GB", " TB"]),
  "B/s": (value) => scaled(value, [" B", " kB", " MB", " GB", " TB"]),
  ms: duration,
};

class Chart {
  #canvas;
  #data;
  #format;
  #plot = null;
  #section;

  /** @param {HTMLElement} section @param {ChartData} data */
  constructor(section, data) {
    this.#section = section;
    this.#canvas = section.querySelector(".chart");
    this.#data = data;
    this.#format = FORMATS[data.unit];
    new ResizeObserver(() => fitPlot(this.#plot, this.#canvas, HEIGHT)).observe(this.#canvas);
    dark.addEventListener("change", () => this.draw());
    this.draw();
  }

  draw() {
    this.#plot?.destroy();
    const columns = this.#data.series.map((series) => series.drawn);
    this.#plot = new uPlot(this.#options(), [times, ...columns], this.#canvas);
    cursors.sub(this.#plot);
    this.#show(null);
  }

  /** @param {number | null} at the place of a time; null shows the highest value of each series */
  #show(at) {
    const label = this.#section.querySelector("time");
    label.textContent = at === null ? "highest" : clock(times[at]);
    this.#section.querySelectorAll("output").forEach((output, number) => {
      const values = this.#data.series[number].values;
      const value = at === null ? values.reduce((a, b) => (b > (a ?? -1) ? b : a), null) : values[at];
      output.textContent = value === null ? NONE : this.#format(value);
    });
  }

  #options() {
    const axis = axisStyle();
    const steps = this.#data.unit === "ms" ? TIMES : this.#data.unit === "" ? WHOLE : undefined;
    return {
      width: Math.max(this.#canvas.clientWidth, 120),
      height: HEIGHT,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      cursor: { y: false, drag: { x: false, y: false, setScale: false }, sync: { key: "time" } },
      scales: {
        // Of a single time, uPlot would show the thousand days after it.
        x: { time: true, range: (_, low, high) => (times.length > 1 ? [low, high] : [low - 30, low + 30]) },
        y: { range: (_, low, high) => [0, Math.max((high ?? 0) * 1.08, 1)] },
      },
      axes: [
        { ...axis, space: 84, size: 40, grid: { show: false }, values: timeLabels },
        {
          ...axis,
          size: 66,
          space: 34,
          incrs: steps,
          values: (_, splits) => splits.map(this.#format),
        },
      ],
      series: [{}, ...this.#data.series.map((series, at) => this.#line(series, at))],
      hooks: { setCursor: [(plot) => this.#show(plot.cursor.idx ?? null)] },
    };
  }

  /**
   * The lines of a chart become thinner from the first to the last, so that one on top of another
   * does not hide it.
   *
   * @param {Series} series @param {number} at
   */
  #line(series, at) {
    const stroke = colour(series.colour);
    const { kind } = this.#data;
    const count = this.#data.series.length;
    const single = times.length === 1;
    // No line leads to a value between gaps.
    const alone = kind === "line" && !single ? isolated(series.drawn) : null;
    return {
      label: series.name,
      stroke,
      width: kind === "line" ? 1.5 + Math.min(count - 1 - at, 6) * 0.9 : 1,
      fill: kind === "line" ? undefined : stroke,
      paths: kind === "bar" ? uPlot.paths.bars({ size: [0.8, 24] }) : undefined,
      points: { show: single, size: single ? 7 : 4, fill: stroke, filter: () => alone },
    };
  }
}

/** @param {(number | null)[]} values @returns {number[]} the places of those between two gaps */
function isolated(values) {
  const present = (at) => values[at] !== null && values[at] !== undefined;
  return [...values.keys()].filter((at) => present(at) && !present(at - 1) && !present(at + 1));
}

/** @param {number} at @returns {string} */
function clock(at) {
  return new Date(at * 1000).toISOString().slice(0, 19).replace("T", " ");
}

/** @param {any} _ @param {number[]} splits @returns {string[]} */
function timeLabels(_, splits) {
  const step = splits.length > 1 ? splits[1] - splits[0] : 60;
  let day = "";
  return splits.map((at) => {
    const text = clock(at);
    const time = step >= 86400 ? "" : text.slice(11, step < 60 ? 19 : 16);
    const shown = text.slice(5, 10) === day ? time : `${time}\n${text.slice(5, 10)}`.trim();
    day = text.slice(5, 10);
    return shown;
  });
}

const views = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      views.unobserve(target);
      new Chart(target, charts[Number(target.dataset.chart)]);
    }
  },
  { rootMargin: "200px" },
);
document.querySelectorAll("[data-chart]").forEach((section) => views.observe(section));
