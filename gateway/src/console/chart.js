// Charts over time, as SVG. Where there is no data there is a gap, never a line through nothing. The legend shows the
// values under the pointer or, for who uses the keyboard, at the place that the arrow keys moved to.

import { h, repaint } from "./dom.js";
import { NONE, clock } from "./format.js";

const LEFT = 46;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 20;

/** Seconds before the end that are looked at, by group of charts; none follows the newest. */
const looked = new Map();
const widths = new Map();
const observer = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const width = Math.floor(entry.contentRect.width);
    if (width > 0) widths.set(entry.target.dataset.chart, width);
  }
  repaint();
});

/** A number of the form 1, 2, 2.5 or 5 times a power of ten that is no less than `value`. */
export function niceCeiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((nice) => nice >= value * 0.999);
}

/** Runs of places that have data. */
export function runs(values) {
  const found = [];
  let run = null;
  values.forEach((value, at) => {
    if (value === null || value === undefined) run = null;
    else if (run) run.push(at);
    else found.push((run = [at]));
  });
  return found;
}

/**
 * A chart. `lines`: { name, colour, values, dashed } of one length, oldest first; the last value is that of `end` (ms).
 * With `stacked`, areas on top of each other.
 */
export function timeChart({
  id,
  group = id,
  title,
  unit,
  lines,
  end,
  step = 1,
  height = 150,
  format,
  least = 0,
  stacked,
  total,
}) {
  const length = Math.max(2, ...lines.map((line) => line.values.length));
  const padded = lines.map((line) => ({
    ...line,
    values: [...Array(length - line.values.length).fill(null), ...line.values],
  }));
  const shapes = stacked ? stack(padded) : padded.map((line) => ({ ...line, top: line.values, floor: null }));
  const most = Math.max(least, ...shapes.flatMap((shape) => shape.top.filter((value) => value !== null)));
  const frame = { width: widths.get(id) ?? 560, height, length, most: niceCeiling(most), end, step };
  frame.x = (at) => LEFT + ((frame.width - LEFT - RIGHT) * at) / (length - 1);
  frame.y = (value) => height - BOTTOM - ((height - TOP - BOTTOM) * Math.min(value, frame.most)) / frame.most;
  const back = Math.min(looked.get(group) ?? 0, length - 1);
  const at = length - 1 - back;
  const isLooking = looked.has(group);
  const moment = clock(end - back * step * 1000);
  return h(
    "figure",
    { class: "chart", key: id, "data-chart": id, ref: watch },
    h(
      "figcaption",
      null,
      h("span", { class: "chart-title" }, title),
      h("span", { class: "chart-unit" }, unit),
      h("span", { class: isLooking ? "chart-at looking" : "chart-at" }, isLooking ? moment : `now, ${moment}`),
    ),
    h(
      "svg",
      {
        viewBox: `0 0 ${frame.width} ${height}`,
        height,
        tabindex: "0",
        role: "img",
        "aria-label": `${title}, ${unit}, the last ${(length - 1) * step} seconds. ${spoken(padded, at, format, moment)} Arrow keys move along the time.`,
        ...looking(group, frame, length, (place) =>
          spoken(padded, place, format, clock(end - (length - 1 - place) * step * 1000)),
        ),
      },
      axes(frame, format),
      shapes.map((shape) => drawn(shape, frame, stacked)),
      isLooking && marker(frame, at, shapes),
    ),
    legend(padded, at, format, total),
  );
}

function watch(figure) {
  observer.observe(figure);
}

/** Stacks lines; no data counts as nothing in a sum, but a place where nobody has any is a gap. */
function stack(lines) {
  let floor = lines[0]?.values.map(() => 0) ?? [];
  const isGap = (at) => lines.every((line) => line.values[at] === null);
  return lines.map((line) => {
    const below = floor;
    const top = line.values.map((value, at) => (isGap(at) ? null : below[at] + (value ?? 0)));
    floor = top.map((value, at) => value ?? below[at]);
    // A layer of nothing has no edge, which would hide that of the layer below.
    return { ...line, top, floor: below, edge: top.map((value, at) => (line.values[at] > 0 ? value : null)) };
  });
}

