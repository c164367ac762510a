// Tables that are on the page already: headings explain and sort. What is missing comes last.
const isText = (value) => typeof value === "string" && !/^-?inf$/.test(value);
function sortable(id, valueOf) {
  const table = byId(id), body = table.tBodies[0], lines = [...body.rows], heads = [...table.tHead.rows[0].cells];
  let by = null, direction = 1;
  const sortBy = (head) => {
    const column = head.dataset.column, text = head.classList.contains("text");
    direction = by === column ? -direction : text ? 1 : -1;
    by = column;
    const keyed = lines.map((line, k) => [line, valueOf(k, column)]);
    const key = (value) => (isText(value) ? value.toLowerCase() : number(value));
    keyed.sort(([, a], [, b]) => known(b) - known(a) || (known(a) && (key(a) < key(b) ? -direction : key(a) > key(b) ? direction : 0)));
    body.append(...keyed.map(([line]) => line));
    for (const other of heads) if (other.ariaSort) other.setAttribute("aria-sort", other !== head ? "none" : direction > 0 ? "ascending" : "descending");
  };
  return heads.map((head) => {
    const title = head.textContent, tip = head.title;
    head.removeAttribute("title");
    if ("sorts" in head.dataset) {
      head.setAttribute("aria-sort", "none");
      head.replaceChildren(tipFor(element("button", { type: "button", "data-key": `sort ${id} ${head.dataset.column}`, "aria-description": tip, onclick: () => sortBy(head) }, title), tip));
    } else {
      head.replaceChildren(tipFor(element("span", { tabindex: 0, "aria-description": tip }, title), tip));
    }
    return { key: head.dataset.column, title, unit: head.dataset.unit };
  });
}
