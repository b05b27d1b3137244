// Draws the charts: those on the screen only, from as many points as they have pixels.
// Where a chart has many lines, another thread draws them, and this one the axes.

import { el, number, table } from "./dom.js";
import uPlot from "./uplot.js";

const HEIGHT = 220;
const MOST_IN_LEGEND = 6;
const MOST_ROWS = 100;
const WHOLE = [...Array(36).keys()].map((at) => [1, 2, 5][at % 3] * 10 ** Math.floor(at / 3));
const PALETTE = ["#2f7ed8", "#d9622b", "#2b9a58", "#a64dc4", "#c78a00", "#d6336c", "#0f9aa8", "#7a6cf0"];

// A colour that is readable on dark and on light ground.
export function colour(at) {
  if (at < PALETTE.length) return PALETTE[at];
  return `hsl(${Math.round(at * 137.508) % 360} 62% 52%)`;
}

const told = (_, values) => values.map((value) => (value === null ? "" : number(value, 4, 2)));

const worker = new Worker("lines.js");
const painted = new Map(); // the charts whose lines are being drawn, by name
worker.addEventListener("message", ({ data: { chart, bitmap } }) => {
  painted.get(chart)?.onPainted(bitmap);
});

// The least and the greatest value that a chart has to show.
function extent({ x, lines, low, high }, log) {
  let [bottom, top] = [Infinity, -Infinity];
  for (const line of lines) {
    for (let at = 0; at < x.length; at += 1) {
      const value = line[at];
      if (x[at] < low || x[at] > high || (log && value <= 0)) continue;
      if (value < bottom) bottom = value; // never true of NaN
      if (value > top) top = value;
    }
  }
  return bottom <= top ? [bottom, top] : [null, null];
}

export class Chart {
  constructor(name, board) {
    this.name = name;
    this.board = board;
    this.isVisible = false;
    this.plot = null;
    this.key = "";
    this.data = null;
    this.asked = ""; // what the points on the screen are an answer to
    this.shownAt = 0;
    this.job = null;
    this.isPainting = false;
    this.lines = el("canvas", { class: "lines" });
    this.place = el("div", { class: "plot", tabindex: "0", role: "img", "aria-label": name });
    this.rows = el("div", { class: "scroll tall" });
    this.more = el("details", {}, el("summary", {}, "Data table"), this.rows);
    this.more.addEventListener("toggle", () => this.showRows());
    this.place.addEventListener("keydown", (event) => this.onKey(event));
    this.figure = el("figure", {}, el("figcaption", {}, name), this.place, this.more);
    this.figure.chart = this;
  }

  show(data, options) {
    this.data = data;
    this.shownAt = performance.now();
    const { axis, log, width, faint } = options;
    const isFew = data.runs.length <= MOST_IN_LEGEND;
    const key = JSON.stringify([data.runs, axis, log, width, faint]);
    this.paint = isFew ? () => {} : (plot) => this.askForLines(plot, options);
    const plain = isFew ? this.plainOf(data, log) : [[data.low, data.high], extent(data, log)];
    if (key !== this.key) {
      this.plot?.destroy();
      this.place.classList.toggle("legend", isFew);
      this.plot = new uPlot(this.optionsOf(data, options), plain, this.place);
      if (!isFew) this.plot.over.prepend(this.lines);
      this.key = key;
    } else {
      this.plot.setData(plain);
    }
    this.place.setAttribute("aria-label", this.told(axis));
    this.showRows();
  }

  plainOf({ x, lines }, log) {
    return [x, ...lines].map((numbers, at) => Array.from(numbers, (v) =>
      Number.isNaN(v) || (at && log && v <= 0) ? null : v));
  }

  // Have the other thread draw the lines, between the axes that are on the screen now.
  askForLines(plot, { log, colours }) {
    const { x, lines, runs } = this.data;
    const [{ min: low, max: high }, { min: bottom, max: top }] = [plot.scales.x, plot.scales.y];
    const { width, height } = plot.bbox;
    this.job = {
      x, lines, width, height, low, high, bottom, top, log,
      colours: runs.map((run) => colours.get(run)),
      ratio: devicePixelRatio,
    };
    if (!this.isPainting) this.sendJob();
  }

  sendJob() {
    this.isPainting = true;
    painted.set(this.name, this);
    worker.postMessage({ chart: this.name, job: this.job });
    this.job = null;
  }

  onPainted(bitmap) {
    [this.lines.width, this.lines.height] = [bitmap.width, bitmap.height];
    this.lines.getContext("bitmaprenderer").transferFromImageBitmap(bitmap);
    this.isPainting = false;
    painted.delete(this.name);
    if (this.job) this.sendJob();
  }

