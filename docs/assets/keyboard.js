// What scrolls can be reached by keyboard, and what the theme adds to code has a name for readers of the screen.
const SCROLLS = ".md-typeset__scrollwrap, .md-typeset pre > code, .md-sidebar__scrollwrap";
function improve() {
  for (const box of document.querySelectorAll(SCROLLS)) box.tabIndex = 0;
  document.querySelectorAll(".md-code__nav").forEach((buttons, i) => (buttons.ariaLabel = `Code ${i + 1}`));
}
improve();
new MutationObserver(improve).observe(document.body, { childList: true, subtree: true });
