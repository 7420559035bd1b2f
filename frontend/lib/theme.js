// Applies the chosen theme before the first paint. A classic script on purpose: modules run later.
(() => {
  const root = document.documentElement;
  const chosen = localStorage.getItem("tangram.theme");
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  if (new URLSearchParams(location.search).has("plain")) root.dataset.plain = "";
})();
