"use strict";
(() => {
  const size = (n) => n >= 1e9 ? (n / 1e9).toFixed(2) + "\u00a0GB" : n >= 1e6 ? (n / 1e6).toFixed(1) + "\u00a0MB"
    : n >= 1e3 ? (n / 1e3).toFixed(1) + "\u00a0kB" : n + "\u00a0B";
  const part = (kind, bytes) => {
    const span = document.createElement("span"), dot = document.createElement("i");
    dot.style.setProperty("--hue", "var(--" + kind.replace(" ", "-") + ")");
    span.append(dot, kind + " " + size(bytes));
    return span;
  };
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const plot = figure.querySelector(".plot"), cursor = figure.querySelector(".cursor");
    const readout = figure.querySelector(".readout"), count = data.steps.length;
    const totals = data.steps.map((_, i) => Object.values(data.kinds).reduce((sum, line) => sum + line[i], 0));
    let at = totals.indexOf(Math.max(...totals));
    const show = (column) => {
      at = Math.max(0, Math.min(count - 1, column));
      cursor.style.left = 50 * ((at ? data.ends[at - 1] : 0) + data.ends[at]) + "%";
      cursor.hidden = false;
      const head = document.createElement("div"), name = document.createElement("b");
      name.textContent = data.steps[at];
      head.append(name, (data.times[at] && " at " + data.times[at]) + ": " + size(totals[at]));
      const kinds = Object.entries(data.kinds).filter(([, line]) => line[at] > 0);
      readout.replaceChildren(head, ...kinds.map(([kind, line]) => part(kind, line[at])));
    };
    const point = (event) => {
      const box = plot.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width, column = data.ends.findIndex((end) => end >= share);
      show(column < 0 ? count - 1 : column);
    };
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerdown", point);
    plot.addEventListener("keydown", (event) => {
      const far = event.shiftKey ? 10 : 1;
      const move = { ArrowLeft: -far, ArrowRight: far, Home: -count, End: count }[event.key];
      if (move === undefined) return;
      event.preventDefault();
      show(at + move);
    });
    show(at);
    cursor.hidden = true;
  }
  for (const figure of document.querySelectorAll("figure[data-arena]")) {
    const data = JSON.parse(figure.querySelector("script").textContent), plot = figure.querySelector(".plot");
    const readout = figure.querySelector(".readout"), count = data.steps.length;
    const point = (event) => {
      const box = plot.getBoundingClientRect();
      const at = Math.min(count - 0.001, Math.max(0, count * (event.clientX - box.left) / box.width));
      const address = data.top * (1 - (event.clientY - box.top) / box.height);
      const found = data.blocks.find(([, , bytes, offset, start, end]) =>
        start <= at && at < end && offset <= address && address < offset + bytes);
      const head = document.createElement("div"), name = document.createElement("b");
      name.textContent = found ? found[0] : "free";
      head.append(name, " while " + data.steps[Math.floor(at)]);
      const text = found ? [part(found[1], found[2]), "at " + size(found[3]) + ", steps " + Math.floor(found[4]) + " to " + Math.ceil(found[5])] : [];
      readout.replaceChildren(head, ...text);
    };
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerdown", point);
  }
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((item) => { item.open = true; }));
})();
