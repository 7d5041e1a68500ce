// Before the first paint: the choice of an earlier visit, else the browser's.
(() => {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
})();
