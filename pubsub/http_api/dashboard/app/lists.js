/** The lists of the API: their columns, and what to say when they are empty. */

import { badge, number, shown, STATES, text, time } from "./columns.js";
import { bytes, count, dateTime, NONE } from "./format.js";
import { link } from "./router.js";

/** @typedef {import("./table.js").Column} Column */
/** @typedef {import("./table.js").Row} Row */

/**
 * @typedef {Object} List
 * @property {string} title
 * @property {string} text what the list has
 * @property {string} noun
 * @property {string} path of the API
 * @property {string} [member]
 * @property {Column[]} columns
 * @property {(row: Row) => string} keyOf
 * @property {(row: Row) => string | null} [hrefOf]
 * @property {string} sort
 * @property {import("./table_view.js").Choice} [choice]
 * @property {{title: string, text: string}} empty
 */

/** @type {Column[]} */
const SESSION_COLUMNS = [
  {
    id: "client",
    label: "Client",
    width: 2.4,
    value: (row) => row.client || row.identity || row.mark,
    cell: (row) => row.client || row.identity || row.mark,
  },
  text("protocol", "Protocol", { width: 1.15 }),
  badge("state", "State", STATES, { rank: 2, width: 1.1 }),
  text("identity", "Identity", { rank: 3 }),
  text("address", "Address", { kind: "code", rank: 3, width: 1.85 }),
  number("subscriptions", "Subscriptions", count, { rank: 3, width: 1.5 }),
  number("messages_in", "In", count, { rank: 2 }),
  number("messages_out", "Out"),
  number("queued_bytes", "Queued", bytes, { rank: 2, width: 1.1 }),
  time("connected", "Connected", { rank: 3, width: 1.25 }),
];

/** Return the link of the session of a row. @param {Row} row @returns {string} */
export const sessionLink = (row) => link("sessions", String(row.mark));

