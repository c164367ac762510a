// Runs functions of a page's scripts in Node: reads [[name, arguments], ...] as JSON, {"hex": text}
// standing for bytes, and prints the results, or the errors.
"use strict";
const fs = require("fs"), vm = require("vm"), path = require("path");
const folder = process.argv[2];
for (const file of ["numbers.js", "pictures.js", "results.js"]) {
  vm.runInThisContext(fs.readFileSync(path.join(folder, file), "utf8").replace('"use strict";', ""));
}
const read = (key, value) => (value?.hex === undefined ? value : new Uint8Array(Buffer.from(value.hex, "hex")));
const write = (value) => {
  if (value instanceof Uint8Array) return { hex: Buffer.from(value).toString("hex") };
  if (ArrayBuffer.isView(value)) return Array.from(value, write);
  if (typeof value === "number" && !Number.isFinite(value)) return String(value);
  if (value && typeof value === "object" && !Array.isArray(value)) return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, write(v)]));
  return value;
};
const calls = JSON.parse(fs.readFileSync(0, "utf8"), read);
const out = calls.map(([name, given]) => {
  try { return { value: write(vm.runInThisContext(name)(...given)) }; }
  catch (error) { return { error: error.message }; }
});
console.log(JSON.stringify(out));
