// Tables that are wider than the page can be scrolled by the keyboard too; the theme does that for code only.
function reachWideTables() {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (box.scrollWidth > box.clientWidth) box.setAttribute("tabindex", "0");
    else box.removeAttribute("tabindex");
  }
}
addEventListener("load", () => setTimeout(reachWideTables, 100));
addEventListener("resize", reachWideTables);
