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
// What the line of a row in the table says, with headings.
const UNTOLD = new Set(["model", "system", "status", "command"]);
function describe(row) {
  const title = `${row.model}, ${row.system}${row.status === "ok" ? "" : `\n${row.status}: ${row.error}`}`;
  if (LINES.get(row).querySelector("td[colspan]")) return title;
  const cells = [...LINES.get(row).cells];
  const lines = HEADS.map((head, k) => [head, cells[k].textContent]).filter(([head, content]) => content && !UNTOLD.has(head.key));
  const told = lines.map(([head, content]) => `${head.key === "metric" ? merit(row).label : head.title}: ${head.key === "disturbed" ? row.disturbance : content}`);
  return [title, ...told].join("\n");
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

// As many panels beside each other as the style sheet puts there, drawn as wide as they are shown.
const GAP = 14, LEAST_WIDTH = 340, FRAME = 26;
function panelSize(count) {
  const width = byId("pareto").clientWidth || 1000;
  const columns = Math.max(1, Math.min(count, Math.floor((width + GAP) / (LEAST_WIDTH + GAP))));
  const own = Math.floor((width - GAP * (columns - 1)) / columns) - FRAME;
  return { width: own, height: Math.round(Math.min(430, Math.max(250, own * 0.45))), left: 46, right: own - 8, top: 16 };
}
function axes(svg, xs, ys, rows, size) {
  const bottom = size.height - 36;
  for (const t of xs.ticks) svg.append(element("line", { class: "grid", x1: xs.place(t), x2: xs.place(t), y1: size.top - 2, y2: bottom }), element("text", { x: xs.place(t), y: bottom + 14, "text-anchor": "middle" }, short(t)));
  for (const t of ys.ticks) svg.append(element("line", { class: "grid", x1: size.left - 2, x2: size.right + 2, y1: ys.place(t), y2: ys.place(t) }), element("text", { x: size.left - 7, y: ys.place(t) + 4, "text-anchor": "end" }, short(t)));
  const across = lowIsBetter(state.x, rows[0]) ? "← better" : "better →", up = lowIsBetter(state.y, rows[0]) ? "↓ better" : "↑ better";
  svg.append(element("text", { x: size.right, y: bottom + 31, "text-anchor": "end" }, `${across} · ${axisName(state.x, rows)}`),
    element("text", { x: 4, y: 6 }, `${axisName(state.y, rows)} · ${up}`));
}
function panel(model, all, size) {
  const rows = all.filter((row) => row.model === model && known(row[state.x]) && known(row[state.y]))
    .sort((a, b) => number(a[state.x]) - number(b[state.x]));
  const box = element("figure", {}, element("figcaption", {}, model));
  if (!rows.length) { box.append(empty("No visible cell has both figures.")); return box; }
  const best = front(rows), [divisor] = unitOf(state.x, rows), [upwards] = unitOf(state.y, rows);
  const across = (row) => figure(row, state.x) / divisor, up = (row) => figure(row, state.y) / upwards;
  const xs = scale(rows.map(across), size.left + 2, size.right - 2, true);
  // With their intervals: differences within them should not fill the picture.
  const ys = scale((state.zoom ? betterMost(rows) : rows).flatMap((row) => [up(row), ...(whisker(row) ?? [])]), size.height - 40, size.top, false);
  const svg = element("svg", { viewBox: `0 0 ${size.width} ${size.height}`, role: "group", onkeydown: moved, "aria-label": `${axisName(state.y, rows)} over ${axisName(state.x, rows)} for ${model}` });
  axes(svg, xs, ys, rows, size);
  const at = (row) => [xs.place(across(row)), ys.place(up(row))];
  const line = best.map(at);
  svg.append(element("path", { class: "front", d: line.map((point, k) => `${k ? "L" : "M"}${point.join(" ")}`).join("") }));
  const barred = line.slice(1).map((point, k) => [...line[k], ...point]);
  const outside = (row) => !xs.inside(across(row)) || !ys.inside(up(row));
  const first = rows.includes(state.chosen) ? state.chosen : rows[0];
  for (const row of rows) {
    const [x, y] = at(row), ends = whisker(row);
    if (ends && !outside(row)) {
      const [y1, y2] = ends.map((end) => ys.place(end));
      barred.push([x, y1, x, y2]);
      svg.append(element("line", { class: `whisker ${colour(row.system)}`, x1: x, x2: x, y1, y2 }));
    }
  }
  for (const row of rows) {
    const mark = element("path", {
      class: `mark ${looks(row.system)}${row === state.chosen ? " chosen" : ""}${outside(row) ? " outside" : ""}`, d: shape(row.system),
      transform: `translate(${at(row).join(" ")})`, tabindex: row === first ? 0 : -1, role: "button", "data-key": `mark ${row.config_hash}`, "data-system": row.system,
      "aria-label": describe(row).replaceAll("\n", ", "), "aria-pressed": String(row === state.chosen), onclick: () => choose(row),
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(row); } },
    });
    svg.append(linked(tipFor(mark, describe(row)), row.system));
  }
  const ends = [best[0], ...best.slice(1).reverse()].slice(0, MOST_NAMED);
  const named = unique(rows.includes(state.chosen) ? [state.chosen, ...ends] : ends).filter((row) => !outside(row))
    .filter((row, k, chosen) => !chosen.slice(0, k).some((other) => samePlace(at(row), at(other))));
  const spots = rows.map(at), names = named.map((row) => [withCompany(row.system, at(row), spots), ...at(row)]);
  for (const label of placeLabels(names, spots, barred, [size.left, size.top - 8, size.right + 4, size.height - 36])) {
    if (!label) continue;
    if (label.leader) svg.append(element("line", { class: "leader", x1: label.leader[0], y1: label.leader[1], x2: label.leader[2], y2: label.leader[3] }));
    svg.append(element("text", { class: "label", x: label.x, y: label.y }, label.text));
  }
  box.append(svg);
  return box;
}
const MOST_NAMED = 14;
function drawPareto() {
  const all = visible();
  const shownModels = MODELS.filter((model) => all.some((row) => row.model === model)), size = panelSize(shownModels.length);
  const panels = shownModels.map((model) => panel(model, all, size));
  byId("pareto").replaceChildren(...(panels.length ? panels : [empty("Nothing is chosen above.")]));
}