/** @type {Record<string, List>} */
export const LISTS = {
  topics: {
    title: "Topics",
    text: "Open a topic to follow it, look back, or publish. Messages and bytes are counted since the start.",
    noun: "topic",
    path: "topics",
    member: "topics",
    keyOf: (row) => row.name,
    hrefOf: (row) => link("topics", row.name),
    sort: "messages",
    columns: [
      text("name", "Name", { width: 3 }),
      badge("durability", "Durability", { sync: "good" }, { rank: 3, width: 1.1 }),
      number("subscribers", "Subscribers", count, { rank: 2, width: 1.3 }),
      number("messages", "Messages", count, { width: 1.3 }),
      number("bytes", "Bytes", bytes, { rank: 2 }),
      time("last_timestamp", "Last message", { width: 1.4 }),
      {
        id: "flags",
        label: "Access",
        rank: 3,
        value: closedBy,
        cell: (row) => closedBy(row) || "open",
      },
    ],
    empty: {
      title: "There are no topics yet",
      text: "A topic is created when a client publishes on it or subscribes to it.",
    },
  },
  sessions: {
    title: "Sessions",
    text: "Clients that are connected. Open one to see its subscriptions, or to disconnect it.",
    noun: "session",
    path: "sessions",
    keyOf: (row) => String(row.mark),
    hrefOf: sessionLink,
    sort: "client",
    choice: { id: "protocol", label: "Protocol" },
    columns: SESSION_COLUMNS,
    empty: {
      title: "No client is connected",
      text: "Sessions are listed here while their clients are connected, over every protocol.",
    },
  },
  slow: {
    title: "Slow subscribers",
    text: "Subscribers whose connection does not take what is sent, and those that catch up from the history.",
    noun: "subscriber",
    path: "slow",
    keyOf: (row) => String(row.mark),
    hrefOf: sessionLink,
    sort: "behind",
    columns: [
      SESSION_COLUMNS[0],
      text("protocol", "Protocol", { rank: 2 }),
      badge("state", "State", STATES, { width: 1.2 }),
      number("behind", "Behind"),
      number("queued_bytes", "Queued", bytes, { rank: 2 }),
      text("address", "Address", { kind: "code", rank: 3, width: 1.6 }),
    ],
    empty: {
      title: "Every subscriber keeps up",
      text: "Subscribers are listed while their connection is paused, or while they read what they missed.",
    },
  },
  readers: {
    title: "Readers",
    text: "Consumers of the history that report their position, and how far they are behind its end.",
    noun: "reader",
    path: "readers",
    keyOf: (row) => `${row.owner ?? ""}\n${row.name}`,
    sort: "lag",
    columns: [
      text("name", "Name", { width: 2 }),
      text("owner", "Owner", { rank: 2 }),
      number("offset", "Position", count, { rank: 2 }),
      number("lag", "Behind"),
      time("updated", "Reported", { rank: 1, width: 1.2 }),
    ],
    empty: {
      title: "No reader has reported a position",
      text: "Spark streams and clients of the HTTP API report theirs with PUT /v1/readers/NAME.",
    },
  },
  refusals: {
    title: "Refusals",
    text: "Requests answered with an error, and connections that were not admitted, by reason.",
    noun: "reason",
    path: "refusals",
    keyOf: (row) => `${row.protocol} ${row.reason}`,
    sort: "count",
    choice: { id: "protocol", label: "Protocol" },
    columns: [
      text("reason", "Reason", { width: 2 }),
      text("protocol", "Protocol"),
      number("count", "Count"),
      time("last_timestamp", "Last", { width: 1.2 }),
      text("last_client", "Last client", { rank: 3, width: 2 }),
    ],
    empty: {
      title: "Nothing was refused",
      text: "Refused requests and connections are counted here since the start of the broker.",
    },
  },
  listeners: {
    title: "Listeners",
    text: "Where clients connect, and what each endpoint requires of them.",
    noun: "listener",
    path: "listeners",
    keyOf: (row) => `${row.protocol} ${row.endpoint} ${row.address}`,
    sort: "protocol",
    columns: [
      text("protocol", "Protocol", { width: 1.3 }),
      text("address", "Address", { kind: "code", width: 1.95 }),
      text("endpoint", "Endpoint", { kind: "code", rank: 3, width: 2 }),
      badge(
        "tls",
        "TLS",
        { yes: "good" },
        { rank: 2, value: (row) => yesNo(row.tls), cell: (row) => yesNo(row.tls) },
      ),
      {
        id: "anonymous",
        label: "Anonymous",
        rank: 2,
        value: (row) => anonymous(row),
        cell: anonymous,
      },
      number("connections", "Connections", count, { width: 1.6 }),
      number("max_connections", "At most", limit, { rank: 2 }),
    ],
    empty: {
      title: "There are no listeners",
      text: "Listeners are set with --listen, --proto and the table [[listen]].",
    },
  },
  peers: {
    title: "Peers",
    text: "Other brokers with which this one shares topics over spot.",
    noun: "peer",
    path: "peers",
    keyOf: (row) => row.name,
    sort: "name",
    columns: [
      text("name", "Peer", { kind: "code", width: 2 }),
      badge("state", "State", { connected: "good", connecting: "warning", lost: "critical" }),
      number("topics", "Topics"),
    ],
    empty: {
      title: "This broker has no peers",
      text: "Brokers are joined with --peer; each then serves the topics of the others.",
    },
  },
  audit: {
    title: "Audit",
    text: "Changes and refused attempts, the newest first.",
    noun: "event",
    path: "audit",
    keyOf: (row) => String(row.number),
    sort: "timestamp",
    columns: [
      number("timestamp", "Time", dateTime, { kind: "code", width: 1.5 }),
      { id: "event", label: "Event", width: 1.4, value: (row) => row.event },
      {
        id: "who",
        label: "By",
        rank: 2,
        width: 1.4,
        value: (row) => row.subject || row.client || "",
      },
      { id: "what", label: "Details", width: 3, rank: 2, value: details },
    ],
    empty: {
      title: "Nothing has been recorded",
      text: "Created, deleted and re-keyed topics, disconnected sessions and refused tokens are recorded here.",
    },
  },
};

const AUDIT_OWN = new Set(["timestamp", "event", "client", "subject", "number"]);

/** @param {Row} row @returns {string} the members that have no column */
function details(row) {
  return Object.entries(row)
    .filter(([name, value]) => !AUDIT_OWN.has(name) && value !== null && value !== "")
    .map(([name, value]) => `${name.replaceAll("_", " ")}: ${shown(value)}`)
    .join(", ");
}

/** @param {Row} row @returns {string} */
function closedBy(row) {
  return [row.keyed && "queue key", row.exclusive && "exclusive"].filter(Boolean).join(", ");
}

/** @param {any} value @returns {string} */
function yesNo(value) {
  return value ? "yes" : "no";
}

/** @param {Row} row @returns {string} */
function anonymous(row) {
  return typeof row.anonymous === "boolean"
    ? row.anonymous
      ? "admitted"
      : "refused"
    : shown(row.anonymous);
}

/** @param {any} value @returns {string} */
function limit(value) {
  return value ? count(value) : "no limit";
}
