/** The icons: outlines on a grid of 24 units. */

const PATHS = {
  overview: "M3 3h7v7H3zM14 3h7v4h-7zM14 11h7v10h-7zM3 14h7v7H3z",
  topics: "M4 7h16M4 12h16M4 17h10",
  sessions: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM4.5 20.5a7.5 7.5 0 0 1 15 0",
  slow: "M12 7v5l3 2M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z",
  readers:
    "M4 5.5A2.5 2.5 0 0 1 6.5 3H20v15H6.5A2.5 2.5 0 0 0 4 20.5zM4 20.5A2.5 2.5 0 0 0 6.5 21H20v-3",
  store:
    "M12 8c4.4 0 8-1.1 8-2.5S16.4 3 12 3 4 4.1 4 5.5 7.6 8 12 8zM4 5.5v13C4 19.9 7.6 21 12 21s8-1.1 8-2.5v-13M4 12c0 1.4 3.6 2.5 8 2.5s8-1.1 8-2.5",
  listeners: "M5 12.5a10 10 0 0 1 14 0M8 15.7a5.8 5.8 0 0 1 8 0M12 19.2h.01M2.5 9a14 14 0 0 1 19 0",
  peers:
    "M6 9a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM18 21a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM6 9v6a3 3 0 0 0 3 3h6M18 15V9a3 3 0 0 0-3-3h-2",
  refusals: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM5.7 5.7l12.6 12.6",
  audit:
    "M9 5h6M9 3h6v4H9zM15 5h3a1 1 0 0 1 1 1v14a1 1 0 0 1-1 1H6a1 1 0 0 1-1-1V6a1 1 0 0 1 1-1h3M8.5 14l2.5 2.5 4.5-5",
  check: "M5 12.5l4.5 4.5L19 7.5",
  warning:
    "M12 9v4.5M12 17h.01M10.3 3.9 2.5 17.5A2 2 0 0 0 4.2 20.5h15.6a2 2 0 0 0 1.7-3L13.7 3.9a2 2 0 0 0-3.4 0z",
  critical: "M12 8v5M12 16.5h.01M8 3h8l5 5v8l-5 5H8l-5-5V8z",
  sun: "M12 16.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM12 2v2M12 20v2M2 12h2M20 12h2M4.9 4.9l1.4 1.4M17.7 17.7l1.4 1.4M4.9 19.1l1.4-1.4M17.7 6.3l1.4-1.4",
  moon: "M20 14.5A8.5 8.5 0 1 1 9.5 4a6.8 6.8 0 0 0 10.5 10.5z",
  system: "M4 4.5h16v11H4zM9 20h6M12 15.5V20",
  menu: "M4 7h16M4 12h16M4 17h16",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4",
  refresh:
    "M20 11a8 8 0 0 0-14.5-3.5L3.5 10M3.5 4.5V10H9M4 13a8 8 0 0 0 14.5 3.5l2-2.5M20.5 19.5V14H15",
  key: "M14.5 13a4.5 4.5 0 1 0-4.3-3.2L3.5 16.5v4h4v-2.5H10v-2.5l1.7-1.7a4.5 4.5 0 0 0 2.8.7zM16 8.5h.01",
  pause: "M8 5v14M16 5v14",
  play: "M7 4.5v15l12-7.5z",
  close: "M6 6l12 12M18 6 6 18",
  back: "M15 5l-7 7 7 7",
  send: "M4 12 20 4l-5 16-3.5-6.5zM11.5 13.5 20 4",
};

/**
 * Return an icon, which screen readers leave out.
 *
 * @param {keyof typeof PATHS} name
 * @returns {SVGElement}
 */
export function icon(name) {
  const namespace = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(namespace, "svg");
  const path = document.createElementNS(namespace, "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}
