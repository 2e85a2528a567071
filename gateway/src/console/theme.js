// Before the first paint, so that nothing flashes: the theme that was chosen, if one was; else the system's is used.
(() => {
  const chosen = localStorage.getItem("serin.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
