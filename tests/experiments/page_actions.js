// What a reader does with the report page; `seen` is what they would see.
"use strict";
{
const seen = {};
const count = (selector) => document.querySelectorAll(selector).length;
const press = (selector) => document.querySelector(selector).click();
seen.start = { marks: count("#pareto .mark"), lines: count("#table tbody tr"), ranges: count("#ranges svg"), bars: count("#layers rect") };
press('#models button[data-name="mnist_mlp"]');
seen.without_mlp = { marks: count("#pareto .mark"), lines: count("#table tbody tr"), panels: count("#pareto figure") };
press('#schemes button[data-name="int8_channel"]');
seen.without_int8 = { marks: count("#pareto .mark"), lines: count("#table tbody tr") };
press("#reset");
const mark = document.querySelector("#pareto .mark");
mark.focus();
seen.tip = document.getElementById("tip").textContent;
mark.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
seen.chosen = { lines: count("#table tbody tr"), command: document.querySelector("#reproduce code").textContent,
  focused: document.activeElement.classList.contains("mark"), status: document.getElementById("status").textContent };
document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
document.querySelectorAll("#table th button")[2].click();
seen.sorted = [...document.querySelectorAll("#table tbody tr")].map((line) => line.cells[2].textContent);
const up = document.getElementById("y");
up.value = "sqnr_db";
up.dispatchEvent(new Event("change"));
seen.sqnr = { marks: count("#pareto .mark"), label: document.querySelector("#pareto svg").getAttribute("aria-label") };
const paper = getComputedStyle(document.body).backgroundColor;
press("#theme");
seen.theme_changes = paper !== getComputedStyle(document.body).backgroundColor;
seen.names = [...document.querySelectorAll("figcaption")].map((c) => c.textContent);
seen.requests = performance.getEntriesByType("resource").map((r) => r.name);
seen.wider_than_window = document.documentElement.scrollWidth > innerWidth;
const out = document.createElement("pre");
out.id = "seen";
out.textContent = JSON.stringify(seen);
document.body.append(out);
}
