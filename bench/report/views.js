// The views of the page that gpumem-report writes. SPDX-License-Identifier: Apache-2.0
/* global d3, shown, zoom, recordings:writable, current, x, make, view, legend, chart, select, button, fit */
"use strict";

function draw_header(figures) {
  const main = document.querySelector("main");
  const names = recordings.map((each) => each.name);
  make(main, "h1", "Memory of " + names.join(", "));
  for (const text of new Set(recordings.map((each) => each.source))) make(main, "p.faint", text);
  const section = view("figures", names.length > 1 ? "Figures, side by side" : "Figures");
  const table = make(section, "table");
  if (names.length > 1) {
    const head = make(make(table, "thead"), "tr");
    make(head, "th");
    names.forEach((name) => make(head, "th", name));
  }
  const body = make(table, "tbody");
  for (const [name, ...values] of figures) {
    const row = make(body, "tr");
    make(row, "th", name).scope = "row";
    values.forEach((value) => make(row, "td", value));
  }
}

function draw_tools() {
  const tools = make(document.querySelector("main"), "div.tools");
  tools.setAttribute("role", "toolbar");
  if (recordings.length > 1) {
    select(tools, "Views of", recordings.map((each) => each.name), (file) => {
      shown.file = file;
      shown.moment = null;
      fit();
      shown.changed.forEach((each) => each());
    });
  }
  select(tools, "Over", ["time", "rows of the log"], (by) => {
    shown.by = by === 0 ? "time" : "rows";
    fit();
  });
  button(tools, "+", "zoom in", () => enlarge(1.5));
  button(tools, "−", "zoom out", () => enlarge(1 / 1.5));
  button(tools, "←", "move left", () => pan(-0.2));
  button(tools, "→", "move right", () => pan(0.2));
  button(tools, "All", "show all", show_all);
  make(tools, "span.faint", "Click a chart: then the wheel or + − zooms, dragging or ← → moves, 0 shows all.");
}

// Live and reserved of all recordings, each over its own share of the whole.
function draw_comparison() {
  if (recordings.length < 2) return;
  const section = view("comparison", "Live and reserved, side by side",
    "Filled: live bytes. Line: reserved bytes. All have the same scale.");
  const most = d3.max(recordings, (each) => d3.max([each.peak_live.live, each.peak_reserved.reserved]));
  const grid = make(section, "div.two");
  const small = { width: 480, height: 170, left: 70, bottom: 24 };
  for (const recording of recordings) {
    const holder = make(grid, "div");
    make(holder, "div", recording.name);
    const svg = d3.select(holder).append("svg").attr("viewBox", `0 0 ${small.width} ${small.height}`);
    const across = d3.scale.linear().domain([0, Math.max(1, recording.microseconds)])
      .range([0, small.width - small.left - 12]);
    const y = d3.scale.linear().domain([0, most * 1.05]).range([small.height - small.bottom - 6, 0]);
    const group = svg.append("g").attr("transform", `translate(${small.left},6)`);
    group.append("g").attr("class", "axis").call(d3.svg.axis().scale(y).orient("left")
      .tickValues(byte_ticks(most * 1.05)).tickSize(-across.range()[1], 0).tickFormat(bytes));
    group.append("g").attr("class", "axis").attr("transform", `translate(0,${y.range()[0]})`)
      .call(d3.svg.axis().scale(across).orient("bottom").ticks(4).tickSize(4, 0).tickFormat(time));
    const path = (values) => {
      const most_at = new Map();
      recording.data.time.forEach((at, i) => {
        const pixel = Math.round(across(at));
        most_at.set(pixel, Math.max(most_at.get(pixel) || 0, values[i]));
      });
      return [...most_at].map(([at, value], i) => (i === 0 ? `M${at},${y(value)}` : `H${at}V${y(value)}`)).join("");
    };
    const live = path(recording.data.live_most);
    group.append("path").attr({ d: `${live}V${y(0)}H0Z`, fill: "var(--live)", "fill-opacity": 0.55 });
    if (recording.memory !== "none")
      draw_line(group, path(recording.data.reserved));
  }
}

