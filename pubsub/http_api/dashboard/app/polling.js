/** Reads again and again, one reading at a time. */

/**
 * Call `read` now, and again `pause` ms after it has ended.
 *
 * @param {() => Promise<number | void>} read may return another pause for the next time
 * @param {number} pause
 * @returns {{now: () => void, stop: () => void}} `now` reads at once
 */
export function poll(read, pause) {
  let timer = 0;
  let stopped = false;
  let latest = 0;

  async function next() {
    const mine = ++latest;
    clearTimeout(timer);
    const wait = (await read()) ?? pause;
    if (!stopped && mine === latest) timer = setTimeout(next, wait);
  }

  void next();
  return {
    now: () => void next(),
    stop() {
      stopped = true;
      clearTimeout(timer);
    },
  };
}
