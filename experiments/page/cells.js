// The table of cells, and the commands that run them again.
const ALWAYS = ["model", "system", "metric", "metric_drop", "status", "command"];
const COLUMNS = [
  ["model", "network"], ["system", "number system"], ["judged", "judged by"], ["metric", "figure"], ["metric_drop", "lost"],
  ["interval", "95 % interval"], ["p_value", "p"], ["p_holm", "p (Holm)"], ["detectable_drop", "detectable"],
  ["outputs_not_finite", "not finite"], ["sqnr_db", "SQNR dB"], ["top1_agreement", "agreement"],
  ["size_bytes", "bytes"], ["bit_operations", "bit operations"], ["energy_uj", "µJ"], ["latency_ms_median", "ms"],
  ["speedup_vs_fp32", "vs float32"], ["disturbed", "latency disturbed"], ["threads", "threads"], ["portable_bits", "portable bits"], ["status", "status"], ["command", "run again"],
];
const TEXT = new Set(["model", "system", "judged", "disturbed", "portable_bits", "status", "command"]);
const UNSORTED = new Set(["interval", "command"]);
const DERIVED = { judged: (row) => merit(row)?.label ?? "", interval };
const value = (row, column) => (column in DERIVED ? DERIVED[column](row) : row[column]);
const judgedAlike = unique(ROWS.map((row) => row.metric_name)).length === 1;
const SHOWN_COLUMNS = COLUMNS.filter(([column]) => (column === "judged" ? !judgedAlike : ALWAYS.includes(column) || ROWS.some((row) => known(value(row, column)))));

function sorted(rows) {
  const [by, direction] = state.sort;
  if (!by) return rows;
  const key = (row) => (TEXT.has(by) ? String(value(row, by)) : number(value(row, by)));
  const missing = (row) => !known(value(row, by));
  return [...rows].sort((a, b) => missing(a) - missing(b) || (key(a) < key(b) ? -direction : key(a) > key(b) ? direction : 0));
}
async function copyText(content, button) {
  const done = (copied) => {
    button.textContent = copied ? "Copied" : "Copy";
    byId("status").textContent = `${copied ? "Copied" : "The browser does not let this page copy. The command"}: ${content}`;
  };
  try {
    await navigator.clipboard.writeText(content);
    done(true);
  } catch {
    // Pages in frames may not use the clipboard so; a selection can be copied.
    const area = element("textarea", { class: "skip" }, content);
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    button.focus();
    done(copied);
  }
}
function copyButton(row, key) {
  const button = element("button", { type: "button", class: "small", title: row.command, "data-key": `${key} ${row.config_hash}`, "aria-label": `Copy the command that runs ${row.model}, ${row.system} again`,
    onclick: (event) => { event.stopPropagation(); copyText(row.command, button); } }, "Copy");
  return button;
}
function cell(row, column) {
  if (column === "command") return element("td", {}, copyButton(row, "copy"));
  if (column === "status" && row.status !== "ok") return element("td", { class: "text failed" }, `${row.status}: ${row.error}`);
  if (column === "system") {
    const pick = element("button", { type: "button", class: "link", "data-key": `row ${row.config_hash}`, "aria-pressed": String(row === state.chosen), onclick: (event) => { event.stopPropagation(); choose(row); } }, swatch(row), row.system);
    return element("td", { class: "text" }, linked(pick, row.system));
  }
  const content = column in DERIVED ? DERIVED[column](row) : text(row, column);
  return element("td", { class: TEXT.has(column) ? "text" : "" }, content);
}
function drawTable() {
  const [by, direction] = state.sort;
  const head = SHOWN_COLUMNS.map(([column, name]) => {
    const attributes = { scope: "col", class: TEXT.has(column) ? "text" : "" };
    if (UNSORTED.has(column)) return element("th", attributes, name);
    const order = by === column ? (direction > 0 ? "ascending" : "descending") : "none";
    const arrow = { ascending: " ↑", descending: " ↓", none: "" }[order];
    const sort = () => { state.sort = [column, by === column ? -direction : TEXT.has(column) ? 1 : -1]; render(); };
    return element("th", { ...attributes, "aria-sort": order }, element("button", { type: "button", "data-key": `sort ${column}`, onclick: sort }, name + arrow));
  });
  const lines = sorted(selected()).map((row) =>
    element("tr", { class: row === state.chosen ? "chosen" : "", onclick: () => choose(row) }, ...SHOWN_COLUMNS.map(([column]) => cell(row, column))));
  byId("table").replaceChildren(element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...lines));
}
function drawReproduce() {
  const row = state.chosen;
  const content = row
    ? element("div", { class: "command" }, element("code", {}, row.command), copyButton(row, "command"))
    : empty("Choose a cell, by its mark or its name in the table, to see the command that runs it again; the last column of the table copies it.");
  byId("reproduce").replaceChildren(content);
}
function drawNetworks() {
  const names = Object.keys(DATA.networks[0]);
  const texts = new Set(["network", "file (SHA-256)", "data", "judged by"]);
  const attributes = (name) => ({ class: texts.has(name) ? "text" : "" });
  const head = names.map((name) => element("th", { ...attributes(name), scope: "col" }, name));
  const lines = DATA.networks.map((network) => element("tr", {}, ...names.map((name) => element("td", attributes(name), shown(network[name])))));
  byId("networks").replaceChildren(element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...lines));
}
