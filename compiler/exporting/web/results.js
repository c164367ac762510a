"use strict";
// What the programs say of an input: classes, or values, of all programs side by side.
const TOP = 5, FIRST = 16;

// The only axis of an output with more than one element has the classes; null: it has more axes.
function classCount({ shape, dtype }) {
  const count = elementsOf(shape);
  return dtype !== "bool" && count > 1 && Math.max(...shape) === count ? count : null;
}

// The places of the largest values, the first of equal ones first, NaN last.
function largest(values, count) {
  const of = (k) => (Number.isNaN(values[k]) ? -Infinity : values[k]);
  return Array.from(values, (_, k) => k).sort((a, b) => of(b) - of(a) || a - b).slice(0, count);
}

// Shares of classes: values that are shares themselves, or else their softmax.
function sharesOf(values) {
  const sum = values.reduce((a, b) => a + b, 0);
  if (values.every((v) => v >= 0 && v <= 1) && Math.abs(sum - 1) < 1e-2) return { shares: values, own: true };
  const most = values.reduce((a, b) => (b > a ? b : a), -Infinity);
  const powers = Float64Array.from(values, (v) => (v === most ? 1 : Math.exp(v - most)));
  const total = powers.reduce((a, b) => a + (Number.isNaN(b) ? 0 : b), 0);
  return { shares: powers.map((p) => p / total), own: false };
}

function classesPanel(output, found) {
  const count = classCount(output), names = DATA.labels.length === count ? DATA.labels : [];
  const shares = found.map(({ values }) => values && sharesOf(Float64Array.from(values)));
  const chosen = [...new Set(found.flatMap(({ values }) => (values ? largest(values, Math.min(TOP, count)) : [])))];
  const rows = chosen.map((k) => element("div", { class: "class" },
    element("div", { class: "name" }, names.length ? `${names[k]} ` : "class ", element("small", {}, `${k}`)),
    ...found.map(({ values }, p) => {
      if (!values) return element("div", { class: "bar" });
      const share = shares[p].shares[k], bar = element("span", { class: `fill p${p}` });
      bar.style.width = `${Number.isNaN(share) ? 0 : 100 * share}%`;
      const rank = 1 + values.reduce((n, v, j) => n + (v > values[k] || (v === values[k] && j < k)), 0);
      return element("div", { class: "bar", title: DATA.programs[p].name }, element("span", { class: "track" }, bar),
        element("span", { class: "figure" }, shown(values[k])), element("small", {}, Number.isNaN(values[k]) ? "" : `no. ${rank}`));
    })));
  const own = shares.some((s) => s?.own);
  const text = `The ${Math.min(TOP, count)} largest of ${count} in each program; a bar is ${own ? "the value itself" : "a share of the softmax of the values"}.`;
  return [element("div", { class: "classes" }, ...rows), element("p", { class: "hint" }, text)];
}

function valuesPanel(output, found) {
  const count = Math.min(FIRST, elementsOf(output.shape)), two = found.length > 1;
  const heads = ["at", ...DATA.programs.map((p) => p.name), ...(two ? ["difference"] : [])];
  const rows = Array.from({ length: count }, (_, k) => {
    const values = found.map((f) => (f.values ? Number(f.values[k]) : NaN));
    const cells = values.map((v, p) => (found[p].values ? shown(v) : "–"));
    if (two) cells.push(found.every((f) => f.values) ? shown(values[0] - values[1]) : "–");
    return element("tr", {}, element("th", { scope: "row" }, indexText(k, output.shape)), ...cells.map((c) => element("td", {}, c)));
  });
  const head = element("tr", {}, ...heads.map((h) => element("th", { scope: "col" }, h)));
  const text = count < elementsOf(output.shape) ? `The first ${count} of ${elementsOf(output.shape).toLocaleString("en-US")} values.` : "All values.";
  const table = element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
  const region = { class: "scroll", tabindex: 0, role: "region", "aria-label": `Values of ${output.name}` };
  return [element("div", region, table), element("p", { class: "hint" }, text)];
}

// How far the first program is from the second, in a sentence.
function comparison(output, found) {
  if (found.length < 2 || found.some((f) => !f.values)) return null;
  const d = difference(found[0].values, found[1].values), [a, b] = DATA.programs.map((p) => p.name);
  const same = found[0].bytes.every((byte, k) => byte === found[1].bytes[k]);
  const none = d.wild === elementsOf(output.shape), where = indexText(d.at, output.shape);
  const sqnr = Number.isFinite(d.sqnr) ? `${d.sqnr.toFixed(1)} dB` : shown(d.sqnr);
  const parts = same ? [`${a} and ${b} give the same bits`] : none ? [`no value is finite in both ${a} and ${b}`]
    : [`SQNR of ${a} to ${b}: ${sqnr}`, `largest difference ${shown(d.most)} at ${where}`];
  if (d.wild && !none && !same) parts.push(`infinite or NaN in one or both, and left out here: ${d.wild}`);
  return { ...d, text: `${parts.join("; ")}.` };
}

// One section an output; `answers`: of each program, {outputs: [bytes]} or {error}.
function showResults(answers) {
  const sections = DATA.outputs.map((output, o) => {
    const found = answers.map(({ outputs }) => (outputs ? { bytes: outputs[o], values: valuesOf(outputs[o], output.dtype) } : {}));
    const compared = comparison(output, found), panel = classCount(output) ? classesPanel : valuesPanel;
    return element("section", { class: "card" },
      element("h3", {}, output.name, " ", element("small", {}, `${output.dtype} ${shapeText(output.shape)}`)),
      ...(found.some((f) => f.values) ? panel(output, found) : []),
      ...(compared ? [element("p", { class: "compared" }, compared.text)] : []));
  });
  byId("results").replaceChildren(legend(), ...sections);
}

function legend() {
  const keys = DATA.programs.map(({ name }, p) => element("span", {}, element("i", { class: `key p${p}` }), name));
  return element("p", { class: "legend" }, ...(keys.length > 1 ? keys : []));
}
