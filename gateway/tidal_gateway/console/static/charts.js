// Line charts of the last two minutes.

import { element, number, svg } from "./dom.js";

const SPAN_S = 120;
const HEIGHT = 112;
const MARGIN = { left: 34, right: 4, top: 8, bottom: 16 };

/** The charts of one model. */
export class Charts {
  constructor(container) {
    this.container = container;
    this.charts = [];
    new ResizeObserver(() => this.draw()).observe(container);
  }

  /** Show the charts of a system; `points` are {time, values: {chart: {series: value}}}, oldest first. */
  show(definitions, points) {
    const names = definitions.map((each) => each.name).join();
    if (names !== this.names) {
      this.names = names;
      this.charts = definitions.map((each) => new Chart(each));
      this.container.replaceChildren(...this.charts.map((each) => each.figure));
    }
    this.points = points;
    this.draw();
  }

  /** Forget the colours of series: another model is shown. */
  reset() {
    this.names = null;
  }

  draw() {
    for (const chart of this.charts) chart.draw(this.points ?? []);
  }
}

class Chart {
  constructor(definition) {
    this.definition = definition;
    this.series = [];
    this.legend = element("ul", { class: "legend" });
    this.plot = svg("svg", { class: "plot", role: "img" });
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.point(null));
    const title = element("figcaption", {}, definition.title, element("span", {}, definition.unit));
    this.figure = element("figure", { "data-chart": definition.name }, title, this.plot, this.legend);
  }

  point(event) {
    this.at = event ? event.clientX - this.plot.getBoundingClientRect().left : null;
    this.draw(this.points);
  }

  draw(points) {
    this.points = points;
    const width = this.plot.clientWidth;
    if (!width) return;
    const name = this.definition.name;
    const shown = points.map((each) => ({ time: each.time, values: each.values[name] ?? {} }));
    for (const each of shown) {
      for (const series of Object.keys(each.values)) if (!this.series.includes(series)) this.series.push(series);
    }
    const last = shown.at(-1)?.time ?? 0;
    const high = nice(Math.max(0, ...shown.flatMap((each) => Object.values(each.values))));
    const x = (time) => MARGIN.left + (1 - (last - time) / SPAN_S) * (width - MARGIN.left - MARGIN.right);
    const y = (value) => MARGIN.top + (1 - value / high) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    const parts = [0, high / 2, high].flatMap((value) => [
      svg("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
      label(MARGIN.left - 6, y(value) + 3, tick(value), "end"),
    ]);
    parts.push(label(MARGIN.left, HEIGHT - 2, "2 min ago", "start"), label(width - MARGIN.right, HEIGHT - 2, "now", "end"));
    this.series.forEach((series, index) => {
      parts.push(svg("path", { d: line(shown, series, x, y), class: `s${index % 6}` }));
    });
    const at = nearest(shown, this.at, x);
    if (this.at !== null && this.at !== undefined && at) {
      parts.push(svg("line", { class: "cursor", x1: x(at.time), x2: x(at.time), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    }
    this.plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.plot.replaceChildren(...parts);
    this.describe(at?.values ?? {});
  }

  describe(values) {
    const rows = this.series.map((series, index) =>
      element("li", { class: `s${index % 6}` }, this.series.length > 1 || series !== "all" ? `${series} ` : "",
        element("b", {}, number(values[series]))));
    this.legend.replaceChildren(...rows);
    const spoken = this.series.map((series) => `${series} ${number(values[series])}`).join(", ");
    this.plot.setAttribute("aria-label", `${this.definition.title}: ${spoken || "no data"} ${this.definition.unit}`);
  }
}

function label(x, y, text, anchor) {
  const made = svg("text", { x, y, "text-anchor": anchor });
  made.textContent = text;
  return made;
}

/** The path of a series; it is interrupted where there is no value. */
function line(points, series, x, y) {
  let path = "";
  let open = false;
  for (const each of points) {
    const value = each.values[series];
    if (value === undefined) {
      open = false;
      continue;
    }
    path += `${open ? "L" : "M"}${x(each.time).toFixed(1)} ${y(value).toFixed(1)}`;
    if (!open) path += "h0.1";
    open = true;
  }
  return path;
}

function nearest(points, at, x) {
  if (at === null || at === undefined) return points.at(-1);
  return points.reduce((best, each) =>
    !best || Math.abs(x(each.time) - at) < Math.abs(x(best.time) - at) ? each : best, undefined);
}

function tick(value) {
  return value >= 10000 ? number(value) : String(Number(value.toPrecision(2)));
}

/** The end of an axis: the value rounded up to 1, 2 or 5 times a power of ten. */
function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((each) => each * power >= value * 0.999) * power;
}
