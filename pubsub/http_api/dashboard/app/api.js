/** Requests to the broker's HTTP API. */

/** @typedef {Record<string, string | number | boolean | null | undefined>} Parameters */

const TOKEN = "pubsub.token";
const AWAY = new Set(["unreachable", "broken", "ended", "timeout"]);
const REQUEST_SECONDS = 25;
/** Characters of a line that is not complete; a message may have 1 MiB by default, here far more. */
const MOST_LINE = 256 * 1024 * 1024;

/** A request that the broker refused (RFC 9457), or that did not reach it (status 0). */
export class ApiProblem extends Error {
  /** @param {number} status @param {string} code @param {string} message */
  constructor(status, code, message) {
    super(message);
    this.name = "ApiProblem";
    this.status = status;
    this.code = code;
  }

  /** Whether a token, or another one, may help. */
  get needsToken() {
    return this.status === 401 || this.status === 403;
  }

  /** Whether the broker did not answer, or not to the end. */
  get isAway() {
    return this.status === 0 && AWAY.has(this.code);
  }
}

/**
 * Events: `refused` for each request that a token may help, with the ApiProblem as its `detail`;
 * `ask` when the user wants to enter one.
 */
export const access = new EventTarget();

/** The token of this tab. */
export const token = {
  /** @returns {string} the empty text if there is none */
  get() {
    try {
      return sessionStorage.getItem(TOKEN) ?? "";
    } catch {
      return kept;
    }
  },
  /** @param {string} value */
  set(value) {
    kept = value;
    try {
      if (value) sessionStorage.setItem(TOKEN, value);
      else sessionStorage.removeItem(TOKEN);
    } catch {
      // Without storage the token lasts as long as the page.
    }
  },
};
let kept = "";

/**
 * Return the URL of an endpoint. It is relative to the page, which a proxy may serve elsewhere.
 *
 * @param {string} path without "v1/" in front
 * @param {Parameters} [parameters] null and undefined are left out
 * @returns {string}
 */
function urlOf(path, parameters = {}) {
  const url = new URL(`v1/${path}`, document.baseURI.split("#")[0]);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "")
      url.searchParams.set(name, String(value));
  }
  return url.href;
}

/** @param {Record<string, string>} more @returns {Record<string, string>} */
function headersWith(more) {
  const value = token.get();
  return value ? { ...more, Authorization: `Bearer ${value}` } : more;
}

/**
 * Send a request and return the response; throw ApiProblem unless it is 2xx.
 *
 * @param {string} path
 * @param {{method?: string, parameters?: Parameters, body?: BodyInit, headers?: Record<string, string>,
 *     signal?: AbortSignal}} [options]
 * @returns {Promise<Response>}
 */
export async function send(path, options = {}) {
  const { method = "GET", parameters, body, headers = {}, signal } = options;
  let response;
  try {
    response = await fetch(urlOf(path, parameters), {
      method,
      body,
      signal,
      headers: headersWith(headers),
      cache: "no-store",
      credentials: "omit",
      referrerPolicy: "no-referrer",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiProblem(0, "unreachable", "the broker cannot be reached");
  }
  if (!response.ok) {
    const problem = await problemOf(response);
    if (problem.needsToken) access.dispatchEvent(new CustomEvent("refused", { detail: problem }));
    throw problem;
  }
  return response;
}

/** @param {Response} response @returns {Promise<ApiProblem>} */
async function problemOf(response) {
  const text = await response.text().catch(() => "");
  try {
    const { error, detail } = JSON.parse(text);
    return new ApiProblem(response.status, String(error), String(detail));
  } catch {
    return new ApiProblem(
      response.status,
      "http",
      `the broker answered with status ${response.status}`,
    );
  }
}

/**
 * Send a request and return the JSON of its response, or null if it has none.
 *
 * @param {string} path
 * @param {Parameters} [parameters]
 * @param {{method?: string, body?: any, signal?: AbortSignal}} [options] `body` is sent as JSON
 * @returns {Promise<any>}
 */
export async function call(path, parameters, options = {}) {
  const { body, signal } = options;
  const limit = AbortSignal.timeout(REQUEST_SECONDS * 1000);
  try {
    const response = await send(path, {
      ...options,
      parameters,
      body: body === undefined ? undefined : JSON.stringify(body),
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    });
    const text = await response.text();
    return text ? JSON.parse(text) : null;
  } catch (error) {
    if (limit.aborted && !signal?.aborted) {
      throw new ApiProblem(0, "timeout", `the broker did not answer within ${REQUEST_SECONDS} s`);
    }
    throw error;
  }
}

/**
 * Yield the lines of a response that does not end, in the pieces in which they arrive.
 *
 * @param {Response} response
 * @param {() => void} [alive] called for each piece, also for a sign of life without a line
 * @returns {AsyncGenerator<string[]>}
 */
export async function* linesOf(response, alive = () => {}) {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(() => {
      throw new ApiProblem(0, "broken", "the connection to the broker is broken");
    });
    if (done) return;
    alive();
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    if (rest.length > MOST_LINE)
      throw new ApiProblem(0, "too-large", "a line is too long to be shown");
    const found = lines.filter((line) => line.trim() !== "");
    if (found.length) yield found;
  }
}

/**
 * Return a name as one segment of a path; throw ApiProblem for the two that URLs cannot have.
 *
 * @param {string} name
 * @returns {string}
 */
export function segment(name) {
  if (name === "." || name === "..") {
    throw new ApiProblem(
      0,
      "name",
      `browsers cannot address a topic named ${name}; use the command pubsub`,
    );
  }
  return encodeURIComponent(name);
}

/** Return what to show for an error of any kind. @param {any} error @returns {string} */
export function messageOf(error) {
  const text = error instanceof Error ? error.message : String(error);
  return text.charAt(0).toUpperCase() + text.slice(1);
}
