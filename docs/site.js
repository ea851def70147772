// What is wider than the page (tables, code) can be scrolled by the keyboard too. The theme does that for code only
// once a pointer has been over it.
const WIDE = ".md-typeset__scrollwrap, .md-typeset pre > code";
// On a phone a name moves to the next line as a whole, instead of being broken at its hyphens; longer ones have to break.
const NAME_LENGTH_MAX = 30;
function keepNamesWhole() {
  for (const code of document.querySelectorAll(".md-typeset :is(p, li, td) > code")) {
    if (code.textContent.length <= NAME_LENGTH_MAX) code.style.whiteSpace = "nowrap";
  }
}
function reachWideBoxes() {
  for (const box of document.querySelectorAll(WIDE)) {
    if (box.scrollWidth > box.clientWidth) box.setAttribute("tabindex", "0");
    else box.removeAttribute("tabindex");
  }
}
// The buttons of each code block are a landmark, and landmarks have names of their own.
function nameButtons() {
  document.querySelectorAll(".md-code__nav").forEach((nav, index) => nav.setAttribute("aria-label", `Code block ${index + 1}`));
}
// The page of the error 404 lacks the name that the theme gives to the search on all others.
function nameSearch() {
  for (const dialog of document.querySelectorAll(".md-search:not([aria-label])")) dialog.setAttribute("aria-label", "Search");
}
function mendPage() {
  keepNamesWhole();
  reachWideBoxes();
  nameButtons();
  nameSearch();
}
// At once, and again when the theme has wrapped the tables.
addEventListener("load", () => { mendPage(); setTimeout(mendPage, 100); });
addEventListener("resize", reachWideBoxes);
