"use strict";
// The data, what is shown of it, and small helpers.
const DATA = JSON.parse(document.getElementById("data").textContent);
const ROWS = DATA.rows.map((values) => Object.fromEntries(DATA.columns.map((name, k) => [name, values[k]])));
const MERIT = ["metric", "metric_fp32", "metric_drop", "metric_drop_low", "metric_drop_high", "detectable_drop"];
const unique = (values) => [...new Set(values)];
const MODELS = unique(ROWS.map((row) => row.model)), SYSTEMS = unique(ROWS.map((row) => row.system));
const state = {
  models: new Set(MODELS), systems: new Set(SYSTEMS), find: "", x: "", y: "", zoom: true, chosen: null,
  tensors: {}, formats: null,
};
const byId = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "text", "use", "rect"].includes(tag);
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
const lowIsBetter = (axis, row) => (axis === "metric" ? !merit(row).higher_is_better : DATA.axes[axis].lower_is_better);
// Bytes in steps of 1024, operations of 1000: what to divide by, and the unit that figures then have.
const STEPS = { B: [1024, ["B", "KiB", "MiB", "GiB", "TiB"]], Op: [1000, ["Op", "kOp", "MOp", "GOp", "TOp", "POp"]], MAC: [1000, ["MAC", "kMAC", "MMAC", "GMAC", "TMAC", "PMAC"]] };
function unitOf(axis, rows) {
  const { unit } = DATA.axes[axis];
  if (axis === "metric" || axis === "metric_drop" || axis === "top1_agreement") return [1, isShare(rows[0], axis) ? "%" : ""];
  if (!STEPS[unit]) return [1, unit];
  const [base, names] = STEPS[unit], most = Math.max(...rows.map((row) => number(row[axis])).filter(Number.isFinite));
  const k = most < base ? 0 : Math.min(names.length - 1, Math.floor(Math.log(most * 1.0005) / Math.log(base)));
  return [base ** k, names[k]];
}
function axisName(axis, rows) {
  const name = axis === "metric" ? merit(rows[0]).label : axis === "metric_drop" ? `${merit(rows[0]).label}, lost` : DATA.axes[axis].title;
  const [, unit] = unitOf(axis, rows);
  return unit ? `${name}, ${unit}` : name;
}

// Every number system has one colour and one mark.
const FILLS = ["full", "hollow", "half"];
const looks = (system) => `c${DATA.looks[system].colour} ${FILLS[DATA.looks[system].fill]}`;
const colour = (system) => `c${DATA.looks[system].colour}`;
const shape = (system) => DATA.forms[DATA.looks[system].form];
const firstOf = (dtype) => ROWS.find((row) => row.dtype === dtype).system;
function swatch(system) {
  return element("svg", { viewBox: "-7 -7 14 14", class: `swatch ${looks(system)}`, "aria-hidden": "true" }, element("use", { href: `#form${DATA.looks[system].form}` }));
}

// What is shown.
const words = () => state.find.toLowerCase().split(/\s+/).filter(Boolean);
function visible() {
  const wanted = words();
  return ROWS.filter((row) => state.models.has(row.model) && state.systems.has(row.system)
    && wanted.every((word) => WORDS.get(row).includes(word)));
}
const selected = () => (state.chosen ? [state.chosen] : visible());
function choose(row) {
  state.chosen = state.chosen === row ? null : row;
  render();
}

// Hover and focus.
function showTip(node, content) {
  const tip = byId("tip");
  tip.textContent = content;
  tip.hidden = false;
  const at = node.getBoundingClientRect(), own = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(innerWidth - own.width - 6, at.left + at.width / 2 - own.width / 2))}px`;
  tip.style.top = `${at.top - own.height - 8 > 4 ? at.top - own.height - 8 : at.bottom + 8}px`;
}
const hide = () => { byId("tip").hidden = true; };
function tipFor(node, content) {
  const show = () => showTip(node, content);
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
