"use strict";
// The card of an input: a file to choose or to drop, what is made of pictures, a board to draw on.
function inputCard(input, k) {
  const picture = pictureLayout(input), options = picture && usualOptions(input);
  const preview = element("canvas", { class: "preview", hidden: "" });
  let source = null, named = "", turn = 0;
  const show = (pixels) => {
    [preview.width, preview.height, preview.hidden] = [pixels.width, pixels.height, false];
    preview.getContext("2d").putImageData(pixels, 0, 0);
  };
  // What the options say anew of a picture; arrays are numbers already.
  const fromPicture = () => {
    if (!source) return;
    try {
      const pixels = scaledPixels(source, input, options.crop), bytes = pictureBytes(pixels.data, input, options);
      show(pixels);
      give(k, bytes, named);
    } catch (error) { refuse(k, named, error); }
  };
  const taken = (chosen, what) => {
    turn += 1;
    [source, named, preview.hidden] = [chosen, what, true];
    fromPicture();
  };
  const shows = (bytes) => {
    turn += 1;
    [source, preview.hidden] = [null, true];
    if (picture && bytes) show(pixelsOf(bytes, input, usualOptions(input)));
  };
  // Of several files, the last one counts, however long each takes to be read.
  const take = async (file) => {
    const own = ++turn;
    try {
      const bytes = new Uint8Array(await file.arrayBuffer());
      const array = !picture || file.name.endsWith(".npy") || bytes[0] === 0x93;
      const bitmap = array ? null : await createImageBitmap(file).catch(() => null);
      if (own !== turn) return;
      if (!array && !bitmap) throw new Error("this browser reads neither a picture nor a .npy file in it");
      if (bitmap) return taken(bitmap, file.name);
      const made = npyFor(bytes, input);
      shows(made);
      give(k, made, file.name);
    } catch (error) {
      if (own !== turn) return;
      shows(null);
      refuse(k, file.name, error);
    }
  };
  const chooser = element("input", { type: "file", accept: picture ? "image/*,.npy" : ".npy", onchange: (event) => event.target.files[0] && take(event.target.files[0]) });
  const forget = () => { chooser.value = ""; }; // what it names is not what is run
  const kinds = picture ? `A picture (scaled to ${picture.width} × ${picture.height}, ${picture.channels === 1 ? "gray" : "in colour"}) or a .npy file` : "A .npy file";
  const parts = [
    element("h3", {}, input.name, " ", element("small", {}, `${input.dtype} ${shapeText(input.shape)}`)),
    element("label", {}, element("span", {}, `${kinds}; choose it, or drop it here.`), chooser), preview];
  if (picture?.channels === 1 && Math.max(picture.height, picture.width) <= 64) {
    const board = drawingBoard((canvas) => { forget(); taken(canvas, "a drawing"); });
    const clear = element("button", { type: "button", onclick: () => board.clear() }, "Clear");
    parts.push(element("div", { class: "drawing" }, element("span", {}, "Or draw:"), board.canvas, clear));
  }
  if (picture) parts.push(pictureOptions(options, picture, fromPicture));
  const card = element("section", { class: "card" }, ...parts);
  card.addEventListener("dragover", (event) => { event.preventDefault(); card.classList.add("over"); });
  card.addEventListener("dragleave", () => card.classList.remove("over"));
  card.addEventListener("drop", (event) => {
    event.preventDefault();
    card.classList.remove("over");
    forget();
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  return { card, shows, forget };
}

// The rule by which pixels become numbers, which readers may change.
function pictureOptions(options, { channels }, changed) {
  const tick = (text, set, on) => {
    const box = element("input", { type: "checkbox", onchange: (event) => { set(event.target.checked); changed(); } });
    box.checked = on;
    return element("label", {}, box, text);
  };
  const rule = element("summary");
  const told = () => {
    const [mean, std] = [options.mean, options.std].map((text) => (text.includes(",") ? `[${text}]` : text));
    rule.textContent = `Each number is (pixel / ${options.divide} − ${mean}) / ${std}; change that`;
  };
  const field = (name) => element("label", {}, name, element("input", {
    value: options[name], size: 18, "data-option": name,
    onchange: (event) => { options[name] = event.target.value; told(); changed(); } }));
  told();
  const parts = [
    rule,
    field("divide"), field("mean"), field("std"),
    tick("invert: 255 − pixel", (on) => { options.invert = on; }, options.invert),
    tick("crop in the middle instead of stretching", (on) => { options.crop = on; }, options.crop)];
  if (channels === 3) parts.push(tick("blue first", (on) => { options.order = on ? "bgr" : "rgb"; }, options.order === "bgr"));
  return element("details", { class: "options" }, ...parts);
}
