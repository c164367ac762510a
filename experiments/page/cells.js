// The table of cells, and the commands that run them again.
const LINES = new Map(ROWS.map((row, k) => [row, byId("table").tBodies[0].rows[k]]));
const WORDS = new Map(ROWS.map((row) => [row, `${row.model} ${row.system} ${LINES.get(row).textContent} ${row.status}`.toLowerCase()]));
const commandOf = (row) => DATA.command + row.config_hash.slice(0, 12);
// What a column that is none of the file sorts by.
const SORTED_BY = { interval: "metric_drop_low", speed_interval: "speedup_low" };
const HEADS = sortable("table", (k, column) => (column === "status" ? `${ROWS[k].status}: ${ROWS[k].error}` : ROWS[k][SORTED_BY[column] ?? column]));
if (DATA.compared) sortable("compared", (k, column) => DATA.compared[column][k]);
if (DATA.tokens) sortable("tokens", (k, column) => DATA.tokens[column][k]);
const networks = [...byId("networks").tBodies[0].rows];
sortable("networks", (k, column) => {
  const row = ROWS.find((one) => one.model === networks[k].cells[0].textContent), at = [...byId("networks").tHead.rows[0].cells].findIndex((head) => head.dataset.column === column);
  return row[column] ?? networks[k].cells[at].textContent;
});
for (const term of document.querySelectorAll("#provenance dt")) {
  const tip = term.title;
  term.removeAttribute("title");
  term.setAttribute("tabindex", 0);
  tipFor(term, tip);
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
  const button = element("button", { type: "button", class: "small", title: commandOf(row), "data-key": `${key} ${row.config_hash}`, "aria-label": `Copy the command that runs ${row.model}, ${row.system} again`,
    onclick: (event) => { event.stopPropagation(); copyText(commandOf(row), button); } }, "Copy");
  return button;
}
for (const [row, line] of LINES) {
  line.addEventListener("click", () => choose(row));
  const name = line.cells[1];
  const pick = element("button", { type: "button", class: "link", "data-key": `row ${row.config_hash}`, onclick: (event) => { event.stopPropagation(); choose(row); } }, ...name.childNodes);
  name.replaceChildren(linked(pick, row.system));
  line.cells[line.cells.length - 1].replaceChildren(copyButton(row, "copy"));
}
// A figure in the table shows its exact value.
byId("table").addEventListener("mouseover", (event) => {
  const cell = event.target.closest("tbody td"), row = cell && [...LINES].find(([, line]) => line === cell.parentNode)?.[0];
  if (!row || cell.colSpan > 1) return;
  const head = HEADS[cell.cellIndex], exact = row[head.key];
  if (known(exact) && !isText(exact)) showTip(cell, `${head.title}: ${exact}${head.unit && head.unit !== "as metric" ? ` ${head.unit}` : ""}`);
  else if (head.key === "disturbed" && exact) showTip(cell, row.disturbance);
});
byId("table").addEventListener("mouseout", hide);
function drawTable() {
  const wanted = new Set(selected());
  for (const [row, line] of LINES) {
    line.hidden = !wanted.has(row);
    line.classList.toggle("chosen", row === state.chosen);
    line.cells[1].firstChild.setAttribute("aria-pressed", String(row === state.chosen));
  }
}
function drawReproduce() {
  const row = state.chosen;
  const content = row
    ? element("div", { class: "command" }, element("code", {}, commandOf(row)), copyButton(row, "command"))
    : empty("Choose a cell, by its mark or its name in the table, to see the command that runs it again; the last column of the table copies it.");
  byId("reproduce").replaceChildren(content);
}