function draw_line(group, path) {
  group.append("path").attr({ d: path, fill: "none", stroke: "var(--reserved)", "stroke-width": 1.6 });
}

function draw_memory() {
  const section = view("memory", "Live and reserved over time",
    "Live: bytes that the program asked for and has not freed. Reserved: what the pool has from the driver.");
  legend(section, [["live", "var(--live)"], ["reserved", "var(--reserved)"]]);
  chart(section, {
    height: 280, unit: "bytes", format: bytes, ticks: byte_ticks,
    domain: (of) => 1.05 * Math.max(1, of.peak_live.live, of.peak_reserved.reserved),
    draw(group, y, of) {
      const { live_most, live_least, reserved } = of.data;
      const most = step_path(of, (i) => live_most[i], y, { area: true });
      const least = step_path(of, (i) => live_least[i], y, { area: true, least: true });
      group.append("path").attr({ d: most, fill: "var(--live)", "fill-opacity": 0.35 });
      group.append("path").attr({ d: least, fill: "var(--live)", "fill-opacity": 0.5 });
      if (of.memory !== "none") draw_line(group, step_path(of, (i) => reserved[i], y));
    },
    read(of, i) {
      const text = `${bytes(of.data.live_most[i])} live`;
      return of.memory === "none" ? text : `${text}, ${bytes(of.data.reserved[i])} reserved`;
    },
  });
}

function draw_fragmentation() {
  if (recordings.every((each) => each.memory === "none")) return;
  const section = view("fragmentation", "Fragmentation over time",
    "1 − largest free range / free bytes. Free: reserved, and in no live block.");
  const note = make(section, "p");
  const tell = () => {
    const worst = current().worst;
    note.textContent = worst.free === 0 ? "Nothing was free while half of the peak was live." :
      `Worst while at least half of the peak was live: at ${time(worst.microseconds)}, ` +
      `${percent(1 - worst.largest / worst.free)}. ${bytes(worst.free)} were free, and a request of up to ` +
      `${bytes(worst.largest)} would have fitted without new memory or a move of pages.`;
  };
  shown.changed.push(tell);
  tell();
  const share = (of, i) => (of.data.free[i] > 0 ? 1 - of.data.largest[i] / of.data.free[i] : 0);
  chart(section, {
    height: 170, unit: "fragmentation", format: (value) => 100 * value + " %", domain: () => 1,
    ticks: () => [0, 0.25, 0.5, 0.75, 1],
    draw(group, y, of) {
      const path = step_path(of, (i) => share(of, i), y, { area: true });
      group.append("path").attr({ d: path, fill: "var(--bad)", "fill-opacity": 0.4 });
    },
    read(of, i) {
      const { free, largest } = of.data;
      return `${percent(share(of, i))}: ${bytes(free[i])} free, the largest range ${bytes(largest[i])}`;
    },
  });
}

function draw_reuse() {
  const section = view("reuse", "How allocations were served",
    "Shares of the allocations at each time, by where the pool found the memory.");
  const used = d3.range(reasons.length).filter((how) => recordings.some((each) => each.served[how] > 0));
  const fill = (how) => (how === 0 ? "var(--c11)" : color(how - 1));
  legend(section, used.map((how) => [reasons[how], fill(how)]));
  const sums = (of, first, last) => used.map((how) => {
    let sum = 0;
    for (let i = first; i < last; ++i) sum += of.data["served" + how][i];
    return sum;
  });
  chart(section, {
    height: 170, unit: "share", format: (value) => 100 * value + " %", domain: () => 1,
    ticks: () => [0, 0.5, 1],
    draw(group, y, of) {
      each_step(of, 4, (first, last, left, right) => {
        const parts = sums(of, first, last), total = d3.sum(parts);
        let done = 0;
        parts.forEach((part, index) => {
          if (part === 0) return;
          group.append("rect").attr({ x: left, width: right - left, y: y((done + part) / total),
            height: y(0) - y(part / total), fill: fill(used[index]) });
          done += part;
        });
      });
    },
    read(of, i) {
      const step = Math.max(1, Math.round(of.data.time.length / 400)), first = Math.max(0, i - step);
      const parts = sums(of, first, i + step), total = d3.sum(parts);
      return used.map((how, index) => `${reasons[how]} ${percent(total ? parts[index] / total : 0)}`).join(", ");
    },
  });
}

