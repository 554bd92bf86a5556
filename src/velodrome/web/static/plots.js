// Plots: lines with uPlot, and configurations with their intervals as SVG. Colours are those of the report.
import { element, number, setText } from "./common.js";

const DASHES = [[], [7, 4], [2, 3], [8, 3, 2, 3], [12, 4], [2, 6], [6, 2, 2, 2]];
// What is counted has ticks at whole numbers.
const WHOLE = new Set(["epoch", "training steps", "examples trained on"]);
const STEPS = [...Array(10).keys()].flatMap((power) => [1, 2, 5].map((one) => one * 10 ** power));
const dark = matchMedia("(prefers-color-scheme: dark)");
const plots = new Set();
dark.addEventListener("change", () => { for (const plot of plots) plot.redraw(); });

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const colour = (place) => style(`--c${place % 6}`);
export const dash = (place) => DASHES[place % DASHES.length];

// A colour for each label and a dash for each number of workers. Those that are known from the beginning come first, in
// the order of the report; others follow as they appear. Nothing that has a colour gets another one.
const order = { labels: [], sizes: [] };
export function looks(things, known = {}) {
  const { labels, sizes } = order;
  const add = (list, found) => list.push(...new Set(found.filter((one) => !list.includes(one))));
  add(labels, [...(known.labels ?? []), ...things.map((one) => one.label)].filter(Boolean));
  add(sizes, [...(known.sizes ?? []), ...things.map((one) => one.workers)]);
  return (one) => ({ place: Math.max(0, labels.indexOf(one.label)), dash: Math.max(0, sizes.indexOf(one.workers)) });
}

function key(place, dashes) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("width", "26"); svg.setAttribute("height", "8"); svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(svg.namespaceURI, "line");
  for (const [name, value] of Object.entries({ x1: 0, x2: 26, y1: 4, y2: 4, "stroke-width": 2.5, stroke: `var(--c${place % 6})`, "stroke-dasharray": dash(dashes).join(" ") })) line.setAttribute(name, value);
  svg.append(line);
  return svg;
}

// Lines over a common axis. `set` takes [{name, place, dash, x, y}], with colours and dashes by number.
export class LinePlot {
  constructor(target, { x = "", y = "", legend = null, format = number, zero = true, title = "", least = 1, narrow = false, empty = "No data yet" } = {}) {
    Object.assign(this, { target, x, y, legend, format, zero, title, least, narrow, empty });
    this.shape = "";
    this.message = element("p", { class: "nothing" }, empty);
    target.append(this.message);
    plots.add(this);
    new ResizeObserver(() => this.resize()).observe(target);
  }

  set(series, x = this.x) {
    const filled = series.filter((one) => one.x.length);
    this.message.hidden = filled.length > 0;
    const shape = JSON.stringify([x, filled.map((one) => [one.name, one.group, one.place, one.dash])]);
    if (!filled.length) { this.drop(); this.shape = ""; this.legendOf([]); return; }
    this.series = filled;
    this.data = filled.length === 1 ? [filled[0].x, filled[0].y] : uPlot.join(filled.map((one) => [one.x, one.y]));
    if (shape === this.shape && this.plot) { this.plot.setData(this.data); return; }
    this.shape = shape; this.x = x;
    this.make();
    this.legendOf(filled);
  }

  drop() { this.plot?.destroy(); this.plot = undefined; }

  make() {
    this.drop();
    const axis = (label, more) => ({
      stroke: () => style("--soft"), grid: { stroke: () => style("--line"), width: 1 }, ticks: { stroke: () => style("--line"), width: 1, size: 4 },
      font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", label: label || undefined, labelSize: label ? 18 : 0, ...more,
    });
    this.plot = new uPlot({
      ...this.size(), title: this.title || undefined, legend: { show: false }, pxAlign: 1,
      cursor: { drag: { x: true, y: false, uni: 20 }, points: { size: 7 } },
      scales: { x: { time: false, range: (plot, low, high) => low === high ? [low - 0.5, high + 0.5] : [low, high] }, y: { range: (plot, low, high) => this.range(low, high) } },
      axes: [axis(this.x, { size: 32, incrs: WHOLE.has(this.x) ? STEPS : undefined }), axis(this.y, { size: this.narrow ? 42 : 58, values: (plot, ticks) => ticks.map((tick) => this.format(tick)) })],
      series: [{}, ...this.series.map((one) => ({
        label: one.name, stroke: () => colour(one.place), width: 2, dash: dash(one.dash), spanGaps: true,
        points: { show: one.x.length < 30, size: 5, fill: () => colour(one.place) },
      }))],
      hooks: { setCursor: [(plot) => this.showValues(plot)] },
    }, this.data, this.target);
  }

  range(low, high) {
    if (low === null || low === undefined) return [0, 1];
    const least = this.zero ? Math.min(0, low) : low - (high - low || Math.abs(high) || 1) * 0.08;
    const most = high + (high - least) * 0.06;
    return [least, most > least ? most : least + this.least];
  }

