// Errors of layers; values of networks and the precision of formats.
const MOST_PANELS = 6, MOST_FORMATS = 5;

function bars(found) {
  const row = ROWS.find((one) => one.config_hash === found.config_hash);
  const height = 20 * found.values.length + 8;
  const most = Math.max(1, ...found.values.map((v) => number(v.sqnr_db)).filter(Number.isFinite));
  const svg = element("svg", { viewBox: `0 0 520 ${height}`, role: "img", "aria-label": `SQNR of every layer of ${row.model} in ${row.system}` });
  found.values.forEach((layer, k) => {
    const sqnr = number(layer.sqnr_db), y = 20 * k;
    const width = known(layer.sqnr_db) ? Math.max(1, Math.min(1, Math.max(0, sqnr) / most) * 270) : 1;
    const label = layer.value.length > 26 ? `${layer.value.slice(0, 25)}…` : layer.value;
    const events = Object.entries(layer.events ?? {}).filter(([, count]) => count).map(([name, count]) => `\n${name}: ${shown(count)}`).join("");
    const bar = element("rect", { x: 176, y: y + 4, width, height: 13, rx: 2, class: `bar ${colour(row.system)}` });
    svg.append(element("text", { x: 168, y: y + 15, "text-anchor": "end" }, label),
      tipFor(bar, `${layer.value} (${layer.operator})\nSQNR ${shown(layer.sqnr_db)} dB, cosine ${shown(layer.cosine)}${events}`),
      element("text", { x: 182 + width, y: y + 15 }, `${shown(layer.sqnr_db)} dB`));
  });
  const scroll = element("div", { class: "tall", tabindex: 0, role: "region", "aria-label": `Layers of ${row.model} in ${row.system}` }, svg);
  return element("figure", {}, element("figcaption", {}, `${row.model}, ${row.system}`), scroll);
}
function drawLayers() {
  const wanted = new Set(selected().map((row) => row.config_hash));
  const cells = DATA.layers.filter((one) => wanted.has(one.config_hash));
  const more = cells.length > MOST_PANELS ? `The first ${MOST_PANELS} of ${cells.length} cells with layers: choose a cell, or show fewer, to see others.` : "";
  byId("layers-hint").textContent = more;
  if (cells.length) byId("layers").replaceChildren(...cells.slice(0, MOST_PANELS).map(bars));
  else byId("layers").replaceChildren(empty(DATA.layers.length ? "The visible cells recorded no layers." : DATA.layers_hint));
}