function draw_waits() {
  const section = view("waits", "Requests that waited");
  const note = make(section, "p.faint");
  const tell = () => {
    const of = current();
    if (of.wait_count === 0) {
      note.textContent = "No request waited, and " + (of.failures === 0 ? "none" : count(of.failures)) + " failed.";
      return;
    }
    note.textContent = `${count(of.wait_count)} requests waited, ${count(of.refusals)} of them ended without memory. ` +
      "Each bar is a request, from the begin of its wait to its end." +
      (of.waits.length < of.wait_count ? ` The ${count(of.waits.length)} longest are shown.` : "");
  };
  shown.changed.push(tell);
  tell();
  if (recordings.every((each) => each.wait_count === 0)) return;
  legend(section, [["granted", "var(--c1)"], ["ended without memory", "var(--bad)"]]);
  recordings.forEach(set_lanes);
  chart(section, {
    height: 190, unit: "requests at once", format: d3.format("d"), domain: (of) => of.lanes,
    ticks: (most) => d3.range(0, most + 0.01, Math.max(1, Math.ceil(most / 6))),
    draw(group, y, of) {
      if (shown.by !== "time") return;
      for (const each of of.waits) {
        const left = Math.max(0, x(each.begin)), right = Math.min(x.range()[1], x(each.end));
        if (right < 0 || left > x.range()[1]) continue;
        group.append("rect").attr({ x: left, width: Math.max(1, right - left), y: y(each.lane + 1) + 0.5,
          height: Math.max(0.5, y(0) - y(1) - 1), fill: each.refused ? "var(--bad)" : "var(--c1)" });
      }
      if (of.waits.length === 0) group.append("text").attr({ x: 10, y: 20 }).text("none");
    },
    read(of) {
      const at = shown.cursor, open = of.waits.filter((each) => each.begin <= at && each.end >= at);
      if (shown.by !== "time") return "shown over time alone";
      const sizes = open.slice(0, 4).map((each) => bytes(each.bytes)).join(", ");
      return `${open.length} wait` + (open.length ? ", for " + sizes : "");
    },
  });
}
// Each wait gets the lowest lane that is empty when it begins.
function set_lanes(of) {
  const ends = [];
  for (const each of of.waits) {
    let lane = ends.findIndex((last) => last <= each.begin);
    if (lane < 0) lane = ends.length;
    ends[lane] = each.end;
    each.lane = lane;
  }
  of.lanes = Math.max(1, ends.length);
}

