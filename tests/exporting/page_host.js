// Runs the programs of a page in Node, as the page's worker does; prints outputs in hexadecimal.
"use strict";
const fs = require("fs"), vm = require("vm");
const page = fs.readFileSync(process.argv[2], "utf8");
const part = (id) => page.match(new RegExp(`<script id="${id}"[^>]*>([^]*?)</script>`))[1];
const data = JSON.parse(part("data")), answers = [];
globalThis.self = { postMessage: (answer) => answers.push(answer) };
vm.runInThisContext(part("machine"));
const send = (message) => {
  self.onmessage({ data: message });
  return answers.pop();
};
const inputs = data.inputs.map((_, k) => new Uint8Array(Buffer.from(part(`example0_${k}`), "base64")));
const out = data.programs.map(({ arena }, program) => {
  const facts = { arena, inputs: data.inputs.map((i) => i.bytes), outputs: data.outputs.map((o) => o.bytes) };
  const loaded = send({ id: 1, task: "load", facts, wasm: part(`wasm${program}`), weights: part(`weights${program}`) });
  const twice = [0, 1].map(() => send({ id: 2, task: "run", program, inputs }));
  const time = send({ id: 3, task: "time", program, budget: 20 });
  const hex = ({ outputs }) => outputs?.map((bytes) => Buffer.from(bytes).toString("hex"));
  return { error: loaded.error ?? twice[0].error ?? "", outputs: twice.map(hex), time };
});
console.log(JSON.stringify(out));
