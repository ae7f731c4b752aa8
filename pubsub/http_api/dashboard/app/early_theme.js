// Sets the chosen theme before the first paint; a classic script, as modules run too late for that.
(() => {
  "use strict";
  try {
    const theme = localStorage.getItem("pubsub.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Without storage the page follows the system.
  }
})();
