/**
 * The messages of a topic: those that come, or a range of the history from a time on.
 *
 * What comes is kept up to a number of messages. If more comes than the page can take, it leaves
 * messages out and says how many, so that it stays with what comes.
 *
 * @typedef {Object} Message
 * @property {number} place counts what this page has received
 * @property {string} kind "message" or "gap"
 * @property {number} timestamp µs since the epoch
 * @property {number | null} offset
 * @property {string} sender
 * @property {string} protocol
 * @property {Payload} payload
 * @property {{key: string, value: string}[]} headers
 * @property {string} [note] of a gap
 */

import { ApiProblem, call, linesOf, messageOf, segment, send } from "./api.js";
import { count, plural } from "./format.js";
import { fromBase64, Payload, readable } from "./payload.js";

/** Messages that are kept. */
const MOST = 1000;
/** Messages of the history that are shown at first: as many as do not count as too many at once. */
const RECENT = MOST / 2;
const LONGEST_DELAY = 10;
/** µs by which the page may be behind before it leaves messages out. */
const MOST_BEHIND = 3e6;

export class Tail extends EventTarget {
  /** @type {Message[]} the oldest first */
  messages = [];
  /** @type {"live" | "back" | "connecting" | "waiting" | "stopped"} */
  state = "connecting";
  /** @type {any} */
  error = null;
  /** Whether there are more messages after those of a range. */
  more = false;
  paused = false;
  #topic;
  #ended = false;
  #place = 0;
  #next = 0;
  #epoch = "";
  #delay = 0.5;
  #timer = 0;
  #reading = new AbortController();
  /** @type {Message[]} */
  #held = [];

  /** @param {string} topic */
  constructor(topic) {
    super();
    this.#topic = topic;
  }

  /** The number of messages that wait while this is paused. */
  get held() {
    return this.#held.length;
  }

  /** Show the most recent messages, and those that come. */
  async live() {
    const reading = this.#begin("connecting");
    try {
      const { first, next, epoch } = await call("bounds", {}, { signal: reading.signal });
      this.#epoch = epoch;
      this.#next = (await this.#recent(reading.signal)) ?? Math.max(first, next - RECENT);
      await this.#follow(reading, { start: this.#next, epoch });
    } catch (error) {
      this.#failed(reading, error);
    }
  }

  /**
   * Return the offset of the first of the last messages of the topic, which may be far before the
   * end, or null if the broker refuses that: then the request that follows shows why.
   *
   * @param {AbortSignal} signal
   * @returns {Promise<number | null>}
   */
  async #recent(signal) {
    const parameters = { topic: this.#topic, last: RECENT, format: "jsonl" };
    try {
      const { headers } = await send("history", { method: "HEAD", parameters, signal });
      return Number(headers.get("Pubsub-Start"));
    } catch (error) {
      if (error instanceof ApiProblem && error.status >= 400) return null;
      throw error;
    }
  }

