/**
 * A chart over the last minutes with its legend, which is text: it shows the latest values, or those
 * below the pointer.
 *
 * @typedef {Object} Line
 * @property {string} label
 * @property {string} colour a variable of the style sheet
 * @property {(sample: Sample) => number | null | undefined} value
 * @property {boolean} [filled] the area below the line is tinted
 * @property {boolean} [dashed]
 *
 * @typedef {import("./rates.js").Sample} Sample
 */

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { fill, h, setText } from "./dom.js";
import { NONE, clock } from "./format.js";
import { axisStyle, colour, fitPlot } from "./plot.js";
import { themeChanges } from "./theme.js";

const HEIGHT = 168;
const AXIS_WIDTH = 62;
/** The library has no types of its own here. @type {any} */
const Plot = uPlot;
/** Steps of an axis of bytes. */
const POWERS = Array.from({ length: 44 }, (_, at) => 2 ** at);
/** Samples further apart than these seconds are not joined by a line. */
const GAP = 5;

export class Chart {
  /** @type {HTMLElement} */
  element;
  #format;
  #least;
  #binary;
  /** @type {Line[]} */
  #lines = [];
  /** @type {Sample[]} */
  #samples = [];
  #seconds = 300;
  /** @type {any} */
  #plot = null;
  #canvas = h("div.chart-canvas", { "aria-hidden": "true" });
  #legend = h("ul.legend");
  #time = h("span.chart-time");
  #sizes = new ResizeObserver(() => fitPlot(this.#plot, this.#canvas, HEIGHT));
  #repaint = () => this.#make();

  /**
   * @param {{title: string, hint: string, format: (value: any) => string, least: number, binary?: boolean}} options
   *     `least` is the smallest value at the top of the axis, so that noise does not fill the chart;
   *     the axis has powers of two if `binary` is set
   */
  constructor({ title, hint, format, least, binary = false }) {
    this.#format = format;
    this.#least = least;
    this.#binary = binary;
    this.element = h(
      "figure.panel.chart",
      {},
      h("figcaption", {}, h("h3", {}, title), h("span.chart-hint", {}, hint), this.#time),
      this.#canvas,
      this.#legend,
    );
    this.#sizes.observe(this.#canvas);
    themeChanges.addEventListener("change", this.#repaint);
  }

  /**
   * Show these samples; `lines` may be others than before.
   *
   * @param {Sample[]} samples
   * @param {Line[]} lines
   * @param {number} seconds the time that is shown
   */
  show(samples, lines, seconds) {
    const same =
      lines.map((line) => line.label).join("\n") ===
      this.#lines.map((line) => line.label).join("\n");
    this.#samples = samples;
    this.#seconds = seconds;
    this.#lines = lines;
    if (!same || this.#plot === null) this.#make();
    else this.#plot.setData(this.#data());
    if (this.#plot.cursor.idx === null || this.#plot.cursor.idx === undefined)
      this.#showValues(null);
  }

  /** Stop following the window and the theme. */
  close() {
    this.#sizes.disconnect();
    themeChanges.removeEventListener("change", this.#repaint);
    this.#plot?.destroy();
  }

  /** @returns {any[]} the columns that uPlot takes */
  #data() {
    const times = [];
    /** @type {(number | null)[][]} */
    const columns = this.#lines.map(() => []);
    let last = 0;
    for (const sample of this.#samples) {
      if (last && sample.at - last > GAP) {
        times.push(last + 1);
        for (const column of columns) column.push(null);
      }
      last = sample.at;
      times.push(sample.at);
      this.#lines.forEach((line, at) => columns[at].push(line.value(sample) ?? null));
    }
    return [times, ...columns];
  }

  #make() {
    this.#plot?.destroy();
    const width = Math.max(120, this.#canvas.clientWidth);
    this.#plot = new Plot(this.#options(width), this.#data(), this.#canvas);
    fill(
      this.#legend,
      this.#lines.map((line) => {
        const swatch = h(`span.swatch${line.dashed ? ".dashed" : ""}`);
        swatch.style.setProperty("--swatch", `var(${line.colour})`);
        return h(
          "li",
          {},
          swatch,
          h("span.legend-label", {}, line.label),
          h("span.legend-value", {}, NONE),
        );
      }),
    );
    this.#showValues(null);
  }

  /** @param {number | null} place of the sample in the data, or the latest one */
  #showValues(place) {
    const [times, ...columns] = this.#plot?.data ?? [[]];
    const at = place ?? times.length - 1;
    setText(this.#time, place === null || !times[at] ? "" : clock(times[at] * 1e6).slice(0, 8));
    columns.forEach((/** @type {any[]} */ column, /** @type {number} */ line) => {
      const value = this.#legend.children[line]?.querySelector(".legend-value");
      if (value) setText(value, this.#format(column[at]));
    });
  }

  /** @param {number} width @returns {any} */
  #options(width) {
    const axis = axisStyle();
    return {
      width,
      height: HEIGHT,
      // Half of the last label of the time axis is right of the plot.
      padding: [8, 28, 0, 0],
      legend: { show: false },
      cursor: { drag: { setScale: false, x: false, y: false }, y: false, points: { size: 6 } },
      scales: {
        x: { time: true, range: () => this.#timeRange() },
        y: {
          range: (/** @type {any} */ _, /** @type {any} */ low, /** @type {any} */ high) => [
            0,
            Math.max(this.#least, (high ?? 0) * 1.12),
          ],
        },
      },
      axes: [
        { ...axis, space: 76, size: 26, grid: { show: false }, values: timeLabels },
        {
          ...axis,
          size: AXIS_WIDTH,
          space: 34,
          incrs: this.#binary ? POWERS : undefined,
          values: (/** @type {any} */ _, /** @type {number[]} */ splits) =>
            splits.map(this.#format),
        },
      ],
      series: [{}, ...this.#lines.map(series)],
      hooks: {
        setCursor: [(/** @type {any} */ plot) => this.#showValues(plot.cursor.idx ?? null)],
      },
    };
  }

  /** @returns {[number, number]} */
  #timeRange() {
    const end = this.#samples.at(-1)?.at ?? Date.now() / 1000;
    return [end - this.#seconds, end];
  }
}

/** @param {any} _ @param {number[]} splits @returns {string[]} */
function timeLabels(_, splits) {
  return splits.map((at) =>
    clock(at * 1e6).slice(0, splits.length > 1 && splits[1] - splits[0] < 60 ? 8 : 5),
  );
}

/** @param {Line} line @returns {any} */
function series(line) {
  const stroke = colour(line.colour);
  return {
    label: line.label,
    stroke,
    width: 1.75,
    dash: line.dashed ? [5, 4] : undefined,
    fill: line.filled ? stroke.replace(")", " / 12%)").replaceAll(",", "") : undefined,
    points: { show: false },
  };
}
