"use strict";
// What runs programs: a worker of the page, so that the page answers while they run. A program is a
// WebAssembly module, its weights, and what is said of it: `arena`, bytes of memory between, and
// `inputs` and `outputs`, bytes of each.
const ALIGN = 64, PAGE = 65536;
const up = (size) => Math.ceil(size / ALIGN) * ALIGN;

function bytesOf(base64) {
  const text = base64.trim(), ends = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
  const out = new Uint8Array((text.length / 4) * 3 - ends), step = 1 << 16;
  for (let from = 0, at = 0; from < text.length; from += step) {
    const part = atob(text.slice(from, from + step));
    for (let k = 0; k < part.length; ++k) out[at++] = part.charCodeAt(k);
  }
  return out;
}

class Program {
  constructor(facts, wasm, weights) {
    this.facts = facts;
    this.module = new WebAssembly.Module(wasm);
    this.weights = weights;
    this.exports = null;
  }

  // A memory of its own: what the module uses itself, weights, the arena, arrays a little apart,
  // the tables of where these are.
  start() {
    const { exports } = new WebAssembly.Instance(this.module, {}), { inputs, outputs, arena } = this.facts;
    const weights = up(exports.__heap_base.value), between = up(weights + this.weights.length);
    let at = between + up(Math.max(arena, 1));
    this.places = [...inputs, ...outputs].map((size) => {
      const place = at;
      at += up(size + 1);
      return place;
    });
    const dims = at + Math.ceil(this.places.length / 2) * 8, end = dims + 8;
    const lacking = end - exports.memory.buffer.byteLength;
    if (lacking > 0) exports.memory.grow(Math.ceil(lacking / PAGE));
    new Uint8Array(exports.memory.buffer, weights, this.weights.length).set(this.weights);
    const tables = new DataView(exports.memory.buffer);
    this.places.forEach((place, k) => tables.setUint32(at + 4 * k, place, true));
    this.call = [at, at + 4 * inputs.length, dims, weights, between];
    this.exports = exports;
  }

  // The bytes of the outputs. What has trapped begins anew the next time.
  run(given) {
    if (!this.exports) this.start();
    const { memory } = this.exports, { inputs, outputs } = this.facts;
    given.forEach((bytes, k) => new Uint8Array(memory.buffer, this.places[k], inputs[k]).set(bytes));
    this.again();
    return outputs.map((size, k) => new Uint8Array(memory.buffer, this.places[inputs.length + k], size).slice());
  }

  // The same inputs once more.
  again() {
    try {
      const failed = this.exports.net_run(...this.call);
      if (failed) throw new Error(`it returns ${failed}`);
    } catch (error) {
      this.exports = null;
      throw error;
    }
  }
}

// The median of a call's milliseconds, once the browser has compiled what is called often: of the
// later half of what fits into `budget` ms. Clocks of browsers go in steps of 0.1 ms, so that quick
// programs are called several times between two looks at it.
function timed(program, budget) {
  const times = [], begun = performance.now();
  let count = 1, passed = 0;
  do {
    const from = performance.now();
    for (let k = 0; k < count; ++k) program.again();
    const now = performance.now();
    if (now - from < 5 && count < 1e6) count *= 2;
    else times.push((now - from) / count);
    passed = now - begun;
  } while (passed < budget || (times.length < 3 && passed < 5 * budget));
  const late = times.slice(Math.floor(times.length / 2)).sort((a, b) => a - b), half = late.length >> 1;
  const milliseconds = late.length % 2 ? late[half] : (late[half - 1] + late[half]) / 2;
  return { milliseconds, runs: late.length * count };
}

const programs = [];
const tasks = {
  load({ facts, wasm, weights }) {
    programs.push(null); // what does not load keeps its number
    programs[programs.length - 1] = new Program(facts, bytesOf(wasm), bytesOf(weights));
    return {};
  },
  run({ program, inputs }) { return { outputs: programs[program].run(inputs) }; },
  time({ program, budget }) { return timed(programs[program], budget); },
};
self.onmessage = ({ data }) => {
  let answer;
  try { answer = tasks[data.task](data); }
  catch (error) { answer = { error: `${error}` }; }
  self.postMessage({ id: data.id, ...answer });
};
