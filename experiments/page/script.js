"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const ROWS = DATA.rows;
const AXES = {
  latency_ms_median: ["latency, ms", "low"], speedup_vs_fp32: ["speed-up over float32", "high"],
  size_bytes: ["parameters, bytes", "low"], macs: ["multiply-accumulates", "low"],
  metric: ["metric", "high"], metric_drop: ["metric lost", "low"],
  sqnr_db: ["SQNR, dB", "high"], cosine: ["cosine", "high"], top1_agreement: ["agreement with float32", "high"],
};
const COLUMNS = [
  ["model", "model"], ["scheme", "scheme"], ["metric", "metric"], ["metric_drop", "lost"], ["sqnr_db", "SQNR dB"],
  ["top1_agreement", "agreement"], ["size_bytes", "bytes"], ["latency_ms_median", "ms"],
  ["speedup_vs_fp32", "vs float32"], ["threads", "threads"], ["status", "status"],
];
const TEXT = new Set(["model", "scheme", "status"]);
const unique = (name) => [...new Set(ROWS.map((row) => row[name]))];
const MODELS = unique("model"), SCHEMES = unique("scheme");
const state = { models: new Set(MODELS), schemes: new Set(SCHEMES), x: "", y: "", chosen: null, sort: ["", 1] };
const byId = (id) => document.getElementById(id);

// Elements and numbers.
function element(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "text", "circle", "rect"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}
const known = (value) => value !== null && value !== undefined && value !== "";
const number = (value) => (value === "inf" ? Infinity : value === "-inf" ? -Infinity : Number(value));
function shown(value) {
  if (!known(value)) return "";
  if (typeof value === "string" && !/^-?inf$/.test(value)) return value;
  const n = number(value);
  if (!Number.isFinite(n)) return n > 0 ? "∞" : "−∞";
  if (Number.isInteger(n)) return n.toLocaleString("en-US");
  return n.toPrecision(Math.abs(n) >= 1000 ? 5 : 4).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}
const colour = (scheme) => `hsl(${(SCHEMES.indexOf(scheme) * 137.5 + 212) % 360} 62% var(--mark))`;
const visible = () => ROWS.filter((row) => state.models.has(row.model) && state.schemes.has(row.scheme));
const selected = () => (state.chosen ? visible().filter((row) => row === state.chosen) : visible());

// Marks: a circle for float32, a square for integers, a diamond for formats.
function shape(row, x, y, size) {
  if (row.dtype === "float32") return `M${x - size} ${y}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0`;
  if (/^int/.test(row.dtype)) return `M${x - size} ${y - size}h${2 * size}v${2 * size}h${-2 * size}z`;
  const d = size * 1.35;
  return `M${x} ${y - d}l${d} ${d}l${-d} ${d}l${-d} ${-d}z`;
}

// Scales.
function scale(values, from, to, wantLog) {
  const finite = values.filter(Number.isFinite);
  let low = Math.min(...finite), high = Math.max(...finite);
  const log = wantLog && low > 0 && high / low > 6;
  if (log) { low = Math.log10(low); high = Math.log10(high); }
  const pad = (high - low) * 0.07 || Math.abs(high) * 0.1 || 1;
  low -= pad; high += pad;
  const place = (value) => {
    if (value === Infinity) return to;
    if (value === -Infinity) return from;
    return from + (((log ? Math.log10(value) : value) - low) / (high - low)) * (to - from);
  };
  return { place, ticks: log ? logTicks(low, high) : ticks(low, high) };
}
function ticks(low, high) {
  const raw = (high - low) / 4, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= raw);
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high; t += step) found.push(Number(t.toPrecision(12)));
  return found;
}
function logTicks(low, high) {
  const found = [];
  for (let e = Math.floor(low); e <= high; e++)
    for (const k of high - low > 2.2 ? [1] : [1, 2, 5])
      if (Math.log10(k) + e >= low && Math.log10(k) + e <= high) found.push(k * 10 ** e);
  return found;
}
const short = (value) => {
  const size = Math.abs(value);
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (size >= unit) return `${Number((value / unit).toPrecision(3))}${name}`;
  return String(Number(value.toPrecision(3)));
};

