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
function axis(id, first) {
  const usable = Object.keys(AXES).filter((name) => ROWS.some((row) => known(row[name])));
  byId(id).replaceChildren(...usable.map((name) => element("option", { value: name }, AXES[name][0])));
  state[id] = byId(id).value = usable.includes(first) ? first : usable[0] ?? "";
  byId(id).addEventListener("change", (event) => { state[id] = event.target.value; render(); });
}
function render() {
  // Drawing makes new elements: the keyboard stays where it was.
  const key = document.activeElement?.dataset?.key;
  byId("tip").hidden = true;
  byId("pareto").classList.remove("linking");
  chips("models", MODELS, state.models, (name) => [name]);
  chips("systems", SYSTEMS, state.systems, (name) => [swatch(OF_SYSTEM.get(name)), name]);
  byId("status").textContent = `${selected().length} of ${ROWS.length} cells${state.chosen ? ", one chosen" : ""}`;
  drawPareto(); drawTable(); drawReproduce(); drawLayers(); drawRanges();
  if (key) document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

const root = document.documentElement;
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
byId("summary").textContent = DATA.summary;
byId("p-values").textContent = DATA.p_values;
byId("provenance").replaceChildren(...Object.entries(DATA.provenance).flatMap(([name, values]) => [element("dt", {}, name), element("dd", {}, values.join(", "))]));
drawNetworks();
axis("x", "latency_ms_median");
axis("y", "metric");
render();