  optionsOf(data, { axis, log, width, colours, faint, grid }) {
    const isFew = data.runs.length <= MOST_IN_LEGEND; // what follows the pointer costs with many
    const line = { stroke: faint, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
    const name = { step: "step", hours: "hours", time: "time" }[axis];
    return {
      width,
      height: HEIGHT,
      legend: { show: isFew },
      cursor: {
        ...(isFew ? { sync: { key: "hookbus" }, focus: { prox: 24 } } : { points: { show: false } }),
        drag: { setScale: false, x: true, y: false },
        bind: { dblclick: () => () => this.board.zoom(null, null) },
      },
      focus: { alpha: 0.25 },
      scales: {
        x: { time: axis === "time", range: () => this.rangeOf() },
        y: log ? { distr: 3 } : {},
      },
      axes: [
        { ...line, size: 34, ...(axis === "step" ? { incrs: WHOLE } : {}), values: axis === "time" ? undefined : told },
        { ...line, size: 58, values: told },
      ],
      series: [
        { label: name, value: (_, v) => (v === null ? "–" : axis === "time" ? new Date(v * 1000).toLocaleString() : number(v)) },
        ...(isFew ? data.runs : [""]).map((run) => ({
          label: run,
          ...(isFew ? {} : { paths: () => null }),
          stroke: colours.get(run),
          width: 1.5,
          spanGaps: true,
          points: { show: isFew && data.x.length <= 40, size: 5 },
          value: (_, v) => number(v),
        })),
      ],
      hooks: {
        draw: [(u) => this.paint(u)],
        setSelect: [(u) => {
          if (u.select.width < 4) return;
          const [left, right] = [u.select.left, u.select.left + u.select.width];
          this.board.zoom(u.posToVal(left, "x"), u.posToVal(right, "x"));
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
      },
    };
  }

  rangeOf() {
    const { low, high } = this.data;
    return low === high ? [low - 1, high + 1] : [low, high];
  }

  told(axis) {
    const { x, lines, runs } = this.data;
    const [values] = lines;
    if (!x.length || !values) return `${this.name}: no points`;
    const finite = values.filter((v) => !Number.isNaN(v));
    const more = runs.length > 1 ? `, and ${runs.length - 1} more` : "";
    return `${this.name}, line chart over ${axis} from ${number(x[0])} to ${number(x[x.length - 1])}: ` +
      `${runs[0]} from ${number(finite[0])} to ${number(finite[finite.length - 1])}${more}`;
  }

  showRows() {
    if (!this.more.open || !this.data) return;
    const { x, lines, runs, exact } = this.data;
    const every = Math.max(1, Math.ceil(x.length / MOST_ROWS));
    const rows = [];
    for (let at = 0; at < x.length; at += every) {
      rows.push([number(x[at], 6), ...lines.map((line) => (Number.isNaN(line[at]) ? "" : number(line[at], 6)))]);
    }
    const caption = exact && every === 1 ? this.name : `${this.name}: ${rows.length} of the points`;
    this.rows.replaceChildren(table(caption, ["at", ...runs], rows, [...runs.keys()].map((at) => at + 1)));
  }

  onKey(event) {
    if (!this.data || event.ctrlKey || event.metaKey || event.altKey) return;
    const { low, high } = this.data;
    const span = high - low;
    const to = {
      "+": [low + span / 4, high - span / 4],
      "=": [low + span / 4, high - span / 4],
      "-": [low - span / 2, high + span / 2],
      ArrowLeft: [low - span / 4, high - span / 4],
      ArrowRight: [low + span / 4, high + span / 4],
      0: [null, null],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    this.board.zoom(...to);
  }
}

// All charts of the page, in groups by the first part of their names.
export class Board {
  constructor(place, onChange) {
    this.place = place;
    this.onChange = onChange;
    this.charts = new Map();
    this.low = this.high = null;
    this.key = "";
    this.seen = null;
    this.observer = new IntersectionObserver((entries) => {
      for (const entry of entries) entry.target.chart.isVisible = entry.isIntersecting;
      if (entries.some((entry) => entry.isIntersecting)) onChange();
    }, { rootMargin: "200px" });
    let before = 0;
    new ResizeObserver(() => {
      if (place.clientWidth !== before) this.relook();
      before = place.clientWidth;
    }).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.relook());
  }

  relook() {
    this.seen = null;
    this.onChange();
  }

  zoom(low, high) {
    [this.low, this.high] = [low, high];
    this.onChange();
  }

  // Have a chart for each of these names, and no other.
  have(names) {
    const key = JSON.stringify(names);
    if (key === this.key) return;
    this.key = key;
    const groups = new Map();
    for (const name of names) {
      const at = name.indexOf("/");
      const group = at > 0 ? name.slice(0, at) : "";
      groups.set(group, [...(groups.get(group) ?? []), name]);
    }
    const parts = [];
    for (const [group, members] of groups) {
      if (group && groups.size > 1) parts.push(el("h3", {}, group));
      for (const name of members) {
        let chart = this.charts.get(name);
        if (!chart) {
          chart = new Chart(name, this);
          this.charts.set(name, chart);
          this.observer.observe(chart.figure);
        }
        parts.push(chart.figure);
      }
    }
    for (const [name, chart] of this.charts) {
      if (names.includes(name)) continue;
      this.observer.unobserve(chart.figure);
      chart.plot?.destroy();
      this.charts.delete(name);
    }
    this.place.replaceChildren(...parts);
    this.seen = null;
  }

  // What all charts have in common; reading it has the browser lay the page out.
  get look() {
    if (this.seen) return this.seen;
    const style = getComputedStyle(document.documentElement);
    const [first] = this.charts.values();
    this.seen = {
      width: Math.max(120, Math.floor(first?.place.clientWidth ?? 0)),
      faint: style.getPropertyValue("--faint").trim(),
      grid: style.getPropertyValue("--grid").trim(),
    };
    return this.seen;
  }

  get visible() {
    return [...this.charts.values()].filter((chart) => chart.isVisible);
  }
}
