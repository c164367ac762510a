// One panel a network, with the front of cells that no other beats. What was judged by fewer inputs
// than others, and so by others, is not compared.
function front(all) {
  const most = Math.max(...all.map((row) => number(row.n_eval)));
  const rows = all.filter((row) => number(row.n_eval) === most);
  const better = (a, b, axis) => (lowIsBetter(axis, a) ? number(a[axis]) <= number(b[axis]) : number(a[axis]) >= number(b[axis]));
  const same = (a, b) => number(a[state.x]) === number(b[state.x]) && number(a[state.y]) === number(b[state.y]);
  return rows.filter((row) => !rows.some((other) => other !== row && better(other, row, state.x) && better(other, row, state.y) && !same(other, row)));
}
// The interval of what is drawn upwards, as figures.
function whisker(row) {
  if (!known(row.metric_drop_low)) return null;
  const ends = [figure(row, "metric_drop_low"), figure(row, "metric_drop_high")];
  if (state.y === "metric_drop") return ends;
  if (state.y !== "metric") return null;
  const possible = (value) => (isShare(row, "metric") ? Math.max(0, Math.min(100, value)) : value);
  return ends.map((lost) => possible(figure(row, "metric_fp32") + (merit(row).higher_is_better ? -lost : lost)));
}
// The better three quarters: what is ruined would leave no room for them.
function betterMost(rows) {
  const sign = lowIsBetter(state.y, rows[0]) ? 1 : -1;
  const ordered = [...rows].sort((a, b) => sign * (figure(a, state.y) - figure(b, state.y)));
  return ordered.slice(0, Math.max(2, Math.ceil(rows.length * 0.75)));
}
const TIP = [
  ["metric_drop", "lost"], ["interval", "95 % interval"], ["p_value", "p-value"], ["p_holm", "p-value for all cells together"], ["detectable_drop", "smallest drop to be seen"],
  ["outputs_not_finite", "inputs with NaN or infinity in outputs"], ["portable_bits", "same bits on every processor"], ["sqnr_db", "SQNR, dB"],
  ["top1_agreement", "agreement with float32"], ["size_bytes", "parameters, bytes"], ["activation_bytes", "activations, bytes"],
  ["traffic_bytes", "moved, bytes"],
  ["bit_operations", "bit operations"], ["energy_uj", "energy, µJ"], ["latency_ms_median", "latency, ms"],
  ["speedup_vs_fp32", "times as fast as float32"], ["speed", "95 % interval"], ["disturbance", "latency disturbed"], ["threads", "threads"],
];
function describe(row) {
  const derived = { interval, speed: speedInterval };
  const lines = TIP.map(([key, name]) => [name, key in derived ? derived[key](row) : text(row, key)]);
  const judged = known(row.metric) ? [[merit(row).label, text(row, "metric")]] : [];
  return [`${row.model}, ${row.system}`, ...[...judged, ...lines].filter(([, value]) => value).map(([name, value]) => `${name}: ${value}`)].join("\n");
}

// Arrows move from mark to mark; a panel is one stop of the tabulator key.
function moved(event) {
  const marks = [...event.currentTarget.querySelectorAll(".mark")], at = marks.indexOf(event.target);
  const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: marks.length - 1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  const next = marks[Math.max(0, Math.min(marks.length - 1, to))];
  for (const mark of marks) mark.setAttribute("tabindex", mark === next ? 0 : -1);
  next.focus();
}

function axes(svg, xs, ys, row) {
  for (const t of xs.ticks) svg.append(element("line", { class: "grid", x1: xs.place(t), x2: xs.place(t), y1: 14, y2: 212 }), element("text", { x: xs.place(t), y: 226, "text-anchor": "middle" }, short(t)));
  for (const t of ys.ticks) svg.append(element("line", { class: "grid", x1: 44, x2: 352, y1: ys.place(t), y2: ys.place(t) }), element("text", { x: 39, y: ys.place(t) + 4, "text-anchor": "end" }, short(t)));
  const across = lowIsBetter(state.x, row) ? "← better" : "better →", up = lowIsBetter(state.y, row) ? "↓ better" : "↑ better";
  svg.append(element("text", { x: 352, y: 243, "text-anchor": "end" }, `${across} · ${axisName(state.x, row)}`),
    element("text", { x: 4, y: 6 }, `${axisName(state.y, row)} · ${up}`));
}
function panel(model, all) {
  const rows = all.filter((row) => row.model === model && known(row[state.x]) && known(row[state.y]))
    .sort((a, b) => number(a[state.x]) - number(b[state.x]));
  const box = element("figure", {}, element("figcaption", {}, model));
  if (!rows.length) { box.append(empty("No visible cell has both figures.")); return box; }
  const best = front(rows);
  const xs = scale(rows.map((row) => figure(row, state.x)), 48, 350, true);
  // With their intervals: differences within them should not fill the picture.
  const ys = scale((state.zoom ? betterMost(rows) : rows).flatMap((row) => [figure(row, state.y), ...(whisker(row) ?? [])]), 208, 16, false);
  const svg = element("svg", { viewBox: "0 0 360 248", role: "group", onkeydown: moved, "aria-label": `${axisName(state.y, rows[0])} over ${axisName(state.x, rows[0])} for ${model}` });
  axes(svg, xs, ys, rows[0]);
  const at = (row) => [xs.place(figure(row, state.x)), ys.place(figure(row, state.y))];
  svg.append(element("path", { class: "front", d: best.map((row, k) => `${k ? "L" : "M"}${at(row).join(" ")}`).join("") }));
  const labels = new Labels(356);
  for (const row of rows) labels.block(...at(row), 4);
  const outside = (row) => !xs.inside(figure(row, state.x)) || !ys.inside(figure(row, state.y));
  const first = rows.includes(state.chosen) ? state.chosen : rows[0];
  for (const row of rows) {
    const [x, y] = at(row), ends = whisker(row);
    if (ends && !outside(row)) svg.append(element("line", { class: "whisker", x1: x, x2: x, y1: ys.place(ends[0]), y2: ys.place(ends[1]), style: `stroke:${colour(row.dtype)}` }));
    const mark = element("path", {
      class: `mark${row === state.chosen ? " chosen" : ""}${outside(row) ? " outside" : ""}`, d: shape(row, x, y, 4.6),
      style: `fill:${colour(row.dtype)}`, tabindex: row === first ? 0 : -1, role: "button", "data-key": `mark ${row.config_hash}`, "data-system": row.system,
      "aria-label": describe(row).replaceAll("\n", ", "), "aria-pressed": String(row === state.chosen), onclick: () => choose(row),
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(row); } },
    });
    svg.append(linked(tipFor(mark, describe(row)), row.system));
  }
  const named = state.chosen && rows.includes(state.chosen) ? [state.chosen, ...best] : best;
  for (const row of unique(named)) {
    const name = row.system.length > 26 ? `${row.system.slice(0, 25)}…` : row.system;
    const label = outside(row) ? null : labels.put(name, ...at(row));
    if (label) svg.append(label);
  }
  box.append(svg);
  return box;
}
function drawPareto() {
  const all = visible();
  const panels = MODELS.filter((model) => all.some((row) => row.model === model)).map((model) => panel(model, all));
  byId("pareto").replaceChildren(...(panels.length ? panels : [empty("Nothing is chosen above.")]));
}
