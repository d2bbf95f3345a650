// A formula wider than its column scrolls in a box of its own; let the keyboard reach the box while it does.
function markScrollable() {
  for (const box of document.querySelectorAll(".katex-display")) {
    if (box.scrollWidth > box.clientWidth + 1) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
document.fonts.ready.then(markScrollable);
window.addEventListener("resize", markScrollable);

// Paper is white, whatever the theme.
let theme;
window.addEventListener("beforeprint", () => {
  theme = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
});
window.addEventListener("afterprint", () => { document.documentElement.dataset.theme = theme; });
