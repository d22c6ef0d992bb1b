// The script of the page that gpumem-report writes. SPDX-License-Identifier: Apache-2.0
/* global d3 */
"use strict";

const kinds = { f8: Float64Array, f4: Float32Array, u4: Uint32Array, u1: Uint8Array };
const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const margin = { left: 78, right: 28, top: 8, bottom: 34 };

function bytes(value) {
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; ++unit) value /= 1024;
  return (unit === 0 || value >= 100 ? value.toFixed(0) : value.toPrecision(3)) + " " + units[unit];
}
function time(microseconds) {
  if (microseconds < 1e3) return microseconds.toFixed(0) + " µs";
  return microseconds < 1e6 ? (microseconds / 1e3).toFixed(1) + " ms" : (microseconds / 1e6).toFixed(3) + " s";
}
const count = d3.format(",d");
const percent = (share) => (100 * share).toFixed(1) + " %";
const color = (index) => `var(--c${index % 12})`;

// make(parent, "div.legend", "text"): appends an element.
function make(parent, kind, text) {
  const [name, ...classes] = kind.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}
function button(parent, text, label, act) {
  const made = make(parent, "button", text);
  made.type = "button";
  made.setAttribute("aria-label", label);
  made.onclick = act;
  return made;
}
function select(parent, label, names, act) {
  const holder = make(parent, "label", label + " ");
  const made = make(holder, "select");
  names.forEach((name, index) => (make(made, "option", name).value = index));
  made.onchange = () => act(Number(made.value));
  return made;
}
function view(id, title, text) {
  const made = make(document.querySelector("main"), "section");
  made.id = id;
  make(made, "h2", title);
  if (text) make(made, "p.faint", text);
  return made;
}
function legend(parent, entries) {
  const made = make(parent, "div.legend");
  for (const [name, fill] of entries) {
    const entry = make(made, "span");
    make(entry, "i").style.background = fill;
    entry.append(name);
  }
  return made;
}

async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// Gives each recording its arrays. Times are stored as differences.
function attach(recordings, buffer) {
  for (const recording of recordings) {
    recording.data = {};
    for (const [name, kind, offset, length] of recording.arrays) {
      const type = kinds[kind];
      recording.data[name] = new type(buffer.slice(offset, offset + length * type.BYTES_PER_ELEMENT));
    }
    const times = recording.data.time;
    for (let i = 1; i < times.length; ++i) times[i] += times[i - 1];
  }
}

// What all curves share: the recording, the horizontal axis and the part of it that is shown.
const shown = { file: 0, by: "time", redraw: [], cursor: null, moment: null };
const x = d3.scale.linear();
const zoom = d3.behavior.zoom();
let recordings = [];
const current = () => recordings[shown.file];
const place = (recording, i) => (shown.by === "time" ? recording.data.time[i] : i * recording.rows_of_column);
const end = (recording) => (shown.by === "time" ? recording.microseconds : recording.rows);
const place_text = (at) => (shown.by === "time" ? time(at) : "row " + count(Math.round(at)));
const place_of = (moment) => (shown.by === "time" ? moment.microseconds : moment.row);

// Returns the last column that begins at this place or before it.
function column_at(recording, at) {
  let low = 0, high = recording.data.time.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (place(recording, middle) <= at) low = middle; else high = middle;
  }
  return low;
}
// Calls visit(first column, column after the last, from, to) for each `step` pixels of the part that is shown.
function each_step(recording, step, visit) {
  const width = x.range()[1], all = recording.data.time.length;
  let next = column_at(recording, x.invert(0));
  for (let left = 0; left < width; left += step) {
    const first = next, to = x.invert(left + step);
    while (next < all && place(recording, next) < to) ++next;
    if (next > first) visit(first, next, left, left + step);
    if (next >= all && place(recording, all - 1) < x.invert(left)) break;
  }
}
// Returns the path of a value that stays until its next column: per pixel the largest value, or the smallest.
function step_path(recording, value, y, { area = false, least = false } = {}) {
  const width = x.range()[1], all = recording.data.time.length, last_place = x(end(recording));
  let i = column_at(recording, x.invert(0)), path = "", previous = null, begin = null;
  while (i < all) {
    const at = Math.max(0, Math.floor(x(place(recording, i))));
    if (at > width) break;
    let best = value(i), final = best;
    for (++i; i < all && Math.max(0, Math.floor(x(place(recording, i)))) === at; ++i) {
      final = value(i);
      if (least ? final < best : final > best) best = final;
    }
    path += previous === null ? `M${at},${y(best)}` : `L${at},${y(previous)}V${y(best)}`;
    if (begin === null) begin = at;
    previous = final;
    if (final !== best) path += `H${at + 1}V${y(final)}`;
  }
  if (previous === null) return "";
  const right = Math.min(width, last_place);
  path += `H${right}`;
  return area ? `${path}V${y(0)}H${begin}Z` : path;
}

function byte_ticks(most) {
  const step = Math.pow(2, Math.ceil(Math.log2(Math.max(most, 1) / 6)));
  return d3.range(0, most * 1.0001, step);
}

