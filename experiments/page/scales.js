// From figures to places.
function scale(values, from, to, wantLog) {
  const finite = values.filter(Number.isFinite);
  let low = finite.length ? Math.min(...finite) : 0, high = finite.length ? Math.max(...finite) : 1;
  const log = wantLog && low > 0 && high / low > 6;
  if (log) { low = Math.log10(low); high = Math.log10(high); }
  const pad = (high - low) * 0.07 || Math.abs(high) * 0.1 || 1;
  low -= pad; high += pad;
  const place = (value) => {
    const along = ((log ? Math.log10(value) : value) - low) / (high - low);
    return from + Math.max(0, Math.min(1, along)) * (to - from);
  };
  const inside = (value) => (log ? Math.log10(value) : value) >= low && (log ? Math.log10(value) : value) <= high;
  return { place, inside, ticks: log ? logTicks(low, high) : ticks(low, high) };
}
function ticks(low, high) {
  const raw = (high - low) / 6, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= raw);
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high; t += step) found.push(Number(t.toPrecision(12)));
  return found;
}
function logTicks(low, high) {
  const found = [];
  for (let e = Math.floor(low); e <= high; e++)
    for (const k of high - low > 2.2 ? [1] : [1, 2, 5])
      if (Math.log10(k) + e >= low && Math.log10(k) + e <= high) found.push(k * 10 ** e);
  const every = Math.ceil(found.length / 6);
  return found.filter((_, k) => k % every === 0);
}
function short(value) {
  const size = Math.abs(value);
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (size >= unit) return `${Number((value / unit).toPrecision(4))}${name}`;
  return String(Number(value.toPrecision(4)));
}