function axes(frame, format) {
  const ticks = frame.height < 110 ? [0, 1] : [0, 0.5, 1];
  const every = [5, 10, 15, 30, 60, 120, 300].find((s) => (s / frame.step / frame.length) * frame.width > 66) ?? 600;
  const first = Math.ceil((frame.end / 1000 - (frame.length - 1) * frame.step) / every) * every;
  const times = [];
  for (let time = first; time * 1000 <= frame.end; time += every) times.push(time);
  const place = (time) => frame.x(frame.length - 1 - (frame.end / 1000 - time) / frame.step);
  return h(
    "g",
    { class: "axes", key: "axes", "aria-hidden": "true" },
    ticks.map((tick) => {
      const y = frame.y(tick * frame.most);
      return h(
        "g",
        null,
        h("line", { x1: LEFT, x2: frame.width - RIGHT, y1: y, y2: y, class: tick ? "rule" : "base" }),
        h("text", { x: LEFT - 7, y: y + 3.5, "text-anchor": "end" }, format(tick * frame.most)),
      );
    }),
    times.map((time) => {
      const x = place(time);
      const isEdge = x > frame.width - RIGHT - 28 || x < LEFT + 20;
      return h(
        "g",
        { key: `t${time}` },
        h("line", { x1: x, x2: x, y1: frame.height - BOTTOM, y2: frame.height - BOTTOM + 4, class: "base" }),
        !isEdge && h("text", { x, y: frame.height - 4, "text-anchor": "middle" }, clock(time * 1000)),
      );
    }),
  );
}

function drawn(shape, frame, stacked) {
  const point = (values) => (at) => `${frame.x(at).toFixed(1)},${frame.y(values[at]).toFixed(1)}`;
  const area = (run) => {
    const outline = [...run.map(point(shape.top)), ...[...run].reverse().map(point(shape.floor))];
    return h("path", { d: `M${outline.join("L")}Z`, class: "area" });
  };
  const edge = shape.edge ?? shape.top;
  const line = (run) => {
    if (run.length === 1) return h("circle", { cx: frame.x(run[0]), cy: frame.y(edge[run[0]]), r: 1.8, class: "dot" });
    return h("path", { d: `M${run.map(point(edge)).join("L")}`, class: shape.dashed ? "line dashed" : "line" });
  };
  return h(
    "g",
    { key: shape.name, class: `series c${shape.colour}` },
    h("g", null, stacked && runs(shape.top).map(area)),
    h("g", null, runs(edge).map(line)),
  );
}

function marker(frame, at, shapes) {
  const x = frame.x(at);
  const dots = shapes
    .filter((shape) => shape.top[at] !== null)
    .map((shape) => h("circle", { class: `mark c${shape.colour}`, cx: x, cy: frame.y(shape.top[at]), r: 3 }));
  return h(
    "g",
    { key: "marker" },
    h("line", { x1: x, x2: x, y1: TOP, y2: frame.height - BOTTOM, class: "cross" }),
    dots,
  );
}

/** Pointer and keys move the place that is looked at, in all charts of the group; for keys, it is said what is there. */
function looking(group, frame, length, tell) {
  const set = (back) => {
    if (back === null) looked.delete(group);
    else looked.set(group, Math.min(length - 1, Math.max(0, back)));
    repaint();
  };
  const keys = { ArrowLeft: 1, ArrowRight: -1, PageUp: 10, PageDown: -10, Home: length, End: -length };
  return {
    onpointermove: (event) => {
      const box = event.currentTarget.getBoundingClientRect();
      const share = ((event.clientX - box.left) * (frame.width / box.width) - LEFT) / (frame.width - LEFT - RIGHT);
      set(Math.round((1 - share) * (length - 1)));
    },
    onpointerleave: () => set(null),
    onblur: () => set(null),
    onkeydown: (event) => {
      if (event.key === "Escape") set(null);
      if (!(event.key in keys)) return;
      event.preventDefault();
      set((looked.get(group) ?? 0) + keys[event.key]);
      document.getElementById("live").textContent = tell(length - 1 - looked.get(group));
    },
  };
}

function spoken(lines, at, format, moment) {
  const values = lines.map((line) => `${line.name} ${shown(line.values[at], format)}`);
  return `At ${moment}: ${values.join(", ") || "no data"}.`;
}

function shown(value, format) {
  return value === null || value === undefined ? NONE : format(value);
}

function legend(lines, at, format, total) {
  const entry = (line) =>
    h(
      "li",
      { key: line.name, class: `c${line.colour}` },
      h("span", { class: line.dashed ? "swatch dashed" : "swatch" }),
      h("span", { class: "legend-name" }, line.name),
      h("span", { class: "legend-value" }, shown(line.values[at], format)),
    );
  const values = lines.map((line) => line.values[at]).filter((value) => value !== null && value !== undefined);
  const sum = total && lines.length > 1 && values.length > 0;
  return h(
    "ul",
    { class: "legend" },
    lines.map(entry),
    sum &&
      h(
        "li",
        { key: "sum" },
        h("span", { class: "legend-name" }, "all"),
        h("span", { class: "legend-value" }, format(values.reduce((a, b) => a + b, 0))),
      ),
  );
}