// A chart over time: draw(group, y, recording) draws; read(recording, column) returns the text below it.
function chart(parent, { height, domain, ticks, format, unit, draw, read }) {
  const root = make(parent, "div.chart");
  root.tabIndex = 0;
  root.setAttribute("role", "group");
  const name = parent.querySelector("h2").textContent;
  root.setAttribute("aria-label", name + ": arrows move, + and − zoom, 0 shows all");
  const svg = d3.select(root).append("svg").attr("height", height);
  const group = svg.append("g").attr("transform", `translate(${margin.left},${margin.top})`);
  const axes = [group.append("g").attr("class", "axis"), group.append("g").attr("class", "axis")];
  const content = group.append("g").attr("class", "content");
  const moment = group.append("line").attr("class", "moment");
  const cursor = group.append("line").attr("class", "cursor");
  const title = svg.append("text").attr({ class: "title", transform: "rotate(-90)", "text-anchor": "middle" });
  const below = svg.append("text").attr("class", "title").attr("text-anchor", "middle");
  const frame = group.append("rect").attr("class", "frame");
  const readout = make(parent, "div.readout");
  const inner = height - margin.top - margin.bottom;
  const y = d3.scale.linear().range([inner, 0]);

  function line(element, at) {
    const inside = at !== null && x(at) >= 0 && x(at) <= x.range()[1];
    element.style("display", inside ? null : "none");
    if (inside) element.attr({ x1: x(at), x2: x(at), y1: 0, y2: inner });
  }
  function draw_cursor() {
    line(cursor, shown.cursor);
    line(moment, shown.moment === null ? null : place_of(shown.moment));
    if (shown.cursor !== null && read) {
      readout.textContent = place_text(shown.cursor) + ": " + read(current(), column_at(current(), shown.cursor));
    } else readout.textContent = "";
  }
  function redraw() {
    const width = x.range()[1];
    svg.attr("viewBox", `0 0 ${width + margin.left + margin.right} ${height}`);
    y.domain([0, domain(current())]);
    const values = ticks(y.domain()[1]);
    axes[0].call(d3.svg.axis().scale(y).orient("left").tickValues(values).tickSize(-width, 0).tickFormat(format));
    axes[1].attr("transform", `translate(0,${inner})`).call(d3.svg.axis().scale(x).orient("bottom")
      .ticks(Math.max(3, width / 130)).tickSize(5, 0).tickFormat(tick_format()));
    title.attr({ x: -(margin.top + inner / 2), y: 13 }).text(unit);
    below.attr({ x: margin.left + width / 2, y: height - 3 }).text(shown.by === "time" ? "time" : "rows of the log");
    frame.attr({ width, height: inner });
    content.selectAll("*").remove();
    draw(content, y, current());
    draw_cursor();
  }
  frame.on("mousemove", function () {
    shown.cursor = x.invert(d3.mouse(this)[0]);
    shown.redraw.forEach((each) => each.cursor());
  }).on("mouseleave", () => {
    shown.cursor = null;
    shown.redraw.forEach((each) => each.cursor());
  });
  // The wheel scrolls the page, except over a chart that has the focus, or with the control key.
  root.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== root) event.stopImmediatePropagation();
  }, { capture: true, passive: true });
  root.addEventListener("mousedown", () => root.focus({ preventScroll: true }));
  root.addEventListener("keydown", (event) => {
    const larger = () => enlarge(1.5), smaller = () => enlarge(1 / 1.5);
    const act = { ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": larger, "=": larger, "-": smaller,
      0: show_all, Home: show_all }[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  frame.call(zoom).on("dblclick.zoom", show_all);
  shown.redraw.push({ whole: redraw, cursor: draw_cursor });
}

function tick_format() {
  if (shown.by !== "time") return d3.format(",d");
  const [first, last] = x.domain(), span = last - first;
  const digits = (unit) => Math.max(0, Math.ceil(-Math.log10(span / unit / 8)));
  const [unit, name] = last < 1e3 ? [1, "µs"] : last < 1e6 ? [1e3, "ms"] : [1e6, "s"];
  return (value) => (value / unit).toFixed(Math.min(6, digits(unit))) + " " + name;
}

function redraw_all() {
  const width = x.range()[1], least = width * (1 - zoom.scale());
  const clamped = Math.min(0, Math.max(least, zoom.translate()[0]));
  if (clamped !== zoom.translate()[0]) zoom.translate([clamped, 0]);
  shown.redraw.forEach((each) => each.whole());
  const [first, last] = x.domain();
  document.body.dataset.range = `${first.toFixed(3)} ${last.toFixed(3)}`;
}
function enlarge(factor) {
  const middle = x.range()[1] / 2, [low, high] = zoom.scaleExtent();
  const scale = Math.min(high, Math.max(low, zoom.scale() * factor));
  const offset = middle - (middle - zoom.translate()[0]) * (scale / zoom.scale());
  zoom.scale(scale).translate([offset, 0]);
  redraw_all();
}
function pan(share) {
  zoom.translate([zoom.translate()[0] - share * x.range()[1], 0]);
  redraw_all();
}
function show_all() {
  zoom.scale(1).translate([0, 0]);
  redraw_all();
}
// After a change of the recording, the axis or the width.
function fit() {
  const main = document.querySelector("main"), style = getComputedStyle(main);
  const inner = main.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  const padding = parseFloat(getComputedStyle(main.querySelector("section")).paddingLeft);
  const width = Math.max(240, Math.floor(inner - 2 * padding - 2 - margin.left - margin.right));
  x.range([0, width]).domain([0, Math.max(1, end(current()))]);
  zoom.x(x).scaleExtent([1, Math.max(2, current().data.time.length / 8)]);
  show_all();
}
