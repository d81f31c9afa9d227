"use strict";
(() => {
  const root = document.documentElement, tip = document.getElementById("tip"), live = document.getElementById("live");
  const data = JSON.parse(document.getElementById("data").textContent);
  root.classList.add("js");
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (name, attributes = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const draw = (name, attributes, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const digits = (value, n = 2) => (value === null ? "–" : value.toFixed(n).replace("-", "−"));
  const signed = (value) => (Math.abs(value) < 0.005 ? digits(0) : (value < 0 ? "" : "+") + digits(value));
  const plusMinus = (mean, std) => (std === null ? digits(mean) : `${digits(mean)} ± ${digits(std)}`);

  // Tabs follow the ARIA pattern: arrow keys move and select. The URL's #name selects the open tab.
  const tabs = all("[role=tab]"), panels = all("[role=tabpanel]");
  const choose = (tab, focus) => {
    for (const other of tabs) {
      other.setAttribute("aria-selected", String(other === tab));
      other.tabIndex = other === tab ? 0 : -1;
    }
    const name = tab.getAttribute("aria-controls");
    for (const panel of panels) panel.classList.toggle("shown", panel.id === name);
    if (focus) {
      tab.focus();
      history.replaceState(null, "", "#" + name);
    }
    const list = tab.parentElement;
    list.scrollLeft = tab.offsetLeft - list.offsetLeft - (list.clientWidth - tab.offsetWidth) / 2;
    hide();
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => choose(tab, true));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(tabs[(to + tabs.length) % tabs.length], true);
    });
  });
  const fromUrl = () => tabs.find((tab) => "#" + tab.getAttribute("aria-controls") === location.hash);
  addEventListener("hashchange", () => fromUrl() && choose(fromUrl(), false));

  // The tooltip, of which there is one.
  let again = null; // shows the tooltip again after scrolling, if the keyboard opened it
  function hide() {
    tip.hidden = true;
    again = null;
  }
  const show = (children, x, y) => {
    tip.replaceChildren(...children);
    tip.hidden = false;
    again = null;
    const box = tip.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth - 6 ? x - 14 - box.width : x + 14;
    const top = y + 14 + box.height > innerHeight - 6 ? y - 14 - box.height : y + 14;
    tip.style.left = Math.min(Math.max(6, left), Math.max(6, innerWidth - 6 - box.width)) + "px";
    tip.style.top = Math.max(6, top) + "px";
  };
  addEventListener("keydown", (event) => event.key === "Escape" && hide());
  addEventListener("scroll", () => (again ? again() : hide()), { capture: true, passive: true });

  // Tables: sorting.
  const sort = (table) => {
    const body = table.tBodies[0], by = table.dataset.by || "ours", head = table.querySelector("th[aria-sort]");
    const order = (row) => Number(row.dataset.order);
    const value = (row) => {
      if (head.dataset.sort === "label") return row.cells[0].textContent;
      const cell = row.cells[Number(head.dataset.sort) + 1];
      return cell.dataset[by] === undefined ? null : Number(cell.dataset[by]);
    };
    const sign = head && head.getAttribute("aria-sort") === "descending" ? -1 : 1;
    const rows = [...body.rows].sort((a, b) => {
      if (!head) return order(a) - order(b);
      const [p, q] = [value(a), value(b)];
      if (p === null || q === null) return (p === null) - (q === null) || order(a) - order(b); // missing values last
      return sign * (typeof p === "string" ? p.localeCompare(q, undefined, { numeric: true }) : p - q) || order(a) - order(b);
    });
    table.classList.toggle("sorted", Boolean(head));
    body.append(...rows);
  };
  for (const table of all("table.numbers")) {
    for (const head of all("th[data-sort]", table)) {
      head.querySelector("button").addEventListener("click", () => {
        const cycle = head.dataset.sort === "label" ? ["ascending", "descending"] : ["descending", "ascending"];
        const next = cycle[cycle.indexOf(head.getAttribute("aria-sort")) + 1];
        for (const other of all("th[aria-sort]", table)) other.removeAttribute("aria-sort");
        if (next) head.setAttribute("aria-sort", next);
        sort(table);
        live.textContent = next ? "sorted, " + next : "in the paper’s order";
      });
    }
    const select = document.querySelector(`select[data-by=${table.id.replace("table-", "")}]`);
    if (select) select.addEventListener("change", () => {
      table.dataset.by = select.value;
      sort(table);
    });
  }

  const says = (cell) => cell.says || `${data.symbols[cell.verdict]} ${data.verdicts[cell.verdict]}`;

  // Tables: each is one stop of the tab key, arrow keys move between numbers, hover and focus show the seeds.
  const seeds = (cell) => {
    const lines = cell.seeds.map((seed) => make("tr", {}, make("td", {}, "seed " + seed[0] + (cell.diverged[seed[0]] ? ", diverged" : "")), make("td", {}, digits(seed[1]))));
    const verdict = make("small", {}, says(cell));
    return [make("b", {}, cell.row), make("small", {}, cell.column), make("table", {}, make("tbody", {}, ...lines)), verdict];
  };
  for (const table of all("table.numbers")) {
    const cells = () => all("td[data-cell]", table);
    cells().forEach((td, i) => { td.tabIndex = i ? -1 : 0; });
    const of = (target) => target.closest && target.closest("td[data-cell]");
    table.addEventListener("pointermove", (event) => {
      const td = event.pointerType === "touch" ? null : of(event.target);
      if (td) show(seeds(data.cells[td.dataset.cell]), event.clientX, event.clientY);
      else hide();
    });
    table.addEventListener("pointerleave", hide);
    table.addEventListener("focusin", (event) => {
      const td = of(event.target);
      if (!td) return;
      for (const other of cells()) other.tabIndex = other === td ? 0 : -1;
      td.setAttribute("aria-describedby", "tip");
      if (!td.matches(":focus-visible")) return;
      const place = () => {
        const box = td.getBoundingClientRect();
        show(seeds(data.cells[td.dataset.cell]), box.right - 14, box.bottom - 14);
        again = place;
      };
      place();
    });
    table.addEventListener("focusout", hide);
    table.addEventListener("click", (event) => of(event.target) && open(of(event.target)));
    table.addEventListener("keydown", (event) => {
      const td = of(event.target), move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!td) return;
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        open(td);
      } else if (move) {
        event.preventDefault();
        let next = td;
        do { // skip cells without a number
          const row = table.tBodies[0].rows[next.parentElement.sectionRowIndex + move[1]];
          next = row && row.cells[next.cellIndex + move[0]];
        } while (next && !next.dataset.cell && next.tagName === "TD");
        if (next && next.dataset.cell) next.focus();
      }
    });
  }

  // The dialog with the details of one number.
  const dialog = document.getElementById("details");
  const strip = (cell) => {
    const [mean, std] = cell.published || [cell.mean, cell.std], values = cell.seeds.filter((seed) => cell.counted.includes(seed[0])).map((seed) => seed[1]);
    const spread = 2 * (std === null ? cell.std || 0 : std), centre = std === null && cell.mean !== null ? cell.mean : mean;
    const ends = [...values, mean, centre - spread, centre + spread];
    const low = Math.min(...ends), high = Math.max(...ends), width = high - low || 1;
    const wide = Math.min(600, innerWidth - 70), x = (value) => 12 + (wide - 24) * (value - low) / width;
    const label = (value, y, text) => draw("text", { x: Math.min(Math.max(x(value), 70), wide - 70), y, class: "mid" }, text);
    return draw("svg", { viewBox: `0 0 ${wide} 64`, class: "chart", role: "img", "aria-label": cell.published ? "The seeds beside the paper’s number" : "The seeds" },
      draw("rect", { x: x(centre - spread), y: 22, width: x(centre + spread) - x(centre - spread), height: 20, rx: 3, fill: "var(--line)" }),
      draw("path", { class: "axis", d: `M12 32H${wide - 12}` }),
      ...(cell.published ? [
        draw("path", { d: `M${x(mean)} 18V46`, stroke: "var(--faint)", "stroke-width": 2 }),
        label(mean, 60, `paper ${plusMinus(mean, std)}`)] : []),
      ...(cell.mean === null ? [] : [
        draw("path", { d: `M${x(cell.mean)} 18V46`, class: "whisker k-ours", "stroke-width": 2 }),
        label(cell.mean, 13, `ours ${plusMinus(cell.mean, cell.std)}`)]),
      ...values.map((value) => draw("circle", { cx: x(value), cy: 32, r: 5, class: "mark k-ours" })));
  };
  const explainStrip = (cell) => {
    const around = cell.published && cell.published[1] !== null ? "the paper’s number" : "our mean";
    return make("p", { class: "note" }, `Dots: our seeds. Band: two standard deviations to each side of ${around}.`);
  };
  // The accuracy on each task (column) after each task (row), the better the darker.
  const heat = (matrix) => {
    const cells = (row) => row.map((value) => (value === null ? make("td") : make("td", { style: `--heat:${value}%` }, digits(value, 0))));
    const numbers = matrix[0].map((_, i) => make("th", { scope: "col" }, String(i + 1)));
    const tested = matrix.map((row, i) => [row, i]).filter(([row]) => row.some((value) => value !== null));
    const rows = tested.map(([row, i]) => make("tr", {}, make("th", { scope: "row" }, `after ${i + 1}`), ...cells(row)));
    return make("table", { class: "heat" }, make("thead", {}, make("tr", {}, make("th", {}, "task"), ...numbers)), make("tbody", {}, ...rows));
  };
  const pairs = (values) => make("dl", {}, ...Object.entries(values).map(([key, value]) => make("div", {}, make("dt", {}, key), make("dd", {}, String(value)))));
  function open(td) {
    const cell = data.cells[td.dataset.cell];
    hide();
    const close = make("button", { type: "button" }, "Close");
    close.addEventListener("click", () => dialog.close());
    const copy = make("button", { type: "button" }, "Copy");
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(cell.command);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(command);
        copy.textContent = "Selected: press Ctrl+C";
      }
    });
    const words = cell.command.split(" ").flatMap((word) => [make("span", {}, word), " "]);
    const command = make("pre", {}, make("code", {}, ...words.slice(0, -1)));
    const difference = cell.difference === null ? "" : signed(cell.difference) + ", ";
    const head = ["seed", "accuracy", "forgetting", "train s", "test s"].map((text) => make("th", { scope: "col" }, text));
    const rows = cell.seeds.map((seed) => make("tr", {}, make("th", { scope: "row" }, seed[0] + (cell.diverged[seed[0]] ? `, diverged after task ${cell.diverged[seed[0]]}` : "")), ...seed.slice(1).map((value) => make("td", {}, digits(value)))));
    const table = make("table", { class: "plain" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
    const made = cell.seeds.length > 0;
    dialog.replaceChildren(
      make("header", {}, make("div", {}, make("h2", { id: "details-title" }, cell.row), make("p", {}, cell.column)), close),
      make("p", { class: "verdict v-" + cell.verdict }, cell.says ? difference + cell.says : `${data.symbols[cell.verdict]} ${difference}${data.verdicts[cell.verdict]}`),
      ...(cell.remark ? [make("p", { class: "note" }, `${cell.remark}: their weights are not finite.`)] : []),
      ...(cell.published || cell.mean !== null ? [strip(cell)] : []),
      ...(cell.mean === null ? [] : [explainStrip(cell)]),
      ...(made ? [make("div", { class: "scroll" }, table)] : []),
      ...(made && !cell.alone ? [make("p", { class: "note" }, "These runs trained together: the seconds of each are its share of the total.")] : []),
      ...(cell.matrix.length > 1 ? [make("h3", {}, "Accuracy on each task (%), after each task"), make("div", { class: "scroll" }, heat(cell.matrix))] : []),
      make("h3", {}, made ? "The command that reproduces it" : "The command that trains it"), command, copy,
      make("h3", {}, `Hyperparameters (${cell.chosen})`), pairs(cell.hyperparameters),
      ...(made ? [make("h3", {}, "Environment"), ...cell.environments.map(pairs), pairs({ finished: cell.finished })] : []));
    dialog.showModal();
    dialog.scrollTop = 0;
  }
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());

  // Charts: the legend hides, shows and highlights series.
  for (const figure of all("figure.charts")) {
    const marks = (label) => all(".panel [data-series]", figure).filter((mark) => mark.dataset.series === label);
    for (const button of all(".legend button", figure)) {
      const single = (on) => {
        for (const mark of all(".panel [data-series]", figure)) mark.classList.toggle("dim", on && mark.dataset.series !== button.dataset.series);
      };
      button.addEventListener("click", () => {
        const off = button.getAttribute("aria-pressed") === "true";
        button.setAttribute("aria-pressed", String(!off));
        for (const mark of marks(button.dataset.series)) mark.classList.toggle("off", off);
        single(!off);
      });
      for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => single(button.getAttribute("aria-pressed") === "true"));
      for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => single(false));
    }
  }

  // Charts: the pointer and the arrow keys show the values at the nearest category.
  for (const svg of all("svg[data-hover]")) {
    const { axis, frame, stops } = JSON.parse(svg.dataset.hover), figure = svg.closest("figure");
    const [left, top, right, bottom] = frame, band = axis === "x" ? 0 : stops.length > 1 ? stops[1].at - stops[0].at : 20;
    let at = -1;
    const clear = () => {
      all(".guide", svg).forEach((guide) => guide.remove());
      at = -1;
      hide();
    };
    const go = (i, x, y) => {
      const stop = stops[i];
      if (i !== at) {
        all(".guide", svg).forEach((guide) => guide.remove());
        svg.prepend(axis === "x"
          ? draw("line", { class: "guide", x1: stop.at, x2: stop.at, y1: top, y2: bottom })
          : draw("rect", { class: "guide", x: 0, y: stop.at - band / 2, width: right + 40, height: band }));
        at = i;
      }
      const hidden = new Set(all(".legend [aria-pressed=false]", figure).map((button) => button.dataset.series));
      const lines = stop.lines.filter((line) => !hidden.has(line[0]));
      const rows = lines.map(([label, colour, text]) => {
        const swatch = make("span", { class: `swatch ${colour}` + (label.endsWith("paper") ? " paper" : "") });
        return make("tr", {}, make("td", {}, swatch, label), make("td", {}, text));
      });
      const few = lines.filter((line) => line[3].length).length <= 3;
      const each = few ? lines.filter((line) => line[3].length).map((line) => make("small", {}, `${lines.length > 1 ? line[0] + ", " : ""}seeds: ${line[3].map((v) => digits(v)).join("  ")}`, make("br"))) : [];
      show([make("b", {}, stop.title), lines.length ? make("table", {}, make("tbody", {}, ...rows)) : "missing", ...each], x, y);
      return `${stop.title}: ${lines.map((line) => `${line[0]} ${line[2]}`).join(", ") || "missing"}`;
    };
    const place = (i) => { // the position of a category on the screen
      const matrix = svg.getScreenCTM(), middle = axis === "x" ? [stops[i].at, (top + bottom) / 2] : [(left + right) / 2, stops[i].at];
      const point = new DOMPoint(...middle).matrixTransform(matrix);
      return [point.x, point.y];
    };
    const nearest = (event) => {
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const distances = stops.map((stop) => Math.abs(stop.at - point[axis]));
      go(distances.indexOf(Math.min(...distances)), event.clientX, event.clientY);
    };
    svg.addEventListener("pointermove", nearest);
    svg.addEventListener("pointerdown", nearest);
    svg.addEventListener("pointerleave", clear);
    const ask = (i) => {
      const text = go(i, ...place(i));
      again = () => ask(i);
      return text;
    };
    svg.addEventListener("focus", () => {
      if (svg.matches(":focus-visible")) live.textContent = ask(axis === "x" ? stops.length - 1 : 0);
    });
    svg.addEventListener("blur", clear);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = Math.min(Math.max(at + step, 0), stops.length - 1);
      live.textContent = ask(next);
    });
  }

  // On a phone the long lists of commands are folded; printing unfolds them.
  const lists = all("#provenance details"), narrow = matchMedia("(max-width: 40rem)").matches;
  for (const list of lists) list.open = !narrow;
  addEventListener("beforeprint", () => { for (const list of lists) list.open = true; });

  choose(fromUrl() || tabs[0], false);
})();
