/**
 * The broker's status, once a second, over a response that does not end.
 *
 * Events: `status` when there is a new one, `phase` when the connection changes.
 */

import { ApiProblem, linesOf, messageOf, send } from "./api.js";
import { sampleOf } from "./rates.js";

/** @typedef {import("./rates.js").Sample} Sample */
/** @typedef {"connecting" | "live" | "waiting" | "token"} Phase */

const FIRST_DELAY = 0.5;
const LONGEST_DELAY = 10;
/** Seconds without a status after which the connection counts as broken. */
const SILENCE = 8;
/** A quarter of an hour. */
const MOST_SAMPLES = 900;

export class Feed extends EventTarget {
  /** @type {Phase} */
  phase = "connecting";
  /** @type {any} the last status, also while there is no connection */
  status = null;
  /** @type {Sample[]} the oldest first */
  samples = [];
  /** @type {any} why the broker cannot be followed */
  error = null;
  /** ms of Date.now() at which the next attempt is made */
  retryAt = 0;
  #delay = FIRST_DELAY;
  #timer = 0;
  #attempt = new AbortController();

  /** Connect, now. */
  start() {
    clearTimeout(this.#timer);
    this.#attempt.abort();
    this.#attempt = new AbortController();
    if (this.phase !== "waiting") this.#enter("connecting");
    this.#follow(this.#attempt);
  }

  /** @param {AbortController} attempt */
  async #follow(attempt) {
    let silence = 0;
    const expect = () => {
      clearTimeout(silence);
      silence = setTimeout(() => attempt.abort(), SILENCE * 1000);
    };
    expect();
    try {
      const parameters = { follow: 1, format: "jsonl" };
      const response = await send("status", { parameters, signal: attempt.signal });
      for await (const lines of linesOf(response, expect)) {
        const last = JSON.parse(lines[lines.length - 1]);
        // Of the reason the next attempt shows what matters, such as a token that has expired.
        if (last.end) break;
        this.#take(last);
      }
      throw new ApiProblem(0, "ended", "the broker has closed the connection");
    } catch (error) {
      if (attempt === this.#attempt) this.#failed(error);
    } finally {
      clearTimeout(silence);
      attempt.abort();
    }
  }

  /** @param {any} status */
  #take(status) {
    const before = this.status;
    this.#delay = FIRST_DELAY;
    this.error = null;
    this.samples.push(sampleOf(status, before));
    if (this.samples.length > MOST_SAMPLES) this.samples.shift();
    this.status = status;
    if (this.phase !== "live") this.#enter("live");
    this.dispatchEvent(new Event("status"));
  }

  /** @param {any} error */
  #failed(error) {
    if (error instanceof ApiProblem && error.needsToken) {
      this.error = error;
      this.#enter("token");
      return;
    }
    this.error =
      error instanceof ApiProblem ? messageOf(error) : "The connection to the broker is broken";
    const delay = this.#delay * (0.75 + 0.5 * Math.random()) * 1000;
    this.#delay = Math.min(2 * this.#delay, LONGEST_DELAY);
    this.retryAt = Date.now() + delay;
    this.#timer = setTimeout(() => this.start(), delay);
    this.#enter("waiting");
  }

  /** @param {Phase} phase */
  #enter(phase) {
    this.phase = phase;
    this.dispatchEvent(new Event("phase"));
  }
}
