/**
 * The broker's totals as rates: what happened between two statuses, for each second.
 *
 * @typedef {Object} Sample
 * @property {number} at seconds since the epoch
 * @property {Record<string, ProtocolRates>} protocols
 * @property {ProtocolRates} all
 * @property {number | null} commits for each second
 * @property {number | null} stored messages committed for each second
 * @property {Record<string, any>} stats the levels as the broker sent them
 *
 * @typedef {Object} ProtocolRates
 * @property {number | null} messagesIn
 * @property {number | null} messagesOut
 * @property {number | null} bytesIn
 * @property {number | null} bytesOut
 */

const MEMBERS = /** @type {const} */ ([
  ["messagesIn", "messages_in"],
  ["messagesOut", "messages_out"],
  ["bytesIn", "bytes_in"],
  ["bytesOut", "bytes_out"],
]);
/** The protocols that come first, in this order; others follow by name. */
const KNOWN = ["cafe", "nsd", "rheos", "spot", "fast", "http"];

/**
 * Return the rate of a total, or null where it is not known: at first, and after a restart.
 *
 * @param {any} now
 * @param {any} before
 * @param {number} seconds
 * @returns {number | null}
 */
export function rateOf(now, before, seconds) {
  if (typeof now !== "number" || typeof before !== "number" || seconds <= 0 || now < before)
    return null;
  return (now - before) / seconds;
}

/**
 * Return the rates of one or all protocols.
 *
 * @param {Record<string, any>} now
 * @param {Record<string, any> | undefined} before
 * @param {number} seconds
 * @returns {ProtocolRates}
 */
function ratesOf(now, before, seconds) {
  const found = /** @type {ProtocolRates} */ ({});
  for (const [name, member] of MEMBERS)
    found[name] = rateOf(now[member], before?.[member], seconds);
  return found;
}

/** Return the names of the protocols in the order in which they are shown. @param {any} stats @returns {string[]} */
export function protocolNames(stats) {
  const place = (/** @type {string} */ name) =>
    KNOWN.includes(name) ? KNOWN.indexOf(name) : KNOWN.length;
  return Object.keys(stats?.protocols ?? {}).sort(
    (a, b) => place(a) - place(b) || a.localeCompare(b),
  );
}

/**
 * Return the sum of a member over all protocols.
 *
 * @param {any} stats
 * @param {string} member
 * @returns {number}
 */
export function total(stats, member) {
  const rows = Object.values(stats?.protocols ?? {});
  return rows.reduce((sum, row) => sum + (row[member] ?? 0), 0);
}

/**
 * Return what happened between two statuses of the same broker.
 *
 * @param {any} status
 * @param {any} before the status before, or null
 * @returns {Sample}
 */
export function sampleOf(status, before) {
  const stats = status.stats ?? {};
  const same = before !== null && before.started === status.started;
  const old = same ? before.stats : null;
  const seconds = old ? (stats.timestamp - old.timestamp) / 1e6 : 0;
  const protocols = Object.fromEntries(
    protocolNames(stats).map((name) => [
      name,
      ratesOf(stats.protocols[name], old?.protocols?.[name], seconds),
    ]),
  );
  return {
    at: (stats.timestamp ?? Date.now() * 1000) / 1e6,
    protocols,
    all: ratesOf(totals(stats), old && totals(old), seconds),
    commits: rateOf(stats.store?.commits, old?.store?.commits, seconds),
    stored: rateOf(stats.store?.committed, old?.store?.committed, seconds),
    stats,
  };
}

/** @param {any} stats @returns {Record<string, number>} */
function totals(stats) {
  return Object.fromEntries(MEMBERS.map(([, member]) => [member, total(stats, member)]));
}
