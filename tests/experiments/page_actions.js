// What a reader does with the report page; `seen` is what they would see.
"use strict";
{
const seen = {};
const all = (selector) => [...document.querySelectorAll(selector)];
const count = (selector) => all(selector).length;
const press = (selector) => document.querySelector(selector).click();
const key = (name) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
const turn = (id, value) => { const select = document.getElementById(id); select.value = value; select.dispatchEvent(new Event(id === "find" ? "input" : "change")); };
const label = (model) => all("#pareto svg").map((svg) => svg.getAttribute("aria-label")).find((text) => text.endsWith(` for ${model}`));
const LINE = "#table tbody tr:not([hidden])";
const system = (mark) => mark.dataset.system;

seen.start = { marks: count("#pareto .mark"), lines: count(LINE), ranges: count("#ranges svg"), bars: count("#layers rect") };
press('#models button[data-name="mnist_mlp"]');
seen.without_mlp = { marks: count("#pareto .mark"), lines: count(LINE), panels: count("#pareto figure") };
all("#systems .chip")[1].click();
seen.without_int8 = { marks: count("#pareto .mark"), lines: count(LINE) };
press("#reset");
turn("find", "MLP posit");
seen.found = all(LINE).map((line) => line.cells[1].textContent);
turn("find", "");

const mark = document.querySelector('#pareto .mark[tabindex="0"]');
seen.stops = all('#pareto .mark[tabindex="0"]').length;
mark.focus();
key("End");
key("ArrowLeft");
seen.tip = document.getElementById("tip").textContent;
seen.disturbed = all(LINE).map((line) => [...line.cells].find((c) => c.textContent === "loaded, imprecise")?.parentNode.cells[1].textContent).filter(Boolean);
seen.linked = all("#pareto .mark.same").map(system);
key("Enter");
seen.chosen = { lines: count(LINE), command: document.querySelector("#reproduce code").textContent,
  focused: document.activeElement.classList.contains("mark"), status: document.getElementById("status").textContent };
key("Escape");
seen.escaped = count(LINE);
document.querySelector('#table button[data-key^="row "]').focus();
document.activeElement.click();
seen.by_table = { lines: count(LINE), focused: document.activeElement.dataset.key };
press("#reset");

press('#table button[data-key="sort table metric"]');
const figures = [...all("#table th")].findIndex((head) => head.textContent.startsWith("figure"));
seen.sorted = all(LINE).map((line) => line.cells[figures].textContent);
const sortState = () => document.querySelector('#table [data-column="metric"]').ariaSort;
seen.aria_sort = [sortState()];
const reason = document.querySelector("#table td.failed div"), region = reason.closest(".scroll");
const lies = reason.getBoundingClientRect(), around = region.getBoundingClientRect();
seen.reason_fits = lies.left >= around.left && lies.right <= around.right && lies.width > 0.4 * around.width;
press('#table button[data-key="sort table metric"]');
seen.sorted_back = all(LINE).map((line) => line.cells[figures].textContent);
seen.aria_sort.push(sortState(), document.querySelector('#table [data-column="model"]').ariaSort);
document.querySelector('#table button[data-key="sort table metric"]').focus();
seen.explained = document.getElementById("tip").textContent;
const hovered = (column) => {
  const at = HEADS.findIndex((head) => head.key === column);
  all(LINE)[0].cells[at].dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
  return document.getElementById("tip").textContent;
};
seen.exact = [hovered("metric"), hovered("size_bytes")];
// As they are drawn, whatever font there is.
const drawnBoxes = (svg, selector) => [...svg.querySelectorAll(selector)].map((node) => node.getBoundingClientRect());
const touching = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
seen.crowded = all("#pareto svg").reduce((sum, svg) => {
  const named = drawnBoxes(svg, ".label"), marks = drawnBoxes(svg, ".mark");
  return sum + named.filter((box, k) => [...named.slice(k + 1), ...marks].some((other) => touching(box, other))).length;
}, 0);
seen.named = count("#pareto .label");
seen.names = all("#pareto figcaption").map((c) => c.textContent);
seen.labels = Object.fromEntries(seen.names.map((name) => [name, label(name)]));
seen.axes = all("#x option").map((option) => option.value);
turn("x", "energy_uj");
turn("y", "sqnr_db");
seen.sqnr = { marks: count("#pareto .mark"), label: label("mnist_mlp") };
turn("y", "metric");
turn("x", "size_bytes");
seen.fronts = Object.fromEntries(seen.names.map((name) => [name, front(visible().filter((row) => row.model === name && known(row.metric) && known(row.size_bytes))).map((row) => row.system)]));

const pick = document.querySelector("#ranges select");
if (pick) {
  pick.value = pick.options[1].value;
  pick.dispatchEvent(new Event("change"));
  seen.tensor = { label: document.querySelector("#ranges svg").getAttribute("aria-label"), grid: count("#ranges .grid8") };
}
const paper = getComputedStyle(document.body).backgroundColor;
press("#theme");
seen.theme_changes = paper !== getComputedStyle(document.body).backgroundColor;
seen.requests = performance.getEntriesByType("resource").map((r) => r.name);
seen.width = innerWidth;
seen.wider_than_window = document.documentElement.scrollWidth > innerWidth;
const tiny = all("button, select, input").filter((e) => e.checkVisibility() && e.getBoundingClientRect().height < 16).length;
seen.too_small = tiny;
// Only a person's own click may use the clipboard: a stand-in takes its place.
const clipboard = (writeText) => Object.defineProperty(navigator, "clipboard", { value: { writeText }, configurable: true });
const copy = '#table button[data-key^="copy "]';
clipboard(async (text) => { seen.clipboard = text; });
press(copy);
// Copying ends later than this script does.
setTimeout(() => {
  seen.copied = document.querySelector(copy).textContent;
  clipboard(async () => { throw new Error("not allowed"); });
  press(copy);
}, 100);
setTimeout(() => {
  seen.not_copied = document.getElementById("status").textContent;
  const out = document.createElement("pre");
  out.id = "seen";
  out.textContent = JSON.stringify(seen);
  document.body.append(out);
  // A page in a frame, as wide as a phone, hands it to the page around it.
  if (parent !== window) parent.postMessage(out.textContent, "*");
}, 300);
}
