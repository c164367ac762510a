"use strict";
// The data, what is shown of it, and small helpers.
const DATA = JSON.parse(document.getElementById("data").textContent);
const ROWS = DATA.rows;
const LOW = "low", HIGH = "high";
// What can be plotted: its name and which way is better; a metric says for itself.
const AXES = {
  latency_ms_median: ["latency, ms", LOW], speedup_vs_fp32: ["speed-up over float32", HIGH],
  size_bytes: ["parameters, bytes", LOW], activation_bytes: ["activations, bytes", LOW],
  traffic_bytes: ["moved, bytes", LOW], energy_memory_uj: ["energy of memory, µJ", LOW],
  macs: ["multiply-accumulates", LOW], bit_operations: ["bit operations", LOW], energy_uj: ["energy, µJ", LOW],
  metric: ["figure of merit", null], metric_drop: ["figure of merit, lost to float32", LOW],
  sqnr_db: ["SQNR, dB", HIGH], cosine: ["cosine", HIGH], top1_agreement: ["agreement with float32", HIGH],
};
const MERIT = ["metric", "metric_fp32", "metric_drop", "metric_drop_low", "metric_drop_high", "detectable_drop"];
const unique = (values) => [...new Set(values)];
const MODELS = unique(ROWS.map((row) => row.model)), SYSTEMS = unique(ROWS.map((row) => row.system));
const DTYPES = unique(ROWS.map((row) => row.dtype));
const OF_SYSTEM = new Map(ROWS.map((row) => [row.system, row]));
const state = {
  models: new Set(MODELS), systems: new Set(SYSTEMS), find: "", x: "", y: "", zoom: true, chosen: null,
  sort: ["", 1], tensors: {}, formats: null,
};
const byId = (id) => document.getElementById(id);

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
const empty = (text) => element("p", { class: "empty" }, text);

// Numbers: JSON has no infinities, their names stand for them.
const known = (value) => value !== null && value !== undefined && value !== "";
const number = (value) => (value === "inf" ? Infinity : value === "-inf" ? -Infinity : Number(value));
function shown(value) {
  if (!known(value)) return "";
  if (typeof value === "string" && !/^-?inf$/.test(value)) return value;
  const n = number(value);
  if (!Number.isFinite(n)) return n > 0 ? "∞" : "−∞";
  if (Number.isInteger(n)) return n.toLocaleString("en-US");
  if (Math.abs(n) < 1e-4) return n.toExponential(1);
  return n.toPrecision(Math.abs(n) >= 1000 ? 5 : 4).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}
const merit = (row) => DATA.metrics[row.metric_name ?? ""];
// Shares are read in percent.
const isShare = (row, key) => key === "top1_agreement" || (MERIT.includes(key) && merit(row).share);
const figure = (row, key) => number(row[key]) * (isShare(row, key) ? 100 : 1);
function text(row, key) {
  if (!known(row[key]) || typeof row[key] !== "number" || !isShare(row, key)) return shown(row[key]);
  return `${(100 * row[key]).toFixed(2).replace("-0.00", "0.00")} %`;
}
const interval = (row) =>
  (known(row.metric_drop_low) ? `${text(row, "metric_drop_low")} to ${text(row, "metric_drop_high")}` : "");
// Of float32 itself there is none.
const speedInterval = (row) =>
  (known(row.speedup_low) && row.speedup_low !== row.speedup_high ? `${shown(row.speedup_low)} to ${shown(row.speedup_high)}` : "");
function axisName(axis, row) {
  const share = isShare(row, axis) ? ", %" : "";
  if (axis === "metric") return merit(row).label + share;
  return (axis === "metric_drop" ? `${merit(row).label}, lost` : AXES[axis][0]) + share;
}
const lowIsBetter = (axis, row) => (axis === "metric" ? !merit(row).higher_is_better : AXES[axis][1] === LOW);

// Colour says which format, shape of what kind: a circle float32, a square integers, a diamond formats.
function colour(dtype) {
  const k = DTYPES.indexOf(dtype);
  return `hsl(${(k * 137.5 + 212) % 360} 64% calc(var(--mark) + ${(k % 3) * 7 - 7}%))`;
}
function shape(row, x, y, size) {
  if (row.dtype === "float32") return `M${x - size} ${y}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0`;
  if (/^int/.test(row.dtype)) return `M${x - size} ${y - size}h${2 * size}v${2 * size}h${-2 * size}z`;
  const d = size * 1.35;
  return `M${x} ${y - d}l${d} ${d}l${-d} ${d}l${-d} ${-d}z`;
}
function swatch(row) {
  const svg = element("svg", { viewBox: "0 0 14 14", class: "swatch", "aria-hidden": "true" });
  svg.append(element("path", { d: shape(row, 7, 7, 4.8), style: `fill:${colour(row.dtype)}` }));
  return svg;
}

// What is shown.
const words = () => state.find.toLowerCase().split(/\s+/).filter(Boolean);
function visible() {
  const wanted = words();
  return ROWS.filter((row) => state.models.has(row.model) && state.systems.has(row.system)
    && wanted.every((word) => `${row.model} ${row.system} ${row.status}`.toLowerCase().includes(word)));
}
const selected = () => (state.chosen ? [state.chosen] : visible());
function choose(row) {
  state.chosen = state.chosen === row ? null : row;
  render();
}

// Hover and focus.
function tipFor(node, content) {
  const tip = byId("tip");
  const show = () => {
    tip.textContent = content;
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
// Pointing at a number system anywhere shows where it is in every panel.
function linked(node, system) {
  const mark = (on) => () => {
    byId("pareto").classList.toggle("linking", on);
    for (const one of document.querySelectorAll("#pareto .mark")) one.classList.toggle("same", on && one.dataset.system === system);
  };
  for (const event of ["mouseenter", "focus"]) node.addEventListener(event, mark(true));
  for (const event of ["mouseleave", "blur"]) node.addEventListener(event, mark(false));
  return node;
}
