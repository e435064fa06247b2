"use strict";
// Fills the charts with numbers, and keeps them new while the run goes.
(() => {
  const ROWS = 100, SECONDS = 5, COLOURS = 8;
  const byId = (id) => document.getElementById(id);
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  let data = JSON.parse(byId("data").textContent);
  const plots = {}, shown = {};
  const dark = matchMedia("(prefers-color-scheme: dark)");

  function numbers(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new Float32Array(bytes.buffer);
  }

  const decoded = new WeakMap();
  function columns(line) {
    if (!decoded.has(line)) {
      const found = {};
      for (const [name, text] of Object.entries(line.columns)) found[name] = numbers(text);
      if (line.flop) found.flop = Array.from(found.step, (step) => Math.max(step - line.first, 0) * line.flop);
      decoded.set(line, found);
    }
    return decoded.get(line);
  }

  const UNITS = [[1e12, "T"], [1e9, "B"], [1e6, "M"]];
  function short(value, digits = 5) {
    if (!Number.isFinite(value)) return "none";
    const [size, unit] = UNITS.find(([each]) => Math.abs(value) >= each) || [1, ""];
    const number = Number((value / size).toPrecision(digits));
    return unit ? `${number} ${unit}` : Math.abs(number) >= 1e4 ? number.toLocaleString("en") : String(number);
  }
  const count = (value) => Math.round(value).toLocaleString("en");

  const between = ({left, right}, i) =>
    right[i] - left[i] <= 1 ? count(left[i]) : `${count(left[i])} to ${count(right[i] - 1)}`;

  // The least x that is shown, the same for all charts.
  function least(axis, part) {
    if (part >= 1) return -Infinity;
    let most = 0;
    for (const lines of Object.values(data.charts)) {
      for (const line of lines) {
        const x = columns(line)[axis];
        if (x && x.length) most = Math.max(most, x[x.length - 1]);
      }
    }
    return most * (1 - part);
  }

  // The mean of each point and its neighbours on both sides, the nearer the more, divided by the weights that are there.
  // `share` of all points are neighbours on a side. A one-sided mean would lag behind a loss that falls.
  function smoothed(values, share) {
    const reach = Math.max(1, Math.round(values.length * share));
    return Array.from(values, (value, i) => {
      if (!Number.isFinite(value)) return value;
      let sum = 0, total = 0;
      for (let j = Math.max(0, i - reach); j <= Math.min(values.length - 1, i + reach); j++) {
        if (!Number.isFinite(values[j])) continue;
        const weight = 1 - Math.abs(i - j) / (reach + 1);
        sum += weight * values[j];
        total += weight;
      }
      return Math.fround(sum / total);
    });
  }

  // What is far above the rest is drawn at the top, and said with its value: one such point would flatten all others.
  const atMost = (values, top) => top === null ? values : Array.from(values, (value) => Math.min(value, top));

  function filled(line, axis, from, share) {
    const found = columns(line);
    if (found.left) {
      const into = {y: [], said: [], left: [], right: []};
      found.y.forEach((share, i) => {
        into.y.push(share); into.left.push(found.left[i]); into.right.push(found.right[i]);
        into.said.push(`${short(share)} % have ${between(found, i)} tokens`);
      });
      return into;
    }
    const x = found[axis], into = {x: [], y: [], said: []};
    if (!x) return into;
    const raw = line.texts.length ? found.y : atMost(found.y, line.top);
    const y = share && !line.texts.length ? smoothed(raw, share) : raw;
    for (let i = 0; i < x.length; i++) {
      if (!(x[i] >= from)) continue;
      const [kind, ...said] = line.texts.length ? line.texts[i].split("|") : [];
      into.x.push(x[i]);
      into.y.push(kind === undefined ? y[i] : kind);
      into.said.push(kind === undefined ? `${short(found.y[i])} at step ${count(found.step[i])}` : said.join("|"));
    }
    return into;
  }

  function fill() {
    const axis = byId("axis").value, from = least(axis, Number(byId("part").value));
    const share = Number(byId("smooth").value), scale = byId("scale").value;
    for (const [name, plot] of Object.entries(plots)) {
      const lines = data.charts[name] || [];
      lines.forEach((line, i) => {
        plot.document.get_model_by_name(`${name}/${i}`).data = filled(line, axis, from, line.marked ? 0 : share);
        const raw = plot.document.get_model_by_name(`${name}/${i}/raw`);
        if (raw) raw.data = filled(line, axis, share ? from : Infinity, 0);  // under a smoothed line alone
      });
      if (!(lines[0] && lines[0].columns.left)) {
        plot.below[0].axis_label = data.axes[axis];
        rescale(plot, "x", plot.below[0], scale.includes("x"));
        if (plot.tags[0] && name !== "events") rescale(plot, "y", plot.left[0], scale.includes("y"));
      }
    }
  }

  // Both scales of an axis are made once.
  const SCALES = new WeakMap();
  function rescale(plot, name, axis, isLog) {
    if (!SCALES.has(axis)) {
      const make = (kind, given) => new (Bokeh.Models.get(kind))(given);
      SCALES.set(axis, [[plot[`${name}_scale`], axis.ticker], [make("LogScale"), make("LogTicker", {num_minor_ticks: 1})]]);
    }
    const [scale, ticker] = SCALES.get(axis)[Number(isLog)];
    if (plot[`${name}_scale`] === scale) return;
    plot[`${name}_scale`] = scale;
    axis.ticker = ticker;
  }

  function colour() {
    const chosen = byId("scheme").value || (dark.matches ? "dark" : "light");
    document.documentElement.dataset.scheme = chosen;
    const [ink, soft, grid] = ["--ink", "--soft", "--grid"].map(style);
    for (const plot of Object.values(plots)) {
      for (const axis of [...plot.below, ...plot.left]) {
        axis.setv({axis_label_text_color: ink, major_label_text_color: ink, axis_line_color: soft,
          major_tick_line_color: soft, minor_tick_line_color: null});
      }
      for (const each of plot.center) each.setv({grid_line_color: grid});
      for (const each of plot.renderers) {
        const value = {value: style(`--line-${each.glyph.tags[0] % COLOURS}`)};
        const glyph = each.glyph, given = {line_color: value};
        if ("fill_color" in glyph) given.fill_color = value;
        if ("hatch_color" in glyph) given.hatch_color = value;
        glyph.setv(given);
      }
    }
  }

  // The numbers of a chart, for those who would read them.
  function tabulate(figure) {
    const details = figure.querySelector("details");
    if (!details.open) return;
    const lines = data.charts[figure.dataset.chart] || [];
    const table = document.createElement("table"), body = document.createElement("tbody");
    const isBars = lines[0] && lines[0].columns.left;
    const names = isBars ? ["line", "tokens", "% of the rows"] : ["line", ...Object.values(data.axes), "value"];
    const row = (cells, into, kind, scope) => {
      const line = into.insertRow();
      cells.forEach((text, i) => {
        const cell = document.createElement(i === 0 || kind === "th" ? "th" : "td");
        if (cell.tagName === "TH") cell.scope = scope;
        cell.textContent = text;
        line.append(cell);
      });
    };
    row(names, table.createTHead(), "th", "col");
    for (const line of lines) {
      const found = columns(line), length = (found.y || found.step).length, every = Math.max(1, Math.ceil(length / ROWS));
      for (let i = 0; i < length; i++) {
        if (i % every && i !== length - 1) continue;
        const value = line.texts.length ? line.texts[i].replace("|", ": ") : short(found.y[i]);
        row(isBars ? [line.label, between(found, i), value]
          : [line.label, ...Object.keys(data.axes).map((axis) => found[axis] ? short(found[axis][i]) : ""), value],
          body, "td", "row");
      }
    }
    table.append(body);
    details.querySelector(".scroll").replaceChildren(table);
  }

  // A chart as it is shown, with its title and its legend, as a file.
  async function save(figure) {
    const name = figure.dataset.chart, layer = shown[name].export("svg");
    const drawn = new DOMParser().parseFromString(await (await layer.to_blob()).text(), "image/svg+xml").documentElement;
    const whole = drawn.cloneNode(false), [width, height] = ["width", "height"].map((side) => drawn.getAttribute(side));
    const entries = [...figure.querySelectorAll(".legend li")], top = 22 * (entries.length + 1) + 6;
    const add = (kind, given, text = "") => {
      const part = document.createElementNS(drawn.namespaceURI, kind);
      for (const [key, value] of Object.entries(given)) part.setAttribute(key, value);
      part.textContent = text;
      whole.append(part);
    };
    const words = {fill: style("--ink"), "font-family": "sans-serif"};
    whole.removeAttribute("viewBox");
    whole.setAttribute("height", Number(height) + top);
    add("rect", {width, height: Number(height) + top, fill: style("--paper")});
    add("text", {x: 8, y: 20, "font-size": 16, "font-weight": "bold", ...words}, figure.querySelector("h3").textContent);
    entries.forEach((entry, i) => {
      const line = entry.querySelector("line"), y = 38 + 22 * i;
      add("line", {x1: 8, x2: 42, y1: y, y2: y, stroke: getComputedStyle(line).stroke, "stroke-width": 2.5,
        "stroke-dasharray": line.getAttribute("stroke-dasharray")});
      add("text", {x: 50, y: y + 4, "font-size": 13, ...words}, entry.textContent);
    });
    drawn.setAttribute("y", top);
    whole.append(drawn);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(whole)], {type: "image/svg+xml"}));
    link.download = `${name}.svg`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }

  // Texts by step: the slider's place is one of all steps at which some run has written.
  let steps = [];
  function slide(keeps) {
    const slider = byId("sample");
    if (!slider) return;
    const wasLast = Number(slider.value) >= steps.length - 1, before = steps[Number(slider.value)];
    const all = new Set(data.samples.flatMap((panel) => panel.runs.flatMap((run) => run.at.map(([step]) => step))));
    steps = [...all].sort((a, b) => a - b);
    slider.max = Math.max(steps.length - 1, 0);
    if (!keeps || wasLast) slider.value = slider.max;
    else slider.value = Math.max(steps.findIndex((step) => step >= before), 0);
    show();
  }

  function paragraph(kind, text, language) {
    const found = document.createElement("p");
    found.className = kind;
    if (kind === "text") {
      found.dir = "auto";
      if (language) found.lang = language;
    }
    found.textContent = text;
    return found;
  }

  function show() {
    const slider = byId("sample"), step = steps[Number(slider.value)];
    const said = `step ${count(step)}`;
    slider.setAttribute("aria-valuetext", said);
    byId("sample-step").textContent = said;
    byId("panels").replaceChildren(...data.samples.map((panel) => {
      const box = document.createElement("div");
      box.className = "panel";
      const title = document.createElement("h3");
      title.textContent = panel.title;
      box.append(title, paragraph("text", panel.given, panel.lang));
      if (panel.target) box.append(paragraph("of", "target:"), paragraph("text", panel.target, panel.lang));
      for (const run of panel.runs) {
        const at = run.at.filter(([each]) => each <= step).pop();
        const name = data.runs.length > 1 ? `${data.runs[run.run]}, ` : "";
        box.append(paragraph("of", at ? `${name}step ${count(at[0])}:` : `${name}nothing yet`));
        for (const text of at ? at[1] : []) box.append(paragraph("text", text || "(nothing)", panel.lang));
      }
      return box;
    }));
  }

  function say() {
    byId("time").textContent = data.time;
    for (const [name, text] of Object.entries(data.sentences)) {
      const place = byId(`said-${name}`);
      if (place && place.textContent !== text) place.textContent = text;
    }
    for (const [name, text] of Object.entries(data.fragments)) {
      const place = byId(name);
      if (place.dataset.text !== text) {
        place.dataset.text = text;
        place.innerHTML = text;
      }
    }
    document.querySelectorAll(".chart").forEach(tabulate);
  }

  // A page that must be loaded again, since it has got a new chart, opens at the same place.
  const CONTROLS = ["axis", "part", "scale", "smooth", "scheme", "sample"];
  function remember() {
    const open = [...document.querySelectorAll("details")].map((each) => each.open);
    const values = Object.fromEntries(CONTROLS.map((id) => [id, byId(id) && byId(id).value]));
    const isLast = byId("sample") && byId("sample").value === byId("sample").max;
    sessionStorage.setItem("limba", JSON.stringify({values, isLast, scroll: scrollY,
      titles: [...document.querySelectorAll("details[open]")].map((each) => each.firstElementChild.textContent)}));
  }
  function recall() {
    let kept;
    try { kept = JSON.parse(sessionStorage.getItem("limba")); } catch { return; }
    if (!kept || !data.live) return;
    for (const id of CONTROLS) {
      const place = byId(id);
      if (place && kept.values[id] && !(id === "sample" && kept.isLast)) place.value = kept.values[id];
    }
    for (const each of document.querySelectorAll("details")) {
      each.open = kept.titles.includes(each.firstElementChild.textContent);
    }
    sessionStorage.removeItem("limba");
    return () => scrollTo({top: kept.scroll, behavior: "instant"});
  }

  async function refresh() {
    if (document.hidden) return;
    try {
      const answer = await fetch(`/api/report${location.search}`, {cache: "no-store"});
      if (!answer.ok) throw new Error((await answer.json()).error);
      const fresh = await answer.json();
      if (fresh.structure !== data.structure) {
        remember();
        location.reload();
        return;
      }
      data = {...fresh, items: data.items, live: true};
      fill();
      say();
      slide(true);
      byId("live").textContent = "";
    } catch (error) {
      byId("live").textContent = `Not up to date: ${error.message}. It is tried again.`;
    }
  }

  async function begin() {
    for (const id of ["axis", "part", "scale", "smooth"]) byId(id).addEventListener("change", fill);
    byId("scheme").addEventListener("change", colour);
    dark.addEventListener("change", colour);
    byId("whole").addEventListener("click", () => {
      for (const plot of Object.values(plots)) for (const range of [plot.x_range, plot.y_range]) range.reset();
    });
    if (byId("sample")) byId("sample").addEventListener("input", show);
    document.querySelectorAll(".chart").forEach((figure) => {
      figure.querySelector("details").addEventListener("toggle", () => tabulate(figure));
      figure.querySelector(".svg").addEventListener("click", () => save(figure));
    });
    slide(false);
    const back = recall();
    if (byId("sample")) show();
    colour();
    Bokeh.set_log_level("error");  // it warns of charts without numbers, which these are for a moment
    for (const [name, item] of Object.entries(data.items)) {
      const views = await Bokeh.embed.embed_item(item, `chart-${name}`);
      [shown[name]] = views.roots;
      plots[name] = shown[name].model;
      for (const axis of [...plots[name].below, ...plots[name].left]) {
        if (axis.type === "LinearAxis") axis.formatter.doFormat = (ticks) => ticks.map((tick) => short(tick, 7));
      }
    }
    fill();
    colour();
    if (back) back();
    document.documentElement.dataset.drawn = Object.keys(plots).length;
    if (data.live) setInterval(refresh, SECONDS * 1000);
  }

  window.limba = {plots, refresh};
  begin();
})();
