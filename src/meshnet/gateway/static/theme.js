// Runs before the page is drawn, so that it doesn't flash in the other theme.
(() => {
  const kept = localStorage.getItem("meshnet-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
