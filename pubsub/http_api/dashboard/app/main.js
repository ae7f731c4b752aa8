/** The shell of the dashboard: its head, navigation and pages, and the connection to the broker. */

import { access, token } from "./api.js";
import { ask, field } from "./dialogs.js";
import { announce, byId, fill, h, setText } from "./dom.js";
import { icon } from "./icons.js";
import { Feed } from "./feed.js";
import { listPage } from "./list_page.js";
import { LISTS } from "./lists.js";
import { overview } from "./overview.js";
import { go, link, place, route } from "./router.js";
import { sessionPage } from "./session_page.js";
import { storePage } from "./store_page.js";
import { note } from "./table_view.js";
import { createTopic } from "./topic_actions.js";
import { themeButton } from "./theme.js";
import { askForToken } from "./token_dialog.js";
import { topicPage } from "./topic_page.js";

/** @typedef {import("./router.js").View} View */

/** @type {[string, [string, string, Parameters<typeof icon>[0]][]][]} groups of pages: path, title, icon */
const NAVIGATION = [
  ["", [["", "Overview", "overview"]]],
  [
    "Traffic",
    [
      ["topics", "Topics", "topics"],
      ["sessions", "Sessions", "sessions"],
      ["slow", "Slow subscribers", "slow"],
    ],
  ],
  [
    "History",
    [
      ["readers", "Readers", "readers"],
      ["store", "Store", "store"],
    ],
  ],
  [
    "Network",
    [
      ["listeners", "Listeners", "listeners"],
      ["peers", "Peers", "peers"],
    ],
  ],
  [
    "Security",
    [
      ["refusals", "Refusals", "refusals"],
      ["audit", "Audit", "audit"],
    ],
  ],
];

const feed = new Feed();
/** @type {View | null} */
let view = null;

/** Return the view of a page. @param {string} page @param {string} name @returns {View} */
function viewOf(page, name) {
  if (page === "" && name === "") return overview(feed);
  if (page === "topics" && name !== "") return topicPage(name);
  if (page === "sessions" && name !== "") return sessionPage(name);
  if (page === "store" && name === "") return storePage();
  if (page === "topics") return withButtons(listPage(LISTS.topics));
  if (name === "" && Object.hasOwn(LISTS, page)) return listPage(LISTS[page]);
  const missing = note("There is no such page", "The navigation lists those there are.");
  return {
    title: "Not found",
    element: h("div.page", {}, h("h1", {}, "Not found"), h("section.panel", {}, missing)),
  };
}

/** Add buttons that open a topic by its name, and create one. @param {View} list @returns {View} */
function withButtons(list) {
  const open = h("button.button", { type: "button", onclick: openTopic }, "Open a topic…");
  const create = h("button.button.primary", { type: "button", onclick: newTopic }, "New topic…");
  const head = list.element.querySelector(".page-head");
  head?.classList.add("row");
  head?.append(h("span.spring"), open, create);
  return list;
}

async function newTopic() {
  const topic = await createTopic();
  if (topic !== null) go(link("topics", topic));
}

async function openTopic() {
  const input = h("input", {
    id: "topic",
    name: "topic",
    type: "text",
    required: true,
    autocomplete: "off",
    spellcheck: "false",
  });
  const entered = await ask({
    title: "Open a topic",
    body: [field("Name", input, "A topic that does not exist is created when you publish on it.")],
    submit: "Open",
  });
  if (entered) go(link("topics", String(entered.get("topic"))));
}

