// The theme before anything is painted: auto, or what was chosen here before.
"use strict";
(() => {
  const themes = ["auto", "light", "dark"];
  let theme = "auto";
  try { theme = localStorage.getItem("wmrt-theme") ?? "auto"; } catch { /* no storage: auto */ }
  if (!themes.includes(theme)) theme = "auto";
  document.documentElement.dataset.theme = theme;
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const say = () => { button.textContent = `Theme: ${document.documentElement.dataset.theme}`; };
    say();
    button.addEventListener("click", () => {
      const root = document.documentElement;
      root.dataset.theme = themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length];
      try { localStorage.setItem("wmrt-theme", root.dataset.theme); } catch { /* until reload */ }
      say();
      dispatchEvent(new Event("themechange"));
    });
  });
})();