function draw_map() {
  if (recordings.every((each) => each.frames.length === 0)) return;
  const section = view("map", "Map of the pool's memory",
    "All addresses that ever had memory, from left to right and from top to bottom. The stream that holds most of a " +
    "cell colors it; the paler, the less of it is live. The blue line in the curves is the time of the map.");
  const tools = make(section, "div.row"), label = make(tools, "label", "Time "), slider = make(label, "input");
  label.style.cssText = "display:flex;flex:1 1 300px;gap:8px";
  slider.type = "range";
  slider.min = 0;
  const jump = (text, name) => button(tools, text, "show the map at " + text, () => {
    slider.value = current().frames.findIndex((frame) => frame.row >= current()[name].row);
    draw();
  });
  jump("peak live", "peak_live");
  jump("peak reserved", "peak_reserved");
  jump("worst fragmentation", "worst");
  const state = make(section, "p"), keys = make(section, "div"), canvas = make(section, "canvas");
  canvas.setAttribute("role", "img");
  const readout = make(section, "div.readout"), across = 128;
  let size = 8;

  function draw() {
    const of = current(), index = Number(slider.value), frame = of.frames[index];
    if (!frame) return;
    const cells = of.cells, down = Math.ceil(cells / across), style = getComputedStyle(document.documentElement);
    const paint = (name) => style.getPropertyValue(name).trim();
    size = (x.range()[1] + margin.left + margin.right - 2) / across;
    const height = Math.max(2, Math.min(12, Math.floor(420 / down)));
    const ratio = window.devicePixelRatio || 1;
    canvas.width = across * size * ratio;
    canvas.height = down * height * ratio;
    canvas.style.width = across * size + "px";
    canvas.style.height = down * height + "px";
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.fillStyle = paint("--none");
    pen.fillRect(0, 0, across * size, down * height);
    const first = index * cells;
    for (let i = 0; i < cells; ++i) {
      const kind = of.data.cells[first + i];
      if (kind === 0) continue;
      const left = Math.round((i % across) * size), wide = Math.round(((i % across) + 1) * size) - left;
      const top = Math.floor(i / across) * height;
      pen.globalAlpha = 1;
      pen.fillStyle = paint("--free");
      pen.fillRect(left, top, wide - 0.5, height - 0.5);
      if (kind === 1) continue;
      pen.globalAlpha = 0.3 + 0.7 * (of.data.shares[first + i] / 255);
      pen.fillStyle = paint(`--c${kind - 2}`);
      pen.fillRect(left, top, wide - 0.5, height - 0.5);
    }
    state.textContent = `${time(frame.microseconds)}, row ${count(frame.row + 1)}: ${bytes(frame.live)} live in ` +
      `${count(frame.blocks)} blocks, ${bytes(frame.reserved)} reserved. A cell is ${bytes(of.cell_bytes)}.`;
    canvas.setAttribute("aria-label", "Map of memory at " + state.textContent);
    slider.setAttribute("aria-valuetext", time(frame.microseconds));
    shown.moment = frame;
    shown.redraw.forEach((each) => each.cursor());
  }
  function change() {
    const of = current();
    section.style.display = of.frames.length ? "" : "none";
    slider.max = Math.max(0, of.frames.length - 1);
    slider.value = of.frames.findIndex((frame) => frame.row >= of.peak_live.row);
    keys.replaceChildren();
    const streams = of.colors.map((name, i) => [name, color(i)]);
    legend(keys, [...streams, ["free", "var(--free)"], ["no memory", "var(--none)"]]);
    draw();
  }
  canvas.onmousemove = (event) => {
    const of = current(), height = canvas.clientHeight / Math.ceil(of.cells / across);
    const cell = Math.floor(event.offsetY / height) * across + Math.floor(event.offsetX / size);
    if (cell < 0 || cell >= of.cells || event.offsetX >= across * size) return;
    const kind = of.data.cells[Number(slider.value) * of.cells + cell];
    const share = of.data.shares[Number(slider.value) * of.cells + cell] / 255;
    let offset = cell * of.cell_bytes, address = "";
    for (const [begin, length] of of.runs) {
      if (offset < length) {
        address = "0x" + (BigInt(begin) + BigInt(offset)).toString(16);
        break;
      }
      offset -= length;
    }
    const live = `${percent(share)} live, most of it of ${of.colors[kind - 2]}`;
    readout.textContent = `${address}: ` + (kind === 0 ? "no memory" : kind === 1 ? "free" : live);
  };
  canvas.onmouseleave = () => (readout.textContent = "");
  slider.oninput = draw;
  shown.changed.push(change);
  shown.painted.push(draw);
  change();
}

function draw_holders() {
  const section = view("holders", "Holders at peak live");
  const content = make(section, "div.two");
  const fill = () => {
    const of = current();
    content.replaceChildren();
    for (const [title, name] of [["By stream", "streams"], ["By thread", "threads"], ["By label", "labels"]]) {
      const all = of.holders[name];
      if (all.length === 0) continue;
      const part = make(content, "div");
      make(part, "p.faint", title);
      const body = make(make(part, "table"), "tbody"), most = 12;
      for (const each of all.slice(0, most)) {
        const row = make(body, "tr");
        make(row, "td.name", each.name);
        const bar = make(make(row, "td.bar"), "div");
        bar.style.width = (100 * each.bytes) / Math.max(1, all[0].bytes) + "%";
        const index = name === "streams" ? of.colors.indexOf(each.name) : -1;
        bar.style.background = index < 0 ? color(11) : color(index);
        make(row, "td.number", bytes(each.bytes));
        make(row, "td.number", percent(each.bytes / Math.max(1, of.peak_live.live)));
        make(row, "td.number", count(each.blocks) + (each.blocks === 1 ? " block" : " blocks"));
      }
      if (all.length > most) make(part, "p.faint", `and ${count(all.length - most)} more`);
    }
  };
  shown.changed.push(fill);
  fill();
}

