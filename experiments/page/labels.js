// Places for the names of marks: labels.py in this language, number for number.
const LABEL_SIZE = 10, LONGEST = 30, AROUND = 6, ASIDE = 2, SAME = 2.5;
const DIRECTIONS = [[1, 0], [0.866, 0.5], [0.5, 0.866], [0, 1], [-0.5, 0.866], [-0.866, 0.5], [-1, 0], [-0.866, -0.5], [-0.5, -0.866], [0, -1], [0.5, -0.866], [0.866, -0.5]];
function em(c) {
  if (c >= "\u1100" || "mwMW@%…".includes(c)) return 1;
  if ("ijlrtf.,:;|!'()[]/ ".includes(c)) return 0.42;
  return c < "a" && c !== "_" ? 0.72 : 0.64;
}
const textWidth = (text) => LABEL_SIZE * [...text].reduce((sum, c) => sum + em(c), 0);
function shortened(name) {
  const letters = [...name];
  if (letters.length <= LONGEST) return name;
  return `${letters.slice(0, LONGEST / 2 - 3).join("")}…${letters.slice(-(LONGEST / 2 + 2)).join("")}`;
}
const samePlace = (a, b) => Math.abs(a[0] - b[0]) < SAME && Math.abs(a[1] - b[1]) < SAME;
function withCompany(name, at, marks) {
  const more = marks.filter((mark) => samePlace(at, mark)).length - 1;
  return shortened(name) + (more ? ` +${more}` : "");
}
// Boxes are [left, top, right, bottom], segments [x1, y1, x2, y2].
const overlap = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
function crossed(box, [x1, y1, x2, y2]) {
  let first = 0, last = 1;
  for (const [step, low, high] of [[x2 - x1, box[0] - x1, box[2] - x1], [y2 - y1, box[1] - y1, box[3] - y1]]) {
    if (step === 0) {
      if (low >= 0 || high <= 0) return false;
      continue;
    }
    first = Math.max(first, Math.min(low / step, high / step));
    last = Math.min(last, Math.max(low / step, high / step));
  }
  return first < last;
}
function candidates(x, y, width, height) {
  const near = AROUND + ASIDE, middle = y - height / 2;
  const places = [[x + near, middle], [x - near - width, middle], [x + 3, y - near - height], [x + 3, y + near],
    [x - 3 - width, y - near - height], [x - 3 - width, y + near], [x - width / 2, y - near - height], [x - width / 2, y + near]].map((at) => [...at, false]);
  for (const distance of [14, 20, 30, 42, 58, 76])
    for (const [across, down] of DIRECTIONS)
      for (const share of [(1 - across) / 2, 0, 1])
        places.push([x + across * distance - width * share, y + down * distance - height * (1 - down) / 2, true]);
  return places;
}
function placeLabels(names, marks, lines, frame) {
  const taken = marks.map(([x, y]) => [x - AROUND, y - AROUND, x + AROUND, y + AROUND]), barred = [...lines];
  const free = (text, x, y) => {
    const width = textWidth(text), height = LABEL_SIZE + 1;
    for (const [left, top, far] of candidates(x, y, width, height)) {
      const box = [left - ASIDE, top, left + width + ASIDE, top + height];
      if (box[0] < frame[0] || top < frame[1] || box[2] > frame[2] || box[3] > frame[3]) continue;
      if (taken.some((other) => overlap(box, other)) || barred.some((line) => crossed(box, line))) continue;
      const leader = far ? [Math.min(Math.max(x, box[0]), box[2]), Math.min(Math.max(y, box[1]), box[3]), x, y] : null;
      const own = (b) => b[0] <= x && x <= b[2] && b[1] <= y && y <= b[3];
      if (leader && taken.some((b) => !own(b) && crossed(b, leader))) continue;
      return { text, x: left, y: top + LABEL_SIZE - 1, box, leader };
    }
    return null;
  };
  return names.map(([text, x, y]) => {
    const label = free(text, x, y);
    if (label) {
      taken.push(label.box);
      if (label.leader) barred.push(label.leader);
    }
    return label;
  });
}