  /**
   * Show the messages at or after a time, up to as many as are kept.
   *
   * @param {number | null} timestamp µs since the epoch; null for the first message
   */
  async back(timestamp) {
    const reading = this.#begin("back");
    await this.#range(
      reading,
      timestamp === null ? { start: "earliest" } : { timestamp: Math.round(timestamp) },
    );
  }

  /** Show what follows the range. */
  async later() {
    const next = this.#next;
    const reading = this.#begin("back");
    await this.#range(reading, { start: next, epoch: this.#epoch });
  }

  /** Hold what comes back, or show it. @param {boolean} paused */
  pause(paused) {
    this.paused = paused;
    if (!paused) this.#add(this.#held.splice(0));
    this.#changed();
  }

  /** Stop reading. */
  close() {
    clearTimeout(this.#timer);
    this.#reading.abort();
  }

  /** @param {"connecting" | "back"} state @returns {AbortController} */
  #begin(state) {
    this.close();
    this.#reading = new AbortController();
    Object.assign(this, { state, error: null, messages: [], more: false, paused: false });
    this.#held = [];
    this.#ended = false;
    this.#changed();
    return this.#reading;
  }

  /** @param {import("./api.js").Parameters} parameters @param {AbortSignal} signal */
  #request(parameters, signal) {
    const path = `topics/${segment(this.#topic)}/messages`;
    return send(path, { parameters: { ...parameters, headers: 1, format: "jsonl" }, signal });
  }

  // What comes

  /** @param {AbortController} reading @param {import("./api.js").Parameters} from */
  async #follow(reading, from) {
    const response = await this.#request({ ...from, follow: 1 }, reading.signal);
    this.state = "live";
    this.error = null;
    this.#delay = 0.5;
    this.#changed();
    for await (const lines of linesOf(response)) {
      if (reading.signal.aborted) return;
      if (this.#take(lines)) return void this.#skip(reading);
      if (this.#ended) return;
      // The page is drawn before more is taken.
      await new Promise((resolve) => setTimeout(resolve));
    }
    throw new ApiProblem(0, "ended", "the broker has closed the connection");
  }

  /**
   * Add the messages of these lines, at the most as many as are kept.
   *
   * @param {string[]} lines
   * @returns {boolean} whether the page is too far behind
   */
  #take(lines) {
    const found = lines.slice(-MOST).map((line) => this.#parse(JSON.parse(line)));
    if (lines.length > MOST)
      found.unshift(
        this.#gap(`${plural(lines.length - MOST, "message")} not shown: more came than fit`),
      );
    const shown = /** @type {Message[]} */ (found.filter(Boolean));
    if (this.paused) this.#held = [...this.#held, ...shown].slice(-MOST);
    else this.#add(shown);
    this.#changed();
    const last = shown.at(-1);
    return (
      last?.kind === "message" &&
      Date.now() * 1000 - last.timestamp > MOST_BEHIND &&
      lines.length > RECENT
    );
  }

  /** Go on with what comes, and leave out what is between. @param {AbortController} reading */
  async #skip(reading) {
    reading.abort();
    this.#reading = new AbortController();
    const next = this.#reading;
    this.#add([
      this.#gap("Messages are not shown: they came faster than the page could take them"),
    ]);
    try {
      await this.#follow(next, {});
    } catch (error) {
      this.#failed(next, error);
    }
  }

  /** @param {AbortController} reading @param {any} error */
  #failed(reading, error) {
    if (reading.signal.aborted || reading !== this.#reading) return;
    this.error = error;
    const refused = error instanceof ApiProblem && error.status >= 400 && error.status < 500;
    this.state = refused ? "stopped" : "waiting";
    if (!refused) {
      this.#timer = setTimeout(() => this.#resume(), this.#delay * 1000);
      this.#delay = Math.min(2 * this.#delay, LONGEST_DELAY);
    }
    this.#changed();
  }

  async #resume() {
    const reading = (this.#reading = new AbortController());
    try {
      await this.#follow(reading, this.#epoch ? { start: this.#next, epoch: this.#epoch } : {});
    } catch (error) {
      if (error instanceof ApiProblem && (error.status === 409 || error.status === 416))
        this.live();
      else this.#failed(reading, error);
    }
  }

  // A range

  /** @param {AbortController} reading @param {import("./api.js").Parameters} from */
  async #range(reading, from) {
    try {
      const response = await this.#request(from, reading.signal);
      this.#epoch = response.headers.get("Pubsub-Epoch") ?? "";
      for await (const lines of linesOf(response)) {
        const room = MOST - this.messages.length;
        this.#add(
          /** @type {Message[]} */ (
            lines
              .slice(0, room)
              .map((line) => this.#parse(JSON.parse(line)))
              .filter(Boolean)
          ),
        );
        this.more = lines.length > room;
        this.#changed();
        if (this.more) break;
      }
    } catch (error) {
      if (reading.signal.aborted) return;
      this.error = error;
    }
    reading.abort();
    this.state = "stopped";
    this.#changed();
  }

  // Messages

  /** @param {any} line @returns {Message | null} */
  #parse(line) {
    if (line.gap)
      return this.#gap(
        `Messages ${count(line.gap.start)} to ${count(line.gap.stop - 1)} are not shown: ${line.gap.reason}`,
      );
    if (line.damaged)
      return this.#gap(
        `Messages ${count(line.damaged[0])} to ${count(line.damaged[1] - 1)} are damaged`,
      );
    if (line.revoked) return this.#stop("The topic may not be read any more, or was deleted");
    if (line.end)
      return line.end.reason === "stopped"
        ? null
        : this.#stop(`The broker has ended this: ${line.end.reason}`);
    if (line.timestamp === undefined) return null;
    if (typeof line.offset === "number") this.#next = line.offset + 1;
    return {
      place: this.#place++,
      kind: "message",
      timestamp: line.timestamp,
      offset: line.offset ?? null,
      sender: readable(fromBase64(line.key ?? "")),
      protocol: line.protocol,
      payload: new Payload(line),
      headers: (line.headers ?? []).map(headerOf),
    };
  }

  /** @param {string} note @returns {Message} */
  #gap(note) {
    const payload = new Payload({ value: "" });
    return {
      place: this.#place++,
      kind: "gap",
      timestamp: Date.now() * 1000,
      offset: null,
      sender: "",
      protocol: "",
      payload,
      headers: [],
      note,
    };
  }

  /** @param {string} note @returns {Message} */
  #stop(note) {
    this.state = "stopped";
    this.#ended = true;
    return this.#gap(note);
  }

  /** @param {Message[]} messages */
  #add(messages) {
    if (messages.length) this.messages = [...this.messages, ...messages].slice(-MOST);
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }

  /** What to say about the state. @returns {string} */
  get report() {
    if (this.error)
      return `${messageOf(this.error)}${this.state === "waiting" ? "; trying again" : ""}`;
    return "";
  }
}

/** @param {any} header @returns {{key: string, value: string}} */
function headerOf(header) {
  const { key, value, value_base64: encoded } = header;
  return { key, value: value ?? readable(fromBase64(encoded ?? "")) };
}