function draw_sizes() {
  const section = view("sizes", "Sizes", "Requested sizes; each bar is a power of two up to the next.");
  const tools = make(section, "div.row"), content = make(section, "div.two");
  let measure = 0;
  select(tools, "Show", ["bytes", "counts"], (chosen) => {
    measure = chosen;
    fill();
  });
  const small = { width: 520, height: 210, left: 66, bottom: 46 };
  function part(title, values, format) {
    const holder = make(content, "div"), of = current();
    make(holder, "p.faint", title);
    const svg = d3.select(holder).append("svg").attr("viewBox", `0 0 ${small.width} ${small.height}`);
    const used = of.sizes.map((each) => each.from), most = d3.max(values) || 1;
    const across = d3.scale.ordinal().domain(used).rangeRoundBands([0, small.width - small.left - 10], 0.15, 0);
    const y = d3.scale.linear().domain([0, most * 1.05]).range([small.height - small.bottom - 8, 0]);
    const group = svg.append("g").attr("transform", `translate(${small.left},8)`);
    const axis = d3.svg.axis().scale(y).orient("left").tickSize(-(small.width - small.left - 10), 0).tickFormat(format);
    const ticks = measure === 0 ? axis.tickValues(byte_ticks(most * 1.05)) : axis.ticks(5);
    group.append("g").attr("class", "axis").call(ticks);
    values.forEach((value, i) => group.append("rect")
      .attr({ x: across(used[i]), width: across.rangeBand(), y: y(value), height: y(0) - y(value), fill: "var(--c1)" })
      .append("title").text(`from ${bytes(used[i])}: ${format(value)}`));
    const every = Math.ceil(used.length / 9);
    used.forEach((size, i) => {
      if (i % every !== 0) return;
      group.append("text").attr({ x: across(size) + across.rangeBand() / 2, y: y(0) + 16, "text-anchor": "middle" })
        .text(bytes(size).replace(/\.0+ /, " "));
    });
    svg.append("text").attr({ class: "title", x: (small.width + small.left) / 2, y: small.height - 6,
      "text-anchor": "middle" }).text("requested bytes");
  }
  function fill() {
    content.replaceChildren();
    const sizes = current().sizes, unit = measure === 0 ? "bytes" : "blocks", format = measure === 0 ? bytes : count;
    part(`Live at the peak, ${unit}`, sizes.map((each) => each[unit + "_at_peak"]), format);
    part(`All allocations, ${unit}`, sizes.map((each) => each[unit]), format);
  }
  shown.changed.push(fill);
  fill();
}

let reasons = [];
async function begin() {
  const page = JSON.parse(document.getElementById("figures-data").textContent);
  recordings = page.recordings;
  reasons = page.reasons;
  attach(recordings, await unpack(document.getElementById("curves-data").textContent.trim()));
  shown.changed = [];
  shown.painted = [];
  draw_header(page.figures);
  draw_comparison();
  draw_tools();
  draw_memory();
  draw_fragmentation();
  draw_reuse();
  draw_waits();
  fit();
  draw_map();
  draw_holders();
  draw_sizes();
  const notes = make(document.querySelector("main"), "details");
  make(notes, "summary", "License of D3, which draws the axes");
  make(notes, "pre", document.getElementById("license-data").textContent);
  zoom.on("zoom", redraw_all);
  addEventListener("resize", () => {
    fit();
    shown.painted.forEach((each) => each());
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown.painted.forEach((each) => each()));
  document.body.dataset.ready = "yes";
}
begin().catch((error) => {
  document.body.dataset.failed = String(error);
  make(document.querySelector("main"), "p", "The page cannot be shown: " + error);
  console.error(error);
});
