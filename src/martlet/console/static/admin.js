// What the page does beyond links and forms: theme, keys, plots. Nothing here is needed to use it.
(() => {
  "use strict";
  const isDark = () =>
    (document.documentElement.dataset.theme ||
      (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

  document.getElementById("theme").addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
    document.querySelectorAll("[data-plot]").forEach(draw);
  });

  // Keys: / goes to the filter, g and a letter to a page, ? lists them.
  const keys = document.getElementById("keys");
  const links = [...document.querySelectorAll("[data-keys]")];
  for (const link of links) {
    const key = document.createElement("dt");
    key.textContent = link.dataset.keys;
    const page = document.createElement("dd");
    page.textContent = link.textContent;
    keys.querySelector("dl").append(key, page);
  }
  let before = "";
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (keys.open || event.target.closest("input, textarea, select")) return;
    const filter = document.querySelector("[data-filter]");
    if (event.key === "/" && filter) {
      event.preventDefault();
      filter.focus();
    } else if (event.key === "?") {
      keys.showModal();
    } else if (before === "g") {
      const link = links.find((each) => each.dataset.keys === `g ${event.key}`);
      if (link) link.click();
    }
    before = event.key;
  });

  // Filters: a pause in typing shows what they leave, as the button does; the caret stays.
  let typing = 0;
  document.addEventListener("input", (event) => {
    if (!event.target.matches("[data-filter]")) return;
    clearTimeout(typing);
    typing = setTimeout(() => {
      sessionStorage.setItem("typing", "yes");
      event.target.form.requestSubmit();
    }, 400);
  });
  if (sessionStorage.getItem("typing")) {
    sessionStorage.removeItem("typing");
    const filter = document.querySelector("[data-filter]");
    filter?.focus();
    filter?.setSelectionRange(filter.value.length, filter.value.length);
  }

  // Follow: the newest messages every two seconds, for ten minutes, in no tab that is hidden.
  const FOLLOW_MS = 2000, MAX_POLLS = 300;
  const box = document.getElementById("follow");
  let timer = 0, polls = 0;
  async function poll() {
    if (!document.hidden) {
      const answer = await fetch(location.href);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const found = page.querySelector("[data-follow]");
      if (found) document.querySelector("[data-follow]").replaceChildren(...found.childNodes);
      polls += 1;
    }
    if (polls >= MAX_POLLS) box.checked = false;
    if (box.checked) timer = setTimeout(poll, FOLLOW_MS);
  }
  box?.addEventListener("change", () => {
    clearTimeout(timer);
    polls = 0;
    if (box.checked) timer = setTimeout(poll, 0);
  });
  box?.closest("label").removeAttribute("hidden");

  // Copy: what is shown of a body. Browsers let only pages of this machine, or over HTTPS.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const shown = button.closest("section").querySelector("pre.body");
    navigator.clipboard.writeText(shown.textContent).then(() => { button.textContent = "Copied"; });
  });
  if (navigator.clipboard) {
    document.querySelectorAll("[data-copy]").forEach((button) => { button.hidden = false; });
  }

  // Plots: the last hour, drawn again every ten seconds.
  const plots = new WeakMap();
  async function draw(element) {
    const answer = await fetch(element.dataset.plot);
    if (!answer.ok) return;
    const data = await answer.json();
    const text = isDark() ? "#c8d0da" : "#39424e";
    const grid = { stroke: isDark() ? "#2b333d" : "#e3e7ec", width: 1 };
    const axis = { stroke: text, grid, ticks: grid };
    const time = (at) => new Date(at * 1000).toISOString().slice(11, 19);
    const rate = (self, values) => values.map((each) => each.toLocaleString("en"));
    // A line needs two points: one between gaps is drawn as a dot.
    const alone = (self, number) => {
      const values = self.data[number];
      const isGap = (at) => values[at] === null || values[at] === undefined;
      return values.map((each, at) => at).filter(
        (at) => !isGap(at) && isGap(at - 1) && isGap(at + 1));
    };
    const series = (label, stroke, scale) => ({
      label, stroke, scale, width: 1.5, points: { show: true, size: 5, fill: stroke, filter: alone },
    });
    const fromZero = (self, low, high) => [0, high > 0 ? high * 1.05 : 1];
    const [times] = data;
    const last = times.at(-1) ?? Date.now() / 1000;
    const shown = (self, low, high) => (times.length > 1 ? [low, high] : [last - 60, last]);
    const whole = Array.from({ length: 48 }, (each, n) => [1, 2, 5][n % 3] * 10 ** Math.floor(n / 3));
    plots.get(element)?.destroy();
    plots.set(element, new uPlot({
      width: element.clientWidth || 600,
      height: 220,
      scales: { x: { time: true, range: shown }, y: { range: fromZero }, depth: { range: fromZero } },
      axes: [
        { ...axis, values: (self, times) => times.map(time) },
        { ...axis, values: rate, label: "messages/s", size: 70 },
        { ...axis, values: rate, label: "waiting", side: 1, scale: "depth", size: 70, incrs: whole, grid: { show: false } },
      ],
      series: [
        { label: "UTC", value: (self, at) => (at ? time(at) : "--") },
        series("in", "#2f7dd1", "y"),
        series("out", "#2f9e6e", "y"),
        series("waiting", "#c77d16", "depth"),
      ],
    }, data, element));
  }
  const drawAll = () => {
    if (!document.hidden) document.querySelectorAll("[data-plot]").forEach(draw);
  };
  drawAll();
  setInterval(drawAll, 10000);
  addEventListener("resize", drawAll);
})();
