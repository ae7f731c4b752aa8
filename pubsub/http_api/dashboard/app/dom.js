/**
 * Builds elements. Text is always set as text, so that no name, payload or error can become HTML.
 *
 * @typedef {Node | string | number | null | undefined | false} Child
 */

/**
 * Return an element.
 *
 * @param {string} kind tag and classes, such as "div.panel.wide"
 * @param {Object<string, any>} [attributes] `on...` are listeners; false, null and undefined are
 *     left out; true is the empty text
 * @param {...(Child | Child[])} children
 * @returns {any}
 */
export function h(kind, attributes = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) setAttribute(element, name, value);
  append(element, children);
  return element;
}

/** @param {Element} element @param {string} name @param {any} value */
function setAttribute(element, name, value) {
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (value !== false && value !== null && value !== undefined) {
    element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** @param {Element} element @param {(Child | Child[])[]} children */
function append(element, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(String(child)));
  }
}

/**
 * Show the characters that change the direction of the text around them by their numbers: a name
 * with one would look like another name.
 *
 * @param {string} text
 */
function visible(text) {
  return text.replace(/[\u202a-\u202e\u2066-\u2069]/g, (character) => {
    return `\\u${character.charCodeAt(0).toString(16)}`;
  });
}

/** Replace what is in `element`. @param {Element} element @param {...(Child | Child[])} children */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/**
 * Replace what is in `element` unless that is what it has already, so that the focus stays in it.
 *
 * @param {HTMLElement} element
 * @param {string} key stands for the content
 * @param {() => Child} make returns the content
 */
export function fillOnce(element, key, make) {
  if (element.dataset.content === key) return;
  element.dataset.content = key;
  fill(element, make());
}

/** Set the text of `element` if it differs. @param {Element} element @param {string} text */
export function setText(element, text) {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}

/** Return the element with this id, which exists. @param {string} id @returns {HTMLElement} */
export function byId(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/**
 * Return what joins calls of `call` in a frame of the screen to one.
 *
 * @param {() => void} call
 * @returns {() => void}
 */
export function oncePerFrame(call) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      call();
    });
  };
}

/** Say `text` to screen readers. @param {string} text */
export function announce(text) {
  byId("announcer").textContent = text;
}