  size() { return { width: Math.max(120, this.target.clientWidth), height: this.target.clientHeight - (this.title ? 24 : 0) }; }
  resize() { if (this.plot) this.plot.setSize(this.size()); }
  redraw() { this.plot?.redraw(false); }

  // An entry for each group of lines, or for each line that is in none.
  legendOf(series) {
    if (!this.legend) return;
    this.entries = new Map();
    series.forEach((one, place) => {
      const name = one.group ?? one.name;
      if (!this.entries.has(name)) this.entries.set(name, { one, lines: [], value: element("span", { "data-value": "" }) });
      this.entries.get(name).lines.push(place + 1);
    });
    this.legend.replaceChildren(...[...this.entries].map(([name, { one, value }]) => element("li", {}, key(one.place, one.dash), name, value)));
  }

  // The mean of each entry's lines where the pointer is.
  showValues(plot) {
    const at = plot.cursor.idx;
    for (const { lines, value } of this.entries?.values() ?? []) {
      const found = at === null || at === undefined ? [] : lines.map((line) => {
        let back = at;
        while (back >= 0 && (plot.data[line]?.[back] ?? null) === null) back--;
        return back >= 0 ? plot.data[line]?.[back] : undefined;
      }).filter((one) => one !== undefined);
      setText(value, found.length ? this.format(found.reduce((sum, one) => sum + one, 0) / found.length) : "");
    }
  }
}

// A dot for each configuration with its interval; hollow where there is none yet. `set` takes
// [{name, place, value, interval}].
export class IntervalPlot {
  constructor(target, { unit = "×", unity = true, empty = "Appears as soon as runs have finished" } = {}) {
    Object.assign(this, { target, unit, unity, rows: [] });
    this.message = element("p", { class: "nothing" }, empty);
    target.append(this.message);
    plots.add(this);
    new ResizeObserver(() => this.redraw()).observe(target);
  }

  set(rows) {
    this.rows = rows.filter((row) => row.value !== null && row.value !== undefined);
    this.message.hidden = this.rows.length > 0;
    this.target.className = this.target.className.replace(/rows-\d/, `rows-${Math.min(8, this.rows.length)}`);
    this.redraw();
  }

  redraw() {
    this.svg?.remove();
    const width = this.target.clientWidth;
    if (!this.rows.length || width < 50) return;
    const line = 42, top = 8, bottom = 26, left = 10, right = 64;
    const height = top + line * this.rows.length + bottom;
    const ns = "http://www.w3.org/2000/svg";
    const make = (name, attributes, text) => {
      const made = document.createElementNS(ns, name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      if (text !== undefined) made.textContent = text;
      this.svg.append(made);
      return made;
    };
    this.svg = document.createElementNS(ns, "svg");
    this.svg.setAttribute("width", width); this.svg.setAttribute("height", height);
    // Two noisy runs give intervals of many powers of ten: the axis follows the estimates instead.
    const top_value = Math.max(this.unity ? 1.25 : 0, ...this.rows.map((row) => 1.3 * row.value)), span = width - left - right;
    const x = (value) => left + (span * Math.max(0, Math.min(value, top_value))) / top_value;
    const step = [0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10, 20, 50].find((one) => top_value / one <= 6) ?? top_value;
    for (let tick = 0; tick <= top_value + 1e-9; tick += step) {
      make("line", { x1: x(tick), x2: x(tick), y1: top, y2: height - bottom + 4, class: "axis" });
      make("text", { x: x(tick), y: height - 8, "text-anchor": "middle", class: "quiet" }, `${Number(tick.toFixed(2))}${this.unit}`);
    }
    if (this.unity) make("line", { x1: x(1), x2: x(1), y1: top, y2: height - bottom, class: "unity" });
    this.rows.forEach((row, number) => {
      const y = top + line * number, middle = y + 28, paint = `var(--c${row.place % 6})`;
      make("text", { x: left, y: y + 14 }, row.name.length * 6.6 > width ? `${row.name.slice(0, Math.floor(width / 6.8))}…` : row.name);
      make("line", { x1: x(0), x2: x(row.value), y1: middle, y2: middle, stroke: paint, "stroke-width": 2, opacity: 0.35 });
      if (row.interval) {
        const [low, high] = row.interval;
        make("line", { x1: x(low), x2: x(high), y1: middle, y2: middle, stroke: paint, "stroke-width": 3 });
        for (const end of [low, high]) if (end <= top_value) make("line", { x1: x(end), x2: x(end), y1: middle - 5, y2: middle + 5, stroke: paint, "stroke-width": 2 });
      }
      make("circle", { cx: x(row.value), cy: middle, r: 5, fill: row.interval ? paint : "var(--back)", stroke: paint, "stroke-width": 2 });
      make("text", { x: width - 4, y: middle + 4, "text-anchor": "end" }, `${row.value.toFixed(2)}${this.unit}`);
    });
    this.target.append(this.svg);
  }
}

// Phases of each process as bars on a common clock, with faults, warnings and checkpoints above them.
const PHASES = { import: "--p-import", connect: "--c4", data: "--c5", build: "--c0", train: "--c2", evaluate: "--c1", save: "--c3", script: "--c2" };
const MARK = { error: ["✕", "--bad"], lost: ["✕", "--bad"], fault: ["↯", "--c4"], warning: ["!", "--c3"], checkpoint: ["◆", "--soft"] };
export class Timeline {
  constructor(target, legend) {
    Object.assign(this, { target, legend, rows: [], marks: [] });
    this.message = element("p", { class: "nothing" }, "Appears as soon as a process has begun");
    this.svg = target.querySelector("svg"); // an empty one keeps the place
    target.append(this.message);
    plots.add(this);
    new ResizeObserver(() => this.redraw()).observe(target);
  }

