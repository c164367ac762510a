// Filters, axes, and drawing everything.
function chips(id, names, shownSet, dressed) {
  const all = element("button", { type: "button", class: "small", "data-key": `${id} all`, onclick: () => { names.forEach((name) => shownSet.add(name)); state.chosen = null; render(); } }, "all");
  const none = element("button", { type: "button", class: "small", "data-key": `${id} none`, onclick: () => { shownSet.clear(); state.chosen = null; render(); } }, "none");
  byId(id).replaceChildren(all, none, ...names.map((name) => {
    const toggle = () => { if (!shownSet.delete(name)) shownSet.add(name); state.chosen = null; render(); };
    const chip = element("button", { type: "button", class: "chip", "aria-pressed": String(shownSet.has(name)), "data-name": name, "data-key": `${id} ${name}`, onclick: toggle }, ...dressed(name));
    return id === "systems" ? linked(chip, name) : chip;
  }));
}
const axisTitle = (name) => (name === "metric" ? "figure of merit" : name === "metric_drop" ? "figure of merit, lost to float32" : DATA.axes[name].title);
function axis(id, first) {
  const usable = Object.keys(DATA.axes).filter((name) => ROWS.some((row) => known(row[name])));
  byId(id).replaceChildren(...usable.map((name) => element("option", { value: name }, axisTitle(name))));
  state[id] = byId(id).value = usable.includes(first) ? first : usable[0] ?? "";
  byId(id).addEventListener("change", (event) => { state[id] = event.target.value; render(); });
}
function render() {
  // Drawing makes new elements: the keyboard stays where it was.
  const key = document.activeElement?.dataset?.key;
  byId("tip").hidden = true;
  byId("pareto").classList.remove("linking");
  chips("models", MODELS, state.models, (name) => [name]);
  chips("systems", SYSTEMS, state.systems, (name) => [swatch(name), name]);
  byId("status").textContent = `${selected().length} of ${ROWS.length} cells${state.chosen ? ", one chosen" : ""}`;
  drawPareto(); drawTable(); drawReproduce(); drawLayers(); drawRanges();
  if (key) document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

const root = document.documentElement;
root.classList.add("running");
const dark = matchMedia("(prefers-color-scheme: dark)");
root.dataset.theme = dark.matches ? "dark" : "light";
dark.addEventListener("change", () => { root.dataset.theme = dark.matches ? "dark" : "light"; });
byId("theme").addEventListener("click", () => { root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark"; });
byId("reset").addEventListener("click", () => {
  Object.assign(state, { models: new Set(MODELS), systems: new Set(SYSTEMS), chosen: null, find: "", formats: null });
  byId("find").value = "";
  render();
});
byId("find").addEventListener("input", (event) => { state.find = event.target.value; state.chosen = null; render(); });
byId("zoom").addEventListener("change", (event) => { state.zoom = event.target.checked; render(); });
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (state.chosen) choose(state.chosen);
  else byId("tip").hidden = true;
});
axis("x", "latency_ms_median");
axis("y", "metric");
render();
let drawnFor = byId("pareto").clientWidth;
new ResizeObserver(() => {
  if (byId("pareto").clientWidth === drawnFor) return;
  drawnFor = byId("pareto").clientWidth;
  drawPareto();
}).observe(byId("pareto"));