// Significant bits of 8-bit integers whose scale takes the largest value of a tensor to 127.
function gridBits(e, most) {
  const step = most / 127;
  const n = Math.min(127, Math.ceil(2 ** (e + 1) / step) - 1) - Math.ceil(2 ** e / step) + 1;
  return n > 0 ? 1 + Math.log2(n) : 0;
}
const power = (e) => `2${[...String(e)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("")}`;
// Bins with fewer than this share of the values, at the ends, would only make the picture small.
const RARE = 1e-4;
function trimmed(h) {
  const often = h.shares.map((share, k) => (share >= RARE ? k : -1)).filter((k) => k >= 0);
  if (!often.length) return h;
  return { ...h, first: h.first + often[0], shares: h.shares.slice(often[0], often.at(-1) + 1) };
}
function histogram(whole, formats) {
  const drawn = whole.map(trimmed);
  const first = Math.min(...drawn.map((h) => h.first)) - 1, last = Math.max(...drawn.map((h) => h.first + h.shares.length)) + 1;
  const xs = (e) => 34 + ((e - first) / (last - first)) * 470;
  const most = Math.max(...drawn.flatMap((h) => h.shares)) || 1;
  const own = drawn.length === 1 && drawn[0].most > 0 ? drawn[0].most : null;
  const bits = Math.max(8, ...formats.flatMap((name) => DATA.profiles[name].bits));
  const ys = (b) => 196 - (b / bits) * 180;
  const svg = element("svg", { viewBox: "0 0 520 238", role: "img", "aria-label": `Values of ${drawn.map((h) => h.name).join(" and ")}, and precision of ${formats.join(", ") || "no format"}` });
  drawn.forEach((h, k) => {
    const outline = h.shares.map((share, i) => `L${xs(h.first + i)} ${196 - (share / most) * 180}H${xs(h.first + i + 1)}`).join("");
    svg.append(element("path", { class: k ? "second" : "first", d: `M${xs(h.first)} 196${outline}V196z` }));
  });
  for (const b of ticks(0, bits)) svg.append(element("text", { x: 28, y: ys(b) + 4, "text-anchor": "end" }, String(b)));
  const every = last - first > 40 ? 8 : 4;
  for (let e = Math.ceil(first / every) * every; e <= last; e += every) svg.append(element("text", { x: xs(e), y: 212, "text-anchor": "middle" }, power(e)));
  svg.append(element("line", { class: "grid", x1: 34, x2: 504, y1: 196, y2: 196 }), element("text", { x: 504, y: 232, "text-anchor": "end" }, "size of a value"), element("text", { x: 4, y: 8 }, "significant bits"));
  const line = (bitsAt, attributes, tip) => {
    let d = "";
    for (let e = first; e < last; e++) d += `${d ? "L" : "M"}${xs(e)} ${ys(bitsAt(e))}H${xs(e + 1)}`;
    svg.append(tipFor(element("path", { d, ...attributes }), tip));
  };
  for (const [k, name] of formats.entries()) {
    const profile = DATA.profiles[name];
    // Where a format ends inside the picture it has no precision at all.
    line((e) => profile.bits[e - profile.first] ?? 0, { class: `profile ${colour(firstOf(name))} dash${k % 4}` }, name);
  }
  if (own !== null) line((e) => gridBits(e, own), { class: "profile grid8" }, `8-bit integers, one scale for this tensor: largest value ${shown(own)}`);
  return svg;
}
function tensorsOf(model, drawn, formats) {
  const all = DATA.ranges[model];
  const wanted = state.tensors[model] ?? "";
  const one = all.find((h) => h.name === wanted);
  const draw = (shownNow) => drawn.replaceChildren(histogram(shownNow, formats));
  const pick = element("select", { "data-key": `tensor ${model}`, "aria-label": `Tensor of ${model}`, onchange: (event) => {
    state.tensors[model] = event.target.value;
    draw(event.target.value ? all.filter((h) => h.name === event.target.value) : [all[1], all[0]]);
  } }, element("option", { value: "" }, "all weights and activations"), ...all.slice(2).map((h) => element("option", { value: h.name }, h.name)));
  pick.value = wanted;
  draw(one ? [one] : [all[1], all[0]]);
  return pick;
}
function drawRanges() {
  const shownModels = unique(selected().map((row) => row.model));
  const present = unique(selected().map((row) => row.dtype)).filter((name) => DATA.profiles[name]);
  const formats = present.filter((name) => state.formats ? state.formats.has(name) : present.indexOf(name) < MOST_FORMATS);
  byId("formats").replaceChildren(...present.map((name) => element("button", {
    type: "button", "aria-pressed": String(formats.includes(name)), "data-key": `format ${name}`,
    onclick: () => { state.formats = new Set(formats.includes(name) ? formats.filter((f) => f !== name) : [...formats, name]); render(); },
  }, swatch(firstOf(name)), name)));
  const figures = shownModels.filter((model) => DATA.ranges[model]).map((model) => {
    const drawn = element("div");
    return element("figure", {}, element("figcaption", {}, model), tensorsOf(model, drawn, formats), drawn);
  });
  const missing = shownModels.filter((model) => DATA.ranges_missing[model]).map((model) => `${model}: ${DATA.ranges_missing[model]}`);
  byId("ranges").replaceChildren(...(figures.length ? figures : [empty("No visible network is at hand to take its values from.")]));
  byId("ranges-missing").textContent = missing.length ? `Not at hand when this page was written: ${missing.join("; ")}.` : "";
}