// Hover and focus.
function tipFor(node, text) {
  const tip = byId("tip");
  const show = () => {
    tip.textContent = text;
    tip.hidden = false;
    const at = node.getBoundingClientRect(), own = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(6, Math.min(innerWidth - own.width - 6, at.left + at.width / 2 - own.width / 2))}px`;
    tip.style.top = `${at.top - own.height - 8 > 4 ? at.top - own.height - 8 : at.bottom + 8}px`;
  };
  const hide = () => { tip.hidden = true; };
  for (const event of ["mouseenter", "focus"]) node.addEventListener(event, show);
  for (const event of ["mouseleave", "blur"]) node.addEventListener(event, hide);
  return node;
}
const describe = (row) =>
  [`${row.model}, ${row.scheme}`, ...COLUMNS.slice(2, -1).filter(([key]) => known(row[key])).map(([key, name]) => `${name}: ${shown(row[key])}`)].join("\n");

function choose(row) {
  const byMark = document.activeElement?.classList.contains("mark");
  const label = document.activeElement?.getAttribute("aria-label");
  state.chosen = state.chosen === row ? null : row;
  render();
  // Drawing made new elements: the keyboard stays where it was.
  if (byMark) document.querySelector(`.mark[aria-label="${CSS.escape(label)}"]`)?.focus();
}

// One panel a network, with the front of cells that no other beats.
function front(rows) {
  const better = (a, b, axis) => (AXES[axis][1] === "low" ? number(a[axis]) <= number(b[axis]) : number(a[axis]) >= number(b[axis]));
  const same = (a, b) => number(a[state.x]) === number(b[state.x]) && number(a[state.y]) === number(b[state.y]);
  return rows.filter((row) => !rows.some((other) => other !== row && better(other, row, state.x) && better(other, row, state.y) && !same(other, row)));
}
function drawPareto() {
  const panels = MODELS.filter((model) => state.models.has(model)).map((model) => {
    const rows = visible().filter((row) => row.model === model && known(row[state.x]) && known(row[state.y]));
    const figure = element("figure", {}, element("figcaption", {}, model));
    if (!rows.length) {
      figure.append(element("p", { class: "empty" }, "No visible cell has both figures."));
      return figure;
    }
    const xs = scale(rows.map((row) => number(row[state.x])), 46, 350, true);
    const ys = scale(rows.map((row) => number(row[state.y])), 206, 10, false);
    const svg = element("svg", { viewBox: "0 0 360 244", role: "group", "aria-label": `${AXES[state.y][0]} over ${AXES[state.x][0]} for ${model}` });
    for (const t of xs.ticks) svg.append(element("line", { class: "grid", x1: xs.place(t), x2: xs.place(t), y1: 8, y2: 210 }), element("text", { x: xs.place(t), y: 224, "text-anchor": "middle" }, short(t)));
    for (const t of ys.ticks) svg.append(element("line", { class: "grid", x1: 42, x2: 352, y1: ys.place(t), y2: ys.place(t) }), element("text", { x: 38, y: ys.place(t) + 4, "text-anchor": "end" }, short(t)));
    svg.append(element("text", { x: 352, y: 240, "text-anchor": "end" }, AXES[state.x][0]), element("text", { x: 46, y: 4 }, AXES[state.y][0]));
    const best = front(rows).sort((a, b) => number(a[state.x]) - number(b[state.x]));
    svg.append(element("path", { class: "front", d: best.map((row, k) => `${k ? "L" : "M"}${xs.place(number(row[state.x]))} ${ys.place(number(row[state.y]))}`).join("") }));
    for (const row of rows) {
      const mark = element("path", {
        class: `mark${row === state.chosen ? " chosen" : ""}`, d: shape(row, xs.place(number(row[state.x])), ys.place(number(row[state.y])), 5.2),
        style: `fill:${colour(row.scheme)}`, tabindex: 0, role: "button", "aria-label": describe(row).replaceAll("\n", ", "),
        "aria-pressed": String(row === state.chosen), onclick: () => choose(row),
        onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(row); } },
      });
      svg.append(tipFor(mark, describe(row)));
    }
    figure.append(svg);
    return figure;
  });
  byId("pareto").replaceChildren(...panels);
}

function drawTable() {
  const [by, direction] = state.sort;
  const rows = [...selected()];
  const key = (row) => (known(row[by]) ? (TEXT.has(by) ? row[by] : number(row[by])) : TEXT.has(by) ? "" : -Infinity);
  if (by) rows.sort((a, b) => (key(a) < key(b) ? -direction : key(a) > key(b) ? direction : 0));
  const head = element("tr", {}, ...COLUMNS.map(([column, name]) => {
    const order = by === column ? (direction > 0 ? "ascending" : "descending") : "none";
    const arrow = { ascending: " ↑", descending: " ↓", none: "" }[order];
    const sort = () => { state.sort = [column, by === column ? -direction : TEXT.has(column) ? 1 : -1]; drawTable(); };
    return element("th", { class: TEXT.has(column) ? "text" : null, scope: "col", "aria-sort": order }, element("button", { type: "button", onclick: sort }, name + arrow));
  }));
  const lines = rows.map((row) => element("tr", { class: row === state.chosen ? "chosen" : null, onclick: () => choose(row) },
    ...COLUMNS.map(([column]) => element("td", { class: `${TEXT.has(column) ? "text" : ""}${column === "status" && row.status !== "ok" ? " failed" : ""}` },
      column === "status" && row.status !== "ok" ? `${row.status}: ${row.error}` : shown(row[column])))));
  byId("table").replaceChildren(element("thead", {}, head), element("tbody", {}, ...lines));
}

function drawReproduce() {
  const row = state.chosen;
  const box = byId("reproduce");
  if (!row) { box.replaceChildren(element("p", { class: "empty" }, "Choose a cell above, by its mark or its line in the table, to see the command that runs it again.")); return; }
  const copy = element("button", { type: "button", onclick: () => { navigator.clipboard?.writeText(row.command); copy.textContent = "Copied"; } }, "Copy");
  box.replaceChildren(element("div", { class: "command" }, element("code", {}, row.command), copy));
}

function drawLayers() {
  const wanted = selected().map((row) => row.config_hash);
  const cells = DATA.layers.filter((cell) => wanted.includes(cell.config_hash));
  if (!cells.length) {
    byId("layers").replaceChildren(element("p", { class: "empty" }, DATA.layers.length ? "The visible cells recorded no layers." : DATA.layers_hint));
    return;
  }
  byId("layers").replaceChildren(...cells.slice(0, 8).map((cell) => {
    const row = ROWS.find((one) => one.config_hash === cell.config_hash);
    const height = 20 * cell.values.length + 8;
    const finite = cell.values.map((v) => number(v.sqnr_db)).filter(Number.isFinite);
    const most = Math.max(1, ...finite);
    const svg = element("svg", { viewBox: `0 0 520 ${height}`, role: "img", "aria-label": `SQNR of every layer of ${row.model} in ${row.scheme}` });
    cell.values.forEach((value, k) => {
      const sqnr = number(value.sqnr_db);
      const width = known(value.sqnr_db) ? Math.max(1, Math.min(1, Math.max(0, sqnr) / most) * 270) : 1;
      const label = value.value.length > 26 ? `${value.value.slice(0, 25)}…` : value.value;
      const events = Object.entries(value.events ?? {}).filter(([, count]) => count).map(([name, count]) => `\n${name}: ${shown(count)}`).join("");
      const bar = element("rect", { x: 176, y: 20 * k + 4, width, height: 13, rx: 2, style: `fill:${colour(row.scheme)}` });
      svg.append(element("text", { x: 168, y: 20 * k + 15, "text-anchor": "end" }, label),
        tipFor(bar, `${value.value} (${value.operator})\nSQNR ${shown(value.sqnr_db)} dB, cosine ${shown(value.cosine)}${events}`),
        element("text", { x: 182 + width, y: 20 * k + 15 }, `${shown(value.sqnr_db)} dB`));
    });
    return element("figure", {}, element("figcaption", {}, `${row.model}, ${row.scheme}`), svg);
  }));
}

function drawRanges() {
  const models = MODELS.filter((model) => state.models.has(model) && DATA.ranges[model]);
  if (!models.length) { byId("ranges").replaceChildren(element("p", { class: "empty" }, "No visible network is at hand to take its values from.")); return; }
  const formats = [...new Set(selected().map((row) => row.dtype))].filter((name) => DATA.profiles[name]);
  byId("ranges").replaceChildren(...models.map((model) => {
    const { first, weights, activations } = DATA.ranges[model];
    const count = weights.length, last = first + count;
    const xs = (e) => 34 + ((e - first) / (last - first)) * 470;
    const most = Math.max(...weights, ...activations);
    const bits = Math.max(4, ...formats.map((name) => Math.max(...DATA.profiles[name].bits)));
    const ys = (b) => 196 - (b / bits) * 180;
    const svg = element("svg", { viewBox: "0 0 520 238", role: "img", "aria-label": `Value ranges of ${model} and precision of ${formats.join(", ")}` });
    for (const [counts, fill] of [[activations, "var(--fill)"], [weights, "var(--fill2)"]]) {
      const outline = counts.map((n, k) => `L${xs(first + k)} ${196 - (n / most) * 180}H${xs(first + k + 1)}`).join("");
      svg.append(element("path", { d: `M${xs(first)} 196${outline}V196z`, style: `fill:${fill};fill-opacity:.72` }));
    }
    for (const b of ticks(0, bits)) svg.append(element("text", { x: 28, y: ys(b) + 4, "text-anchor": "end" }, String(b)));
    for (let e = Math.ceil(first / 8) * 8; e <= last; e += 8) svg.append(element("text", { x: xs(e), y: 212, "text-anchor": "middle" }, `2^${e}`));
    svg.append(element("line", { class: "grid", x1: 34, x2: 504, y1: 196, y2: 196 }), element("text", { x: 504, y: 232, "text-anchor": "end" }, "size of a value"), element("text", { x: 34, y: 8 }, "significant bits"));
    for (const name of formats) {
      const profile = DATA.profiles[name];
      const points = profile.bits.map((b, k) => [profile.first + k, b]).filter(([e]) => e >= first && e < last);
      if (!points.length) continue;
      const path = element("path", { d: points.map(([e, b], k) => `${k ? "L" : "M"}${xs(e)} ${ys(b)}H${xs(e + 1)}`).join(""), style: `fill:none;stroke:${colour(ROWS.find((row) => row.dtype === name).scheme)};stroke-width:2.2` });
      svg.append(tipFor(path, name));
    }
    const legend = element("p", { class: "hint" }, "Blue-grey: activations. Tan: weights. Lines: ", formats.length ? formats.join(", ") : "none of the visible cells is in a described format");
    return element("figure", {}, element("figcaption", {}, model), svg, legend);
  }));
}

function chips(id, names, shownSet, paint) {
  byId(id).replaceChildren(...names.map((name) => {
    const toggle = () => { if (shownSet.has(name)) shownSet.delete(name); else shownSet.add(name); state.chosen = null; render(); byId(id).querySelector(`[data-name="${CSS.escape(name)}"]`).focus(); };
    const swatch = [];
    if (paint) {
      const svg = element("svg", { viewBox: "0 0 14 14", width: 13, height: 13, "aria-hidden": "true", style: "width:13px" });
      svg.append(element("path", { d: shape(ROWS.find((row) => row.scheme === name), 7, 7, 4.8), style: `fill:${colour(name)}` }));
      swatch.push(svg);
    }
    return element("button", { type: "button", "aria-pressed": String(shownSet.has(name)), "data-name": name, onclick: toggle }, ...swatch, name);
  }));
}
function axis(id, first) {
  const usable = Object.keys(AXES).filter((name) => ROWS.some((row) => known(row[name])));
  byId(id).replaceChildren(...usable.map((name) => element("option", { value: name }, AXES[name][0])));
  state[id] = byId(id).value = usable.includes(first) ? first : usable[0];
  byId(id).addEventListener("change", (event) => { state[id] = event.target.value; render(); });
}
function render() {
  byId("tip").hidden = true;
  chips("models", MODELS, state.models, false);
  chips("schemes", SCHEMES, state.schemes, true);
  byId("status").textContent = `${selected().length} of ${ROWS.length} cells${state.chosen ? ", one chosen" : ""}`;
  drawPareto(); drawTable(); drawReproduce(); drawLayers(); drawRanges();
}

// Start.
const root = document.documentElement;
root.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
byId("theme").addEventListener("click", () => { root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark"; });
byId("reset").addEventListener("click", () => { state.models = new Set(MODELS); state.schemes = new Set(SCHEMES); state.chosen = null; render(); });
byId("summary").textContent = DATA.summary;
byId("provenance").replaceChildren(...Object.entries(DATA.provenance).flatMap(([name, values]) => [element("dt", {}, name), element("dd", {}, values.join(", "))]));
axis("x", "latency_ms_median");
axis("y", "metric");
render();
