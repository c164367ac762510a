"use strict";
// What readers choose becomes inputs; inputs, once all are there, are run.
const state = { given: DATA.inputs.map(() => null), run: 0, ready: false };
// What has been computed, for other programs: each output as bytes, with times once these are known.
const dtypelab = { inputs: [], programs: [], status: "" };
window.dtypelab = dtypelab;

function say(text, failed = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("failed", failed);
  dtypelab.status = text;
}
const reasonOf = (error) => String(error?.message ?? error).replace(/\.$/, "");

// Programs run in a worker, which answers in order.
const waiting = new Map();
let worker = null, asked = 0;
const ask = (message) => new Promise((resolve) => {
  waiting.set(++asked, resolve);
  worker.postMessage({ ...message, id: asked });
});
async function load() {
  worker = new Worker(URL.createObjectURL(new Blob([byId("machine").textContent], { type: "text/javascript" })));
  worker.onmessage = ({ data }) => {
    waiting.get(data.id)(data);
    waiting.delete(data.id);
  };
  worker.onerror = (event) => say(`This browser does not start the program: ${event.message || "no worker"}.`, true);
  for (const [p, { name, arena }] of DATA.programs.entries()) {
    const facts = { arena, inputs: DATA.inputs.map((i) => i.bytes), outputs: DATA.outputs.map((o) => o.bytes) };
    const [wasm, weights] = ["wasm", "weights"].map((part) => byId(`${part}${p}`));
    const { error } = await ask({ task: "load", facts, wasm: wasm.textContent, weights: weights.textContent });
    [wasm, weights].forEach((node) => node.remove());
    if (error) return say(`This browser does not run ${name}: ${reasonOf(error)}.`, true);
  }
  state.ready = true;
  // A reader may have been quicker, also with what is no input.
  if (byId("status").classList.contains("failed")) return null;
  return DATA.examples.length && !state.given.some(Boolean) ? giveExample(0) : run();
}

const missing = () => DATA.inputs.filter((_, k) => !state.given[k]).map((i) => i.name);
const missingText = () => `Choose ${missing().join(" and ")}, and the network runs.`;

// Run what is given; of several calls, only the last one shows anything.
async function run() {
  if (!state.ready) return;
  const own = ++state.run;
  if (missing().length) return say(missingText());
  say("Running…");
  byId("results").classList.add("old");
  const inputs = state.given.map((given) => given.bytes), answers = [];
  for (const program of DATA.programs.keys()) answers.push(await ask({ task: "run", program, inputs }));
  if (own !== state.run) return;
  Object.assign(dtypelab, { inputs, programs: answers.map(recorded) });
  showResults(answers);
  byId("results").classList.remove("old");
  const failed = answers.map(({ error }, p) => (error ? `${DATA.programs[p].name} stopped: ${reasonOf(error)}.` : "")).filter(Boolean);
  if (failed.length) return say(failed.join(" "), true);
  say("Measuring…");
  // In turns, so that what else the machine does, and what the browser compiles meanwhile, is shared.
  for (let turn = 0; turn < DATA.rounds; ++turn) {
    for (const program of DATA.programs.keys()) {
      const time = await ask({ task: "time", program, budget: DATA.budget });
      if (own !== state.run) return;
      if (time.error) return say(`${DATA.programs[program].name} stopped: ${reasonOf(time.error)}.`, true);
      dtypelab.programs[program].milliseconds = time.milliseconds;
      const runs = time.runs === 1 ? "one run" : `median of ${time.runs.toLocaleString("en-US")} runs`;
      document.querySelector(`[data-time="${program}"]`).textContent = `${timeText(time.milliseconds)}, ${runs}`;
    }
  }
  say(`Done, with ${[...new Set(state.given.map((given) => given.what))].join(", ")}.`);
}
function recorded({ outputs, error }, p) {
  const made = outputs?.map((bytes, o) => ({ ...DATA.outputs[o], bytes })) ?? null;
  return { name: DATA.programs[p].name, outputs: made, error: error ?? "", milliseconds: null };
}

function give(k, bytes, what) {
  state.given[k] = { bytes, what };
  return run();
}
// What cannot be taken leaves the input without one, so that nothing old looks like its result.
function refuse(k, what, error) {
  state.given[k] = null;
  state.run += 1;
  byId("results").replaceChildren();
  Object.assign(dtypelab, { inputs: [], programs: [] });
  say(`${what} is no input: ${reasonOf(error)}.`, true);
}
function giveExample(e) {
  DATA.inputs.forEach((input, k) => {
    state.given[k] = { bytes: base64Bytes(byId(`example${e}_${k}`).textContent), what: `example ${e + 1}` };
    cards[k].forget();
    cards[k].shows(state.given[k].bytes);
  });
  return run();
}
const base64Bytes = (text) => Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));

const cards = DATA.inputs.map(inputCard);
byId("inputs").replaceChildren(...cards.map((c) => c.card));
byId("examples").replaceChildren(...DATA.examples.map((_, e) => element("button", { type: "button", onclick: () => giveExample(e) }, `Example ${e + 1}`)));
// What is dropped beside a card would be opened in the place of the page.
for (const event of ["dragover", "drop"]) window.addEventListener(event, (dropped) => dropped.preventDefault());
document.documentElement.classList.add("running");
load().catch((error) => say(`This browser does not start the program: ${reasonOf(error)}.`, true));