  set(rows, marks) {
    Object.assign(this, { rows, marks });
    const used = new Set(rows.flatMap((row) => row.spans.map((span) => span[0])));
    this.message.hidden = used.size > 0;
    this.legend.replaceChildren(...Object.keys(PHASES).filter((phase) => used.has(phase)).map((phase) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      made.setAttribute("width", "14"); made.setAttribute("height", "12"); made.setAttribute("aria-hidden", "true");
      const box = document.createElementNS(made.namespaceURI, "rect");
      box.setAttribute("width", "14"); box.setAttribute("height", "12"); box.setAttribute("fill", `var(${PHASES[phase]})`);
      made.append(box);
      return element("li", {}, made, phase);
    }));
    this.redraw();
  }

  redraw() {
    const width = this.target.clientWidth;
    if (!this.rows.length || width < 50) { this.svg?.remove(); return; }
    const ns = "http://www.w3.org/2000/svg", line = 20, top = 24, bottom = 24, left = 84, right = 12;
    const svg = document.createElementNS(ns, "svg");
    const make = (name, attributes, text) => {
      const made = document.createElementNS(ns, name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      if (text !== undefined) made.textContent = text;
      svg.append(made);
      return made;
    };
    const height = top + line * this.rows.length + bottom;
    svg.setAttribute("width", width); svg.setAttribute("height", height);
    const end = Math.max(0.1, ...this.rows.flatMap((row) => row.spans.map((span) => span[2])), ...this.marks.map((mark) => mark.end ?? mark.seconds));
    const x = (seconds) => left + ((width - left - right) * seconds) / end;
    const step = 10 ** Math.floor(Math.log10(end / 4));
    const tick = [1, 2, 5, 10].map((one) => one * step).find((one) => end / one <= (width < 500 ? 5 : 9)) ?? end;
    for (let at = 0; at <= end + 1e-9; at += tick) {
      make("line", { x1: x(at), x2: x(at), y1: top, y2: height - bottom + 4, class: "axis" });
      make("text", { x: x(at), y: height - 6, "text-anchor": "middle", class: "quiet" }, `${Number(at.toPrecision(6))} s`);
    }
    this.rows.forEach((row, number) => {
      const y = top + line * number;
      make("text", { x: left - 6, y: y + 14, "text-anchor": "end" }, row.process);
      for (const [phase, start, stop] of row.spans) {
        const bar = make("rect", { x: x(start), y: y + 2, width: Math.max(1, x(stop) - x(start)), height: line - 4, fill: `var(${PHASES[phase] ?? "--soft"})` });
        const title = document.createElementNS(ns, "title");
        title.textContent = `${row.process}: ${phase}, ${start.toFixed(2)} to ${stop.toFixed(2)} s`;
        bar.append(title);
      }
    });
    for (const mark of this.marks) {
      const [sign, paint] = MARK[mark.kind];
      // What lasted is a band over all processes, as in the report.
      if (mark.end !== null) make("rect", { x: x(mark.seconds), y: top, width: Math.max(1, x(mark.end) - x(mark.seconds)), height: height - bottom - top, fill: `var(${paint})`, opacity: 0.35 });
      if (mark.kind !== "checkpoint") make("line", { x1: x(mark.seconds), x2: x(mark.seconds), y1: top - 6, y2: height - bottom, stroke: `var(${paint})`, "stroke-width": 1.5, "stroke-dasharray": "3 2" });
      const text = make("text", { x: x(mark.seconds), y: 14, "text-anchor": "middle", class: "mark" }, sign);
      text.style.fill = `var(${paint})`;
      const title = document.createElementNS(ns, "title");
      title.textContent = `${mark.seconds.toFixed(1)} s ${mark.process}: ${mark.text}`;
      text.append(title);
    }
    this.svg?.remove();
    this.svg = svg;
    this.target.append(svg);
  }
}
