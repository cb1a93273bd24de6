/* ---- axes: {kind, from, to, name, format}; kind is linear, log (of a base), date (UTC) or elapsed, both in microseconds ---- */
const pen = document.createElement("canvas").getContext("2d");
pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
const wide = text => Math.ceil(pen.measureText(text).width * 1.04);
const multiples = (step, from, to) => {
  const first = Math.ceil(from / step - 1e-9);
  return Array.from({length: Math.max(0, Math.floor(to / step + 1e-9) - first + 1)}, (_, i) => (first + i) * step);
};
function linearTicks(from, to, wanted) {
  const raw = (to - from || 1) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  return multiples([1, 2, 2.5, 5, 10].find(each => each * power >= raw * .999) * power, from, to);
}
/* Powers of the base, every other one where there is no room for each, and between powers of ten what fits. */
function logTicks(from, to, wanted, base) {
  const [low, high] = [from, to].map(each => Math.log(each) / Math.log(base));
  for (let apart = 1; ; apart++) for (const set of base === 10 && apart === 1 ? [[1, 2, 5], [1, 3], [1]] : [[1]]) {
    const ticks = multiples(apart, Math.floor(low) - apart, high).flatMap(power => set.map(each => each * base ** power))
      .filter(tick => tick >= from * .999 && tick <= to * 1.001);
    if (ticks.length <= Math.max(wanted, 2)) return ticks;
  }
}
const TIME_STEPS = [...[1, 2, 5].flatMap(n => [n, 10 * n, 100 * n, 1e3 * n, 1e4 * n, 1e5 * n]),
  ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000, 31536000].map(s => s * 1e6)].sort((a, b) => a - b);
const timeStep = (from, to, wanted) => TIME_STEPS.find(step => (to - from) / step <= wanted) ?? 1e15;
function dateText(us, step) {
  return step >= 8.64e10 ? iso(us).slice(5, 10) : step >= 6e7 ? iso(us).slice(11, 16) : step >= 1e6 ? iso(us).slice(11, 19)
    : step >= 1e3 ? iso(us).slice(17, 23) : `${us % 1e6} µs`;
}
function axis({kind = "linear", base = 10, from, to, name = "", format = short, at, text}) {
  const bend = kind === "log" ? Math.log : x => x, span = bend(to) - bend(from);
  const own = {from, to, name, format, share: value => span > 0 ? (bend(Math.max(value, kind === "log" ? from : -Infinity)) - bend(from)) / span : .5};
  if (kind === "log") own.ticks = wanted => at ?? logTicks(from, to, wanted, base);
  if (kind === "linear") own.ticks = wanted => linearTicks(from, to, wanted);
  if (kind === "elapsed") own.ticks = wanted => multiples(timeStep(from, to, wanted), 0, to - from).map(us => from + us);
  if (kind === "elapsed") own.format = us => time(us - from);
  if (kind !== "date") return {...own, text: text ?? own.format};
  const [first, last] = [iso(from), iso(to)], brief = to - from < 6e7;
  return {...own, ticks: wanted => multiples(timeStep(from, to, wanted), from, to), format: (us, wanted) => dateText(us, timeStep(from, to, wanted)),
    name: `${first.slice(0, 10)}${first.slice(0, 10) === last.slice(0, 10) ? "" : ` to ${last.slice(0, 10)}`}${brief ? ` ${first.slice(11, 16)}` : ""}, UTC`,
    text: text ?? (us => brief ? `${moment(us)}${iso(us).slice(19, 23)}` : moment(us))};
}
function drawHorizontal(svg, axis, left, right, bottom) {
  const wanted = Math.max(2, Math.floor((right - left) / 80));
  svg.append(shape("line", {class: "axis", x1: left, x2: right, y1: bottom, y2: bottom}));
  let free = -Infinity;
  for (const value of axis.ticks(wanted)) {
    const text = axis.format(value, wanted), half = wide(text) / 2, center = left + (right - left) * axis.share(value);
    if (center - half < free || center + half > right + 30) continue;
    free = center + half + 10;
    svg.append(shape("line", {class: "axis", x1: center, x2: center, y1: bottom, y2: bottom + 4}),
      shape("text", {x: center, y: bottom + 18, "text-anchor": "middle"}, text));
  }
  svg.append(shape("text", {class: "name", x: right, y: bottom + 34, "text-anchor": "end"}, axis.name));
}