/** @param {string} page @param {string} name @param {boolean} first */
function show(page, name, first) {
  view?.close?.();
  view = viewOf(page, name);
  document.title = `${view.title} · pubsub`;
  const main = byId("main");
  fill(main, view.element);
  for (const anchor of byId("side").querySelectorAll("a")) {
    if (anchor.dataset.page === page) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  closeMenu();
  scrollTo(0, 0);
  if (!first) main.focus({ preventScroll: true });
}

// The navigation

const menuButton = h(
  "button.icon-button.menu-button",
  {
    type: "button",
    "aria-label": "Pages",
    "aria-expanded": "false",
    "aria-controls": "side",
    onclick: toggleMenu,
  },
  icon("menu"),
);

function toggleMenu() {
  const open = document.body.classList.toggle("menu-open");
  menuButton.setAttribute("aria-expanded", String(open));
}

function closeMenu() {
  document.body.classList.remove("menu-open");
  menuButton.setAttribute("aria-expanded", "false");
}

function makeNavigation() {
  const groups = NAVIGATION.map(([group, pages]) => {
    const links = pages.map(([page, title, name]) =>
      h(
        "li",
        {},
        h("a", { href: link(page), "data-page": page }, icon(name), h("span", {}, title)),
      ),
    );
    return h("div.side-group", {}, group && h("h2", {}, group), h("ul", {}, links));
  });
  fill(byId("side"), h("div.side-inner", {}, groups));
}

// The head and the connection

const version = h("span.version");
const brokerName = h("span.broker-name");
const pill = h("span.pill", { role: "status" }, h("span.dot"), h("span"));
const tokenButton = h(
  "button.icon-button",
  { type: "button", "aria-label": "Token", title: "Token", onclick: () => enterToken(null) },
  icon("key"),
);

function makeHead() {
  const mark = h("img.mark", { src: "dashboard/favicon.svg", alt: "", width: "26", height: "26" });
  fill(
    byId("top"),
    menuButton,
    h("a.brand", { href: link("") }, mark, h("span", {}, "pubsub")),
    brokerName,
    version,
    h("span.spring"),
    pill,
    tokenButton,
    themeButton(),
  );
}

const PHASES = {
  connecting: "Connecting",
  live: "Live",
  waiting: "Disconnected",
  token: "Token needed",
};
let countdown = 0;

function showPhase() {
  const { phase } = feed;
  pill.className = `pill ${phase}`;
  setText(/** @type {Element} */ (pill.lastElementChild), PHASES[phase]);
  document.body.classList.toggle("stale", phase !== "live" && feed.status !== null);
  document.body.classList.toggle("broker-away", phase === "waiting");
  clearInterval(countdown);
  const notices = byId("notices");
  if (phase === "waiting") showWaiting(notices);
  else if (phase === "token") fill(notices, tokenNotice());
  else fill(notices);
}

/** @param {HTMLElement} notices */
function showWaiting(notices) {
  const seconds = h("span");
  const tick = () =>
    setText(
      seconds,
      ` The next attempt is in ${Math.max(0, Math.ceil((feed.retryAt - Date.now()) / 1000))} s.`,
    );
  tick();
  countdown = setInterval(tick, 250);
  const retry = h(
    "button.button.small",
    { type: "button", onclick: () => feed.start() },
    "Try now",
  );
  fill(
    notices,
    h(
      "div.notice.critical",
      {},
      icon("warning"),
      h("p", { role: "alert" }, `${feed.error}.`),
      seconds,
      retry,
    ),
  );
}

/** @returns {HTMLElement} */
function tokenNotice() {
  const enter = h(
    "button.button.small",
    { type: "button", onclick: () => enterToken(feed.error) },
    "Enter a token",
  );
  return h(
    "div.notice.warning",
    {},
    icon("key"),
    h("p", {}, "The broker asks for a token that may see its status."),
    enter,
  );
}

/** @param {any} error */
async function enterToken(error) {
  if (!(await askForToken(error))) return;
  feed.start();
  show(...place(), true);
}

function showVersion() {
  const { status } = feed;
  setText(brokerName, status.name);
  brokerName.title = status.name;
  setText(version, `${status.version}${status.kernel ? ` · ${status.kernel} kernel` : ""}`);
}

/** The token for which the page has asked for another one. @type {string | null} */
let askedFor = null;
access.addEventListener("refused", (event) => {
  const { detail } = /** @type {CustomEvent} */ (event);
  // With a token, a page that may not be seen says so itself.
  if (askedFor === token.get() || (token.get() !== "" && detail.status !== 401)) return;
  askedFor = token.get();
  void enterToken(detail);
});
access.addEventListener("ask", () => enterToken(feed.error));
feed.addEventListener("phase", () => {
  showPhase();
  if (feed.phase === "live") announce("Connected to the broker");
});
feed.addEventListener("status", showVersion);
addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeMenu();
  const typing =
    event.target instanceof HTMLElement && event.target.closest("input, textarea, select, dialog");
  const search = document.querySelector("main input[type=search]");
  if (event.key === "/" && !typing && search instanceof HTMLElement) {
    event.preventDefault();
    search.focus();
  }
});
makeHead();
makeNavigation();
showPhase();
route(show);
feed.start();
