"use strict";
// Pictures become inputs: scaled to the network's size, gray or in three colours, each number
// (pixel / divide - mean) / std.

const isPlanes = (channels, height, width) => (channels === 1 || channels === 3) && height > 1 && width > 1;
// Where the numbers of a picture are in an input; null if it takes none.
function pictureLayout({ shape }) {
  if (shape.length !== 4 || shape[0] !== 1) return null;
  const first = isPlanes(shape[1], shape[2], shape[3]);
  if (!first && !isPlanes(shape[3], shape[1], shape[2])) return null;
  const [channels, height, width] = first ? shape.slice(1) : [shape[3], shape[1], shape[2]];
  return { channels, height, width, at: first ? (c, k) => c * height * width + k : (c, k) => k * channels + c };
}

// What is done to pixels unless a reader says otherwise: integers take them as they are, and what is
// said of three colours says nothing of gray.
function usualOptions(input) {
  const said = DATA.pictures, three = `${said.mean}${said.std}`.includes(",");
  const plain = { divide: isFloat(input.dtype) ? "255" : "1", mean: "0", std: "1", order: "rgb" };
  const fits = isFloat(input.dtype) && (!three || pictureLayout(input).channels === 3);
  return { ...(fits ? said : plain), invert: false, crop: false };
}

// One number for all channels, or one for each.
function numbersIn(text, channels, what) {
  const found = text.split(",").map((part) => (part.trim() ? Number(part) : NaN));
  const fits = found.every(Number.isFinite) && (found.length === 1 || found.length === channels);
  if (!fits) throw new Error(`${what} must be one number${channels > 1 ? `, or ${channels} with commas between them` : ""}`);
  return Array.from({ length: channels }, (_, c) => found[found.length === 1 ? 0 : c]);
}

// Bytes of an input, of pixels (red, green, blue, alpha) in rows from the top.
function pictureBytes(pixels, input, options) {
  const { channels, height, width, at } = pictureLayout(input);
  const [divide] = numbersIn(options.divide, 1, "divide"), mean = numbersIn(options.mean, channels, "mean");
  const std = numbersIn(options.std, channels, "std");
  if (!divide || std.some((s) => !s)) throw new Error("divide and std must not be 0");
  const values = new Float64Array(channels * height * width);
  for (let k = 0; k < height * width; ++k) {
    const [r, g, b] = options.invert ? [0, 1, 2].map((c) => 255 - pixels[4 * k + c]) : pixels.slice(4 * k, 4 * k + 3);
    const gray = r === g && g === b ? r : 0.299 * r + 0.587 * g + 0.114 * b;
    const seen = channels === 1 ? [gray] : options.order === "bgr" ? [b, g, r] : [r, g, b];
    seen.forEach((pixel, c) => { values[at(c, k)] = (pixel / divide - mean[c]) / std[c]; });
  }
  if (isFloat(input.dtype)) return encoded(values, input.dtype);
  const [low, high] = bounds(input.dtype).map(Number);
  return encoded(values.map((v) => Math.min(high, Math.max(low, Math.round(v)))), input.dtype);
}

// The picture that an array for an input shows, as far as these options fit what it was made with.
function pixelsOf(bytes, input, options) {
  const { channels, height, width, at } = pictureLayout(input), values = valuesOf(bytes, input.dtype);
  const [divide] = numbersIn(options.divide, 1, "divide"), mean = numbersIn(options.mean, channels, "mean");
  const std = numbersIn(options.std, channels, "std"), out = new ImageData(width, height);
  for (let k = 0; k < height * width; ++k) {
    const seen = Array.from({ length: channels }, (_, c) => (values[at(c, k)] * std[c] + mean[c]) * divide);
    if (channels === 3 && options.order === "bgr") seen.reverse();
    const [r, g, b] = channels === 1 ? [seen[0], seen[0], seen[0]] : seen;
    out.data.set([r, g, b].map((v) => Math.round(options.invert ? 255 - v : v)), 4 * k); // clamped
    out.data[4 * k + 3] = 255;
  }
  return out;
}

// The pixels of a picture or canvas in the size of an input. Transparent parts count as white.
function scaledPixels(source, input, crop) {
  const { height, width } = pictureLayout(input), canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  const scale = crop ? Math.min(source.width / width, source.height / height) : 0;
  const [w, h] = crop ? [scale * width, scale * height] : [source.width, source.height];
  context.drawImage(source, (source.width - w) / 2, (source.height - h) / 2, w, h, 0, 0, width, height);
  return context.getImageData(0, 0, width, height);
}

// A canvas to draw on with a pen or mouse, white on black as digits are; `drawn` is told of each line.
const PEN = 22, EDGE = 280;
function drawingBoard(drawn) {
  const canvas = element("canvas", { width: EDGE, height: EDGE, class: "board", "aria-label": "Draw here" });
  const context = canvas.getContext("2d");
  let from = null;
  const place = ({ offsetX, offsetY }) => [offsetX, offsetY].map((v) => (v * EDGE) / canvas.clientWidth);
  const clear = () => {
    context.fillStyle = "#000";
    context.fillRect(0, 0, EDGE, EDGE);
  };
  const line = (event) => {
    const to = place(event);
    Object.assign(context, { strokeStyle: "#fff", lineWidth: PEN, lineCap: "round" });
    context.beginPath();
    context.moveTo(...from);
    context.lineTo(...to);
    context.stroke();
    from = to;
  };
  clear();
  canvas.addEventListener("pointerdown", (event) => {
    from = place(event);
    canvas.setPointerCapture(event.pointerId);
    line(event);
  });
  canvas.addEventListener("pointermove", (event) => from && line(event));
  canvas.addEventListener("pointerup", (event) => {
    line(event);
    from = null;
    drawn(canvas);
  });
  canvas.addEventListener("pointercancel", () => { from = null; });
  return { canvas, clear };
}