/* ---- looks: which of fourteen marks, which of eight colours, solid or dashed ---- */
const MARKS = [
  "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z", "M-3.6-3.6H3.6V3.6H-3.6Z", "M0-5L5 0L0 5L-5 0Z", "M0-4.8L4.8 3.6H-4.8Z",
  "M0 4.8L4.8-3.6H-4.8Z", "M-1.6-4.6H1.6V-1.6H4.6V1.6H1.6V4.6H-1.6V1.6H-4.6V-1.6H-1.6Z", "M0-5.4L1.5-1.6L5.4-1.6L2.4 1L3.4 4.8L0 2.6L-3.4 4.8L-2.4 1L-5.4-1.6L-1.5-1.6Z",
];
const DASHES = ["", "7 4", "2 4", "10 3 2 3"];
/* The look of the i-th of several lines: fourteen in a row differ in their marks, and thirty-two in colour or dash. */
const lookOf = i => ({color: `var(--series-${i % 8 + 1})`, dash: DASHES[Math.floor(i / 8) % 4], mark: i % 14});
/* The look of what lines cannot pass: a band that is seen beside a line that runs along it. */
const BOUND = {color: "var(--ink)", dash: "5 4", band: true};
function mark({color, mark: number}, x, y) {
  return number === undefined ? [] : [shape("path", {class: "mark", "data-mark": number, d: MARKS[number % 7], transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`,
    style: {fill: number < 7 ? color : "var(--card)", stroke: number < 7 ? "var(--card)" : color}})];
}
const stroke = ({color, dash, thin}) => ({stroke: color, "stroke-dasharray": dash || "none", "stroke-width": thin ? 1.2 : 1.9});
const sample = ({look, kind}) => shape("svg", {class: "sample", width: 26, height: 12, viewBox: "0 0 26 12", "aria-hidden": "true"},
  kind === "bar" ? shape("rect", {x: 8, y: 1, width: 10, height: 10, rx: 3, style: {fill: look.color}})
    : [shape("path", {class: "curve", d: "M0 6H26", style: stroke(look)}), mark(look, 13, 6)]);

/* ---- plots: drawn at the width that they have, and again when it changes ---- */
function plot(box, id, label, height, draw) {
  const holder = element("div", {class: "plot", id});
  box.append(holder);
  let drawn = 0;
  const redraw = () => {
    drawn = Math.floor(holder.clientWidth);
    if (!drawn) return;
    const svg = shape("svg", {width: drawn, height, viewBox: `0 0 ${drawn} ${height}`, role: "img", "aria-label": label});
    holder.replaceChildren(svg);
    draw(svg, drawn, height);
  };
  redraw();
  new ResizeObserver(() => { if (Math.floor(holder.clientWidth) !== drawn) redraw(); }).observe(holder);
  return {holder, redraw};
}

const known = value => value !== null && value !== undefined;
/* Bars on top of what is in `bases`, one for each place. */
function drawBars(group, {values, look}, {starts, ends, toY}, bases) {
  values.forEach((value, i) => {
    if (!value) return;
    const slot = ends[i] - starts[i], width = Math.max(1, Math.min(slot - Math.min(slot * .22, 3), 90)), y = toY(bases[i] + value);
    group.append(shape("rect", {x: ((starts[i] + ends[i] - width) / 2).toFixed(1), width: width.toFixed(1), y: y.toFixed(1),
      height: Math.max(toY(bases[i]) - y, .8).toFixed(1), rx: Math.min(2, width / 3), style: {fill: look.color}}));
    bases[i] += value;
  });
}
/* A line through the values, or one that holds each until the next place; with a gap where nothing is known. */
function drawCurve(group, {values, look, kind}, {starts, ends, toY, bottom}, [turn, turns]) {
  const stepped = kind === "step" || kind === "area";
  let path = "", area = "", open = null;
  const close = i => { if (open !== null) area += `V${bottom}H${starts[open].toFixed(1)}Z`; open = i; };
  values.forEach((value, i) => {
    if (!known(value)) return close(null);
    const [from, to, level] = [starts[i], ends[i], toY(value)].map(each => each.toFixed(1));
    const piece = stepped ? `${open === null ? `M${from} ${level}` : `V${level}`}H${to}` : `${open === null ? "M" : "L"}${from} ${level}`;
    area += open === null ? `M${from} ${bottom}V${level}H${to}` : piece;
    path += piece;
    open ??= i;
  });
  close(null);
  if (kind === "area") group.append(shape("path", {class: "area", d: area || "M0 0", style: {fill: look.color}}));
  if (look.band) group.append(shape("path", {class: "curve band", d: path || "M0 0", style: {stroke: look.color}}));
  const shared = turns > 1 ? {"stroke-dasharray": `7 ${7 * (turns - 1)}`, "stroke-dashoffset": -7 * turn} : {};
  group.append(shape("path", {class: "curve", d: path || "M0 0", style: {...stroke(look), ...shared}}));
  values.forEach((value, i) => known(value) && i % turns === turn && group.append(...mark(look, starts[i], toY(value))));
}
/* Lines that lie on each other take turns along the way: which turn each has, of how many. */
function takeTurns(series) {
  const together = Object.groupBy(series, each => `${each.kind} ${each.values.join()}`);
  return new Map(Object.values(together).flatMap(group => group.map((each, i) => [each, [i, group.length]])));
}
/* Names at the ends of lines, moved apart. */
function sideLabels(svg, labels, right, low, high) {
  labels.sort((a, b) => a.from - b.from);
  labels.forEach((label, i) => label.y = Math.max(label.from, i ? labels[i - 1].y + 16 : low));
  for (let i = labels.length - 1, floor = high; i >= 0; floor = labels[i--].y - 16) labels[i].y = Math.min(labels[i].y, floor);
  for (const {name, color, from, y} of labels) svg.append(shape("g", {"data-series": name},
    shape("line", {x1: right + 6, x2: right + 16, y1: from, y2: y, style: {stroke: color, opacity: .6}}),
    shape("text", {x: right + 20, y: y + 4, style: {fill: color}}, name)));
}

/* ---- a chart with its legend and the table of its values; `update` draws it with other values, and goes on telling what is under the pointer.
   {id, label, height, x, y, series}: x and y are axes; x.at has the place of each value. A series is {name, values, look, kind, note}; its kind is
   line, step or area (each value holds until the next place, the last one until x.to), or bar (stacked); null is a gap. ---- */
class Chart {
  constructor(box, spec) {
    this.figure = element("figure");
    this.legend = element("div");
    this.values = element("details", {ontoggle: () => this.tabulate()}, element("summary", {}, "Values"), element("div"));
    this.pinned = this.pointed = null;
    box.append(this.figure);
    this.take(spec);
    this.plot = plot(this.figure, spec.id, spec.label, spec.height ?? 230, (svg, width, height) => this.draw(svg, width, height));
    this.figure.append(this.legend, this.values);
  }
  update(spec) {
    this.take(spec);
    this.plot.redraw();
  }
  take({x, y, series}) {
    this.series = series;
    this.at = x.at;
    this.stepped = series.some(each => each.kind && each.kind !== "line");
    const bars = series.filter(each => each.kind === "bar");
    const seen = [...x.at.map((_, i) => sum(bars.map(each => each.values[i]))), ...series.flatMap(each => each.values)].filter(value => value > 0);
    const base = y.base ?? 10, least = y.kind === "log" ? base ** Math.floor(Math.log(Math.min(...seen, 1e300)) / Math.log(base)) : 0;
    this.x = axis({from: x.at[0] ?? 0, to: x.at.at(-1) ?? 1, ...x});
    this.y = axis({from: least, to: largest(seen) * 1.04 || least + 1, ...y});
    this.legend.className = series.length > 4 ? "legend long" : "legend";
    this.legend.replaceChildren(...series.map(each => element("button", {type: "button", "data-series": each.name,
      onclick: () => { this.pinned = this.pinned === each.name ? null : each.name; this.light(); },
      onpointerenter: () => this.light(each.name), onpointerleave: () => this.light()},
    sample(each), element("span", {}, each.name), each.note ? element("b", {}, each.note) : null)));
    this.tabulate();
  }
  /* Dims all but one series. */
  light(name = this.pinned) {
    for (const node of this.figure.querySelectorAll("[data-series]")) node.classList.toggle("dimmed", name !== null && node.dataset.series !== name);
    for (const button of this.legend.children) button.setAttribute("aria-pressed", String(button.dataset.series === this.pinned));
  }
  tabulate() {
    if (!this.values.open) return;
    const {x, y, at, series} = this, text = (each, i) => known(each.values[i]) ? y.format(each.values[i]) : "–";
    this.values.lastChild.replaceChildren(at.length <= 12
      ? table([{name: x.name, text: true}, ...at.map(x.text)], series.map(each => [each.name, ...at.map((_, i) => text(each, i))]))
      : table([{name: x.name, text: true}, ...series.map(each => each.name)], at.map((place, i) => [x.text(place), ...series.map(each => text(each, i))])));
  }
  draw(svg, width, height) {
    const {x, y, at, series} = this, ticks = y.ticks(Math.floor(height / 44));
    const side = Math.max(0, ...series.map(each => wide(each.name))) + 24, top = y.name ? 28 : 10, bottom = height - (x.name ? 40 : 24);
    const alone = series.length === 1, fits = side < width * .34 && series.length * 16 < bottom - top + 16;
    const direct = !alone && fits && !series.some(each => each.kind === "bar");
    const left = Math.max(0, ...ticks.map(tick => wide(y.format(tick)))) + 12, right = width - (direct ? side : 10);
    const toX = value => left + (right - left) * x.share(value), toY = value => bottom - (bottom - top) * y.share(value);
    const turns = takeTurns(series), places = {starts: at.map(toX), ends: at.map((_, i) => toX(at[i + 1] ?? x.to)), toY, bottom}, bases = at.map(() => 0), labels = [];
    this.legend.hidden = direct || alone;
    for (const tick of ticks) svg.append(shape("line", {class: "gridline", x1: left, x2: right, y1: toY(tick), y2: toY(tick)}),
      shape("text", {x: left - 8, y: toY(tick) + 4, "text-anchor": "end"}, y.format(tick)));
    if (y.name) svg.append(shape("text", {class: "name", x: 0, y: 12}, y.name));
    drawHorizontal(svg, x, left, right, bottom);
    for (const each of series) {
      const group = shape("g", {"data-series": each.name}), last = each.values.findLast(known);
      if (each.kind === "bar") drawBars(group, each, places, bases);
      else drawCurve(group, each, places, turns.get(each));
      svg.append(group);
      if (direct && known(last)) labels.push({name: each.name, color: each.look.color, from: toY(last)});
    }
    sideLabels(svg, labels, right, top, bottom);
    this.watch(svg, places, {x: left, y: top, width: Math.max(right - left, 0), height: bottom - top});
  }
  /* Tells what is under the pointer, from its place in the drawing. */
  watch(svg, {starts, ends, toY}, box) {
    const cross = shape("line", {class: "cross", y1: box.y, y2: box.y + box.height}), pane = shape("rect", {class: "pane", ...box});
    const centers = this.stepped ? starts.map((start, i) => (start + ends[i]) / 2) : starts;
    const nearest = (list, distance) => list.reduce((best, each) => distance(each) < distance(best) ? each : best);
    const tell = () => {
      const i = nearest([...centers.keys()], i => Math.abs(centers[i] - this.pointed.x));
      const rows = this.series.filter(each => known(each.values[i])), crowded = rows.length > 4;
      const one = crowded && nearest(rows, each => Math.abs(toY(each.values[i]) - this.pointed.y));
      for (const end of ["x1", "x2"]) cross.setAttribute(end, centers[i]);
      cross.classList.add("shown");
      if (crowded) { this.light(one.name); rows.sort((a, b) => b.values[i] - a.values[i]); }
      return [element("b", {}, this.x.text(this.at[i])), element("table", {}, rows.map(each => element("tr", {class: each === one ? "nearest" : null},
        element("td", {}, sample(each)), element("td", {}, each.name), element("td", {}, this.y.format(each.values[i])))))];
    };
    pane.tell = event => {
      const area = svg.getBoundingClientRect();
      this.pointed = {x: event.clientX - area.left, y: event.clientY - area.top};
      return tell();
    };
    pane.addEventListener("pointerleave", () => { this.pointed = null; cross.classList.remove("shown"); this.light(); });
    svg.append(cross, pane);
    this.light();
    if (this.pointed && this.at.length) tip.replaceChildren(...tell());
  }
}
