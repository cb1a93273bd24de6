// A line chart of the last minutes, which moves: its legend tells the newest values, or those under the pointer. Arrow
// keys move the pointer for who has none.

import { element, setAttribute, setText } from "./elements.js";
import { clock, text } from "./units.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 190;
const EDGE = { top: 12, right: 10, bottom: 24, left: 56 };

function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export class Chart {
  // `series`: [{name, field, color, format}], `unit`: of the vertical axis.
  constructor(place, title, unit, series) {
    this.series = series;
    this.unit = unit;
    this.title = title;
    this.pointed = null;
    this.legend = element("ul.legend");
    this.values = series.map((each) => {
      const value = element("b");
      const dot = element("i.line");
      dot.style.background = `var(--${each.color})`;
      this.legend.append(element("li", dot, `${each.name} `, value));
      return value;
    });
    this.when = element("li.when");
    this.legend.append(this.when);
    this.svg = drawn("svg", { class: "chart", height: HEIGHT, role: "img", tabindex: "0" });
    place.replaceChildren(this.legend, this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(this.nearest(event)));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.svg.addEventListener("blur", () => this.point(null));
    this.svg.addEventListener("keydown", (event) => this.step(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  update(history, nowMs) {
    this.history = history;
    this.nowMs = nowMs;
    this.draw();
  }

  nearest(event) {
    const times = this.history?.at_ms ?? [];
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    let best = null;
    times.forEach((at, index) => {
      if (best === null || Math.abs(this.x(at) - x) < Math.abs(this.x(times[best]) - x)) best = index;
    });
    return best === null ? null : times[best];
  }

  step(event) {
    const times = this.history?.at_ms ?? [];
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!direction || !times.length) return;
    event.preventDefault();
    const at = this.pointed === null ? times.length : times.indexOf(this.pointed);
    this.point(times[Math.min(Math.max(at + direction, 0), times.length - 1)]);
  }

  point(atMs) {
    this.pointed = atMs;
    this.draw();
  }

  x(atMs) {
    const share = 1 - (this.nowMs - atMs) / (1000 * this.history.window_seconds);
    return EDGE.left + share * (this.svg.clientWidth - EDGE.left - EDGE.right);
  }

  y(value) {
    return HEIGHT - EDGE.bottom - (value / this.top) * (HEIGHT - EDGE.top - EDGE.bottom);
  }

  draw() {
    const width = this.svg.clientWidth;
    if (!this.history || !width) return;
    const columns = this.series.map((each) => this.history[each.field]);
    const step = niceStep(Math.max(...columns.flat().map((each) => each ?? 0), 1e-9));
    this.top = 4 * step;
    const shown = this.history.at_ms.indexOf(this.pointed);
    const at = shown < 0 ? this.history.at_ms.length - 1 : shown;
    this.svg.replaceChildren(...this.axes(step, width), ...this.curves(columns), ...this.cursor(shown, columns));
    this.series.forEach((each, index) => setText(this.values[index], text(each.format(columns[index][at]))));
    setText(this.when, shown < 0 ? "" : `at ${clock(this.history.at_ms[shown])}`);
    const newest = this.series.map((each, index) => `${each.name} ${text(each.format(columns[index][at]))}`);
    setAttribute(this.svg, "aria-label", `${this.title}: ${newest.join(", ")}. Left and right arrows tell earlier values.`);
  }

  *axes(step, width) {
    for (let tick = 0; tick <= 4; tick += 1) {
      const y = this.y(tick * step);
      yield drawn("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y, y2: y });
      const label = tick === 4 ? `${short(tick * step)} ${this.unit}` : short(tick * step);
      yield drawn("text", { class: "tick", x: EDGE.left - 7, y: y + 4, "text-anchor": "end" }, label);
    }
    const minutes = this.history.window_seconds / 60;
    for (let ago = minutes; ago >= 0; ago -= minutes / 3) {
      const x = this.x(this.nowMs - ago * 60000);
      const anchor = ago === minutes ? "start" : ago ? "middle" : "end";
      const label = ago ? `−${ago} min` : "now";
      yield drawn("text", { class: "tick", x, y: HEIGHT - 6, "text-anchor": anchor }, label);
    }
  }

  *curves(columns) {
    const left = EDGE.left - 1;
    for (const [index, column] of columns.entries()) {
      const color = `var(--${this.series[index].color})`;
      for (const run of runs(this.history.at_ms, column)) {
        const places = run.map(([atMs, value]) => [this.x(atMs), this.y(value)]).filter(([x]) => x >= left);
        if (!places.length) continue;
        const line = places.map((each) => each.map((one) => one.toFixed(1)).join(" ")).join("L");
        if (this.series[index].filled && places.length > 1) {
          const base = this.y(0);
          const area = drawn("path", { class: "area", d: `M${places[0][0]} ${base}L${line}L${places.at(-1)[0]} ${base}Z` });
          area.style.fill = color;
          yield area;
        }
        const curve = drawn("path", { class: "curve", d: places.length > 1 ? `M${line}` : `M${line}h.01` });
        curve.style.stroke = color;
        yield curve;
      }
    }
  }

  *cursor(shown, columns) {
    if (shown < 0) return;
    const x = this.x(this.history.at_ms[shown]);
    yield drawn("line", { class: "cursor", x1: x, x2: x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom });
    for (const [index, column] of columns.entries()) {
      if (column[shown] === null) continue;
      const dot = drawn("circle", { class: "point", cx: x, cy: this.y(column[shown]), r: 4 });
      dot.style.fill = `var(--${this.series[index].color})`;
      yield dot;
    }
  }
}

// Pieces of a line without gaps.
function* runs(times, column) {
  let run = [];
  for (const [index, value] of column.entries()) {
    if (value !== null) run.push([times[index], value]);
    if ((value === null || index === column.length - 1) && run.length) {
      yield run;
      run = [];
    }
  }
}

// A quarter of an axis that reaches `most`: 1, 2, 2.5 or 5 times a power of ten.
function niceStep(most) {
  const power = 10 ** Math.floor(Math.log10(most / 4));
  return [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => 4 * each >= most) ?? 10 * power;
}

function short(number) {
  if (number >= 1e6) return `${number / 1e6}M`;
  return number >= 1e4 ? `${number / 1e3}k` : String(Number(number.toPrecision(6)));
}
