"use strict";
// Numbers: of the types of inputs and outputs, of .npy files, and as they are shown.
const TYPES = {
  float64: Float64Array, float32: Float32Array, float16: Uint16Array, bool: Uint8Array,
  int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array,
};
const isFloat = (dtype) => dtype.startsWith("float");
const elementsOf = (shape) => shape.reduce((a, b) => a * b, 1);
const bytesOfAll = (array) => new Uint8Array(array.buffer, array.byteOffset, array.byteLength);

// IEEE 754 binary16, which not every browser has.
function halfValue(code) {
  const sign = code & 0x8000 ? -1 : 1, exponent = (code >> 10) & 31, part = code & 1023;
  if (exponent === 31) return part ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + part / 1024) * 2 ** (exponent - 15) : part * 2 ** -24);
}
function halfCode(value) {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0, size = Math.abs(value);
  if (Number.isNaN(value)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  let exponent = Math.max(-14, Math.floor(Math.log2(size)));
  while (exponent > -14 && 2 ** exponent > size) exponent -= 1; // log2 is rounded
  while (2 ** (exponent + 1) <= size) exponent += 1;
  const count = size / 2 ** (exponent - 10), down = Math.floor(count), rest = count - down;
  const steps = down + (rest > 0.5 || (rest === 0.5 && down % 2) ? 1 : 0);
  // A carry goes into the exponent; numbers below 2 ** -14 have no leading one.
  return sign + (exponent + 14) * 1024 + steps;
}

// Elements as JavaScript's numbers; beyond 2 ** 53, integers are rounded to these.
function valuesOf(bytes, dtype) {
  const Type = TYPES[dtype], array = new Type(bytes.slice().buffer);
  if (dtype === "float16") return Float64Array.from(array, halfValue);
  return dtype.endsWith("int64") ? Float64Array.from(array, Number) : array;
}

// Bytes of elements of a type that have these values, Numbers or BigInts; says which it cannot hold.
function encoded(values, dtype) {
  if (dtype === "float16") return bytesOfAll(Uint16Array.from(values, (v) => halfCode(Number(v))));
  if (isFloat(dtype)) return bytesOfAll(TYPES[dtype].from(values, Number));
  const big = dtype.endsWith("int64"), out = new TYPES[dtype](values.length), [low, high] = bounds(dtype);
  values.forEach((v, k) => {
    const whole = typeof v === "bigint" || Number.isInteger(v);
    if (!whole || BigInt(v) < low || BigInt(v) > high) throw new Error(`it holds ${v}, which ${dtype} does not have`);
    out[k] = big ? BigInt(v) : Number(v);
  });
  return bytesOfAll(out);
}
function bounds(dtype) {
  if (dtype === "bool") return [0n, 1n];
  const bits = BigInt(dtype.match(/\d+/)[0]);
  return dtype.startsWith("u") ? [0n, (1n << bits) - 1n] : [-(1n << (bits - 1n)), (1n << (bits - 1n)) - 1n];
}

// A file in numpy's format (NEP 1): {dtype, shape, bytes}.
function readNpy(bytes) {
  const magic = String.fromCharCode(...bytes.slice(0, 6)), major = bytes[6];
  if (magic !== "\x93NUMPY" || !(major >= 1 && major <= 3)) throw new Error("it is no .npy file");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), long = major > 1;
  if (bytes.length < 12) throw new Error("it ends too soon");
  const from = long ? 12 : 10, size = long ? view.getUint32(8, true) : view.getUint16(8, true);
  const head = new TextDecoder().decode(bytes.slice(from, from + size));
  const descr = head.match(/'descr': *'([<>|=])([a-z])(\d+)'/), sizes = head.match(/'shape': *\(([^)]*)\)/);
  const kind = descr && { f: "float", i: "int", u: "uint", b: "bool" }[descr[2]];
  const dtype = kind === "bool" ? "bool" : `${kind}${8 * Number(descr?.[3])}`;
  if (!sizes || !TYPES[dtype]) throw new Error("its elements are no numbers that a page reads");
  if (descr[1] === ">") throw new Error("its bytes are in the order of other machines: save it with x.astype(x.dtype.newbyteorder('<'))");
  const shape = sizes[1].split(",").filter((text) => text.trim()).map(Number);
  if (/'fortran_order': *True/.test(head) && shape.length > 1) throw new Error("it is in Fortran's order: save it with numpy.ascontiguousarray(x)");
  const data = bytes.slice(from + size), wanted = elementsOf(shape) * TYPES[dtype].BYTES_PER_ELEMENT;
  if (data.length < wanted) throw new Error(`it ends too soon: its shape needs ${wanted} bytes, it has ${data.length}`);
  return { dtype, shape, bytes: data.slice(0, wanted) };
}

// The bytes of a .npy file for an input: of its shape, but for sizes of 1 in front; of any type that
// holds the same values, floats also where they have to be rounded.
function npyFor(file, input) {
  const { dtype, shape, bytes } = readNpy(file), missing = input.shape.length - shape.length;
  const full = missing > 0 ? [...Array(missing).fill(1), ...shape] : shape;
  if (full.join() !== input.shape.join()) throw new Error(`its shape is ${shapeText(shape)}, but ${input.name} takes ${shapeText(input.shape)}`);
  if (dtype === input.dtype) return bytes;
  const held = new TYPES[dtype](bytes.buffer);
  return encoded(Array.from(held, dtype === "float16" ? halfValue : (v) => v), input.dtype);
}

const shapeText = (shape) => `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
function shown(value) {
  if (typeof value !== "number" || Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value).replace("-", "−");
  return (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-4 ? value.toExponential(3) : value.toPrecision(5)).replace("-", "−");
}
function sizeText(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB"], k = bytes < 1024 ? 0 : Math.min(3, Math.floor(Math.log2(bytes) / 10));
  return `${k ? (bytes / 1024 ** k).toFixed(1) : bytes} ${units[k]}`;
}
const timeText = (ms) => `${ms < 0.01 ? ms.toPrecision(2) : ms < 10 ? ms.toFixed(3) : ms.toFixed(1)} ms`;

// How far values are from others: signal to noise in decibels, the largest difference and where it is,
// and how many elements are infinite or NaN in either, which the other two leave out.
function difference(values, reference) {
  let signal = 0, noise = 0, most = 0, at = 0, wild = 0;
  for (let k = 0; k < values.length; ++k) {
    const error = values[k] - reference[k];
    if (!Number.isFinite(error)) { wild += 1; continue; }
    signal += reference[k] ** 2;
    noise += error ** 2;
    if (Math.abs(error) > most) [most, at] = [Math.abs(error), k];
  }
  return { sqnr: noise ? 10 * Math.log10(signal / noise) : Infinity, most, at, wild };
}
function indexText(flat, shape) {
  const out = [];
  for (const size of [...shape].reverse()) {
    out.unshift(flat % size);
    flat = Math.floor(flat / size);
  }
  return `[${out.join(", ")}]`;
}
