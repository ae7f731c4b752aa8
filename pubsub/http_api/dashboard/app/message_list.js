/** The messages of a topic as a table that follows or looks back, beside the chosen message. */

import { messageOf } from "./api.js";
import { fill, fillOnce, h, oncePerFrame, setText } from "./dom.js";
import { icon } from "./icons.js";
import { clock, count, NONE } from "./format.js";
import { messageDetail } from "./message_detail.js";
import { Table } from "./table.js";
import { note, readingProblem } from "./table_view.js";
import { Tail } from "./tail.js";

/** @typedef {import("./tail.js").Message} Message */

const BACK = /** @type {[string, string][]} */ ([
  ["300", "5 minutes ago"],
  ["3600", "an hour ago"],
  ["86400", "a day ago"],
  ["first", "the first message"],
  ["time", "a time…"],
]);

/** @type {import("./table.js").Column[]} */
const COLUMNS = [
  {
    id: "time",
    label: "Time",
    kind: "code",
    fixed: "126px",
    value: (row) => row.place,
    cell: (row) => clock(row.timestamp),
  },
  {
    id: "offset",
    label: "Offset",
    kind: "number",
    rank: 2,
    fixed: "98px",
    value: (row) => row.offset ?? row.place,
    cell: (row) => count(row.offset),
  },
  {
    id: "sender",
    label: "Sender",
    rank: 2,
    fixed: "128px",
    value: (row) => row.sender,
    cell: (row) => row.sender || NONE,
  },
  {
    id: "protocol",
    label: "Protocol",
    rank: 3,
    fixed: "92px",
    value: (row) => row.protocol,
  },
  {
    id: "payload",
    label: "Payload",
    kind: "code",
    value: (row) => row.payload.preview,
    cell: previewOf,
  },
];

/** @param {any} row @returns {string | Node} */
function previewOf(row) {
  return row.kind === "gap" ? h("em.muted", {}, row.note) : row.payload.preview;
}

/** Return the part of the page. @param {string} topic */
export function messagesPart(topic) {
  const tail = new Tail(topic);
  const detail = messageDetail();
  /** @type {Message | null} */
  let current = null;
  const table = new Table({
    label: "Messages",
    columns: COLUMNS,
    keyOf: (row) => String(row.place),
    open: (row) => select(/** @type {Message} */ (row)),
    isCurrent: (row) => row === current,
    sort: "time",
    onsort: update,
  });
  const state = h("div.state");
  const bar = tailBar(tail, table);

  /** @param {Message} message */
  function select(message) {
    if (message.kind === "gap") return;
    current = message;
    detail.show(message);
    // On a narrow page it is below the list.
    detail.element.scrollIntoView({ block: "nearest" });
  }

  function update() {
    table.show(tail.messages);
    bar.update();
    table.element.hidden = tail.messages.length === 0;
    state.hidden = tail.messages.length > 0 && !tail.error;
    const { error } = tail;
    fillOnce(state, error ? messageOf(error) : tail.state, () =>
      error ? readingProblem(error) : emptyNote(tail),
    );
  }

  tail.addEventListener("change", oncePerFrame(update));
  tail.live();
  const list = h(
    "section.panel.table-panel",
    { "aria-label": "Messages" },
    bar.element,
    state,
    table.element,
  );
  const element = h("div.messages", {}, list, detail.element);
  return { show: () => element, close: () => tail.close() };
}

/** @param {Tail} tail @returns {HTMLElement} */
function emptyNote(tail) {
  if (tail.state === "connecting" || tail.state === "back") return h("p.muted", {}, "Loading…");
  if (tail.state === "live")
    return note(
      "Waiting for messages",
      "Messages are shown here as they are published. Earlier ones are found by looking back.",
    );
  return note("No messages in this range", "Choose an earlier time, or follow what comes.");
}

/** @param {Tail} tail @param {Table} table */
function tailBar(tail, table) {
  const [live, back] = [
    h("button", { type: "button", onclick: goLive }, "Live"),
    h("button", { type: "button", onclick: goBack }, "Look back"),
  ];
  const from = h(
    "select",
    { "aria-label": "Look back to", onchange: goBack },
    BACK.map(([value, label]) => h("option", { value }, label)),
  );
  const time = h("input", {
    type: "datetime-local",
    step: "1",
    "aria-label": "Time to look back to",
    onchange: goBack,
  });
  const pause = h("button.button.small", {
    type: "button",
    onclick: () => tail.pause(!tail.paused),
  });
  const later = h(
    "button.button.small",
    { type: "button", onclick: () => tail.later() },
    "Later messages",
  );
  const said = h("p.figures", { role: "status" });
  let isLive = true;

  function goLive() {
    isLive = true;
    table.sortBy("time", true);
    tail.live();
  }

  function goBack() {
    isLive = false;
    table.sortBy("time", false);
    if (from.value === "time" && !time.value) time.value = localTime(Date.now() - 600_000);
    const since =
      from.value === "time"
        ? new Date(time.value).getTime()
        : Date.now() - Number(from.value) * 1000;
    tail.back(from.value === "first" ? null : since * 1000);
  }

  function update() {
    live.setAttribute("aria-pressed", String(isLive));
    back.setAttribute("aria-pressed", String(!isLive));
    from.hidden = isLive;
    time.hidden = isLive || from.value !== "time";
    pause.hidden = !isLive;
    later.hidden = isLive || !tail.more;
    fill(pause, icon(tail.paused ? "play" : "pause"), tail.paused ? "Resume" : "Pause");
    setText(said, figures());
  }

  function figures() {
    if (tail.paused) return tail.held ? `${count(tail.held)} new` : "Paused";
    if (tail.state === "waiting") return "Reconnecting…";
    if (isLive) return tail.messages.length >= 1000 ? "The last 1,000" : "";
    return tail.more
      ? "The first 1,000"
      : tail.messages.length
        ? `${count(tail.messages.length)} to the end`
        : "";
  }

  table.sortBy("time", true);
  update();
  const mode = h("div.segments", { role: "group", "aria-label": "Messages to show" }, live, back);
  return { element: h("div.toolbar", {}, mode, from, time, pause, later, said), update };
}

/** @param {number} millis @returns {string} */
function localTime(millis) {
  return new Date(millis - new Date(millis).getTimezoneOffset() * 60_000)
    .toISOString()
    .slice(0, 19);
}
