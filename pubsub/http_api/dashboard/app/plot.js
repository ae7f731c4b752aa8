/**
 * Size, axes and colours of the charts of uPlot. The report of the pipeline has this text as well, so
 * it imports nothing.
 */

/** Fit a plot to its element. @param {any} plot @param {HTMLElement} canvas @param {number} height */
export function fitPlot(plot, canvas, height) {
  const width = canvas.clientWidth;
  if (plot && width > 0 && width !== plot.width) plot.setSize({ width, height });
}

/** @returns {any} the options that both axes have */
export function axisStyle() {
  return {
    stroke: colour("--muted"),
    font: `11px ${getComputedStyle(document.body).fontFamily}`,
    grid: { stroke: colour("--grid"), width: 1 },
    ticks: { show: false },
  };
}

/**
 * Return a colour of the style sheet as rgb(), for a canvas.
 *
 * @param {string} name of a variable
 * @returns {string}
 */
export function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
