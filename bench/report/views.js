// The views of the page that gpumem-report writes. SPDX-License-Identifier: Apache-2.0
/* global d3, shown, zoom, recordings:writable, current, x, make, view, legend, chart, select, button, fit, time */
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

// Hides an element where the chosen recording has nothing for it.
function show_if(element, condition) {
  const change = () => (element.style.display = condition(current()) ? "" : "none");
  shown.changed.push(change);
  change();
}
const is_timed = (of) => of.timed;
const has_memory = (of) => of.memory !== "none";

function draw_tools() {
  if (recordings.length < 2 && !recordings.some(is_timed)) return;
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
  if (!recordings.some(is_timed)) return;
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
  const compared = recordings.filter(is_timed);
  if (compared.length < 2) return;
  const section = view("comparison", "Live and reserved, side by side",
    "Filled: live bytes. Line: reserved bytes. All have the same scale.");
  const most = d3.max(compared, (each) => d3.max([each.peak_live.live, each.peak_reserved.reserved]));
  const grid = make(section, "div.two");
  const small = { width: 480, height: 170, left: 70, bottom: 24 };
  for (const recording of compared) {
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
    if (has_memory(recording))
      draw_line(group, path(recording.data.reserved));
  }
}

function draw_line(group, path) {
  group.append("path").attr({ d: path, fill: "none", stroke: "var(--reserved)", "stroke-width": 1.6 });
}

function signed(before, after) {
  return (after < before ? "−" : "+") + bytes(Math.abs(after - before));
}

// The changes from the first recording to the others.
function draw_changes() {
  if (recordings.length < 2) return;
  const section = view("changes", "Changes", "Bytes and blocks of each holder, the largest differences first.");
  const moment = (of) => of.name + (of.snapshot ? "" : " at peak live");
  for (const after of recordings.slice(1)) {
    const { changes } = after, before = recordings[0];
    const all = [["live", [["", changes.before.live, changes.after.live, changes.before.blocks, changes.after.blocks]]]];
    if (has_memory(before) && has_memory(after))
      all.push(["reserved", [["", changes.before.reserved, changes.after.reserved]]]);
    all.push(["by label", changes.labels], ["by stream", changes.streams], ["by size", changes.sizes]);
    make(section, "p", `From ${moment(before)} to ${moment(after)}`);
    const body = make(make(make(section, "div.wide"), "table"), "tbody"), most = 12;
    const largest = d3.max(all.flatMap(([, rows]) => rows.map((row) => Math.abs(row[2] - row[1])))) || 1;
    for (const [title, rows] of all) {
      rows.slice(0, most).forEach(([name, first, second, blocks_before, blocks_after], index) => {
        const row = make(body, "tr");
        make(row, "th", index === 0 ? title : "").scope = "row";
        make(row, "td.name", name);
        make(row, "td.number", signed(first, second));
        const bar = make(make(row, "td.bar"), "div");
        bar.style.width = (100 * Math.abs(second - first)) / largest + "%";
        bar.style.background = second < first ? "var(--live)" : "var(--bad)";
        make(row, "td.number", `${bytes(first)} → ${bytes(second)}`);
        make(row, "td.number", blocks_after === undefined ? "" :
          `${count(blocks_before)} → ${count(blocks_after)} blocks`);
      });
      if (rows.length > most) make(make(body, "tr"), "td", `and ${count(rows.length - most)} more`).colSpan = 6;
    }
  }
}

// The thread caches and the waiting requests of a snapshot.
function draw_snapshot() {
  if (!recordings.some((of) => of.snapshot && (of.snapshot.caches.length || of.snapshot.waiting.length))) return;
  const section = view("snapshot", "Thread caches and waiting requests");
  const content = make(section, "div.two");
  const list = (title, names, rows) => {
    const part = make(content, "div");
    make(part, "p.faint", rows.length ? title : title + ": none");
    if (rows.length === 0) return;
    const table = make(part, "table"), head = make(make(table, "thead"), "tr"), body = make(table, "tbody");
    names.forEach((name) => make(head, "th", name));
    for (const values of rows.slice(0, 40)) {
      const row = make(body, "tr");
      values.forEach((value) => make(row, "td", value));
    }
  };
  const fill = () => {
    content.replaceChildren();
    if (!current().snapshot) return;
    const { caches, waiting } = current().snapshot;
    list("Thread caches", ["thread", "cached", "allocations", "frees"],
      caches.map(([thread, cached, ...calls]) => [thread, bytes(cached), ...calls.map(count)]));
    list("Requests that wait, the first one in the queue first", ["size", "stream", "has waited", "scope"],
      waiting.map(([size, stream, waited, scope]) => [bytes(size), stream, time(waited / 1000), scope]));
  };
  shown.changed.push(fill);
  fill();
  show_if(section, (of) => of.snapshot);
}

function draw_memory() {
  if (!recordings.some(is_timed)) return;
  const section = view("memory", "Live and reserved over time",
    "Live: bytes that the program asked for and has not freed. Reserved: what the pool has from the driver.");
  show_if(section, is_timed);
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
      if (has_memory(of)) draw_line(group, step_path(of, (i) => reserved[i], y));
    },
    read(of, i) {
      const text = `${bytes(of.data.live_most[i])} live`;
      return !has_memory(of) ? text : `${text}, ${bytes(of.data.reserved[i])} reserved`;
    },
  });
}

function draw_fragmentation() {
  const has_curve = (of) => is_timed(of) && has_memory(of);
  if (!recordings.some(has_curve)) return;
  const section = view("fragmentation", "Fragmentation over time",
    "1 − largest free range / free bytes. Free: reserved, and in no live block.");
  show_if(section, has_curve);
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
  const is_known = (of) => is_timed(of) && of.memory !== "snapshot";
  if (!recordings.some(is_known)) return;
  const section = view("reuse", "How allocations were served",
    "Shares of the allocations at each time, by where the pool found the memory.");
  show_if(section, is_known);
  const used = d3.range(reasons.length)
    .filter((how) => recordings.some((each) => is_known(each) && each.served[how] > 0));
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
  const is_known = (of) => is_timed(of) && of.memory !== "snapshot";
  if (!recordings.some(is_known)) return;
  const section = view("waits", "Requests that waited");
  show_if(section, is_known);
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
    "All addresses that ever had memory, from left to right and from top to bottom. The holder of most of a cell " +
    "colors it; the paler, the less of it is live." +
    (recordings.some(is_timed) ? " The blue line in the curves is the time of the map." : ""));
  show_if(section, (of) => of.frames.length);
  let by_label = recordings.some((each) => each.label_colors.length) ? 1 : 0;
  const tools = make(section, "div.row");
  if (by_label) {
    const chosen = select(tools, "Colors of", ["streams", "labels"], (chosen) => {
      by_label = chosen;
      change();
    });
    chosen.value = by_label;
    show_if(chosen.parentElement, (of) => of.label_colors.length);
  }
  const times = make(tools, "div.row"), label = make(times, "label", "Time "), slider = make(label, "input");
  times.style.flex = "1 1 420px";
  show_if(times, (of) => of.frames.length > 1);
  const colors = (of) => (by_label && of.label_colors.length ? of.label_colors : of.colors);
  const cells = (of) => (by_label && of.label_colors.length ? of.data.label_cells : of.data.cells);
  label.style.cssText = "display:flex;flex:1 1 300px;gap:8px";
  slider.type = "range";
  slider.min = 0;
  const jump = (text, name) => button(times, text, "show the map at " + text, () => {
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
    const kinds_of = cells(of), down = Math.ceil(of.cells / across), style = getComputedStyle(document.documentElement);
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
    const first = index * of.cells;
    for (let i = 0; i < of.cells; ++i) {
      const kind = kinds_of[first + i];
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
    const when = of.timed ? `${time(frame.microseconds)}, row ${count(frame.row + 1)}: ` : "";
    state.textContent = `${when}${bytes(frame.live)} live in ` +
      `${count(frame.blocks)} blocks, ${bytes(frame.reserved)} reserved. A cell is ${bytes(of.cell_bytes)}.`;
    canvas.setAttribute("aria-label", "Map of memory at " + state.textContent);
    slider.setAttribute("aria-valuetext", time(frame.microseconds));
    shown.moment = frame;
    shown.redraw.forEach((each) => each.cursor());
  }
  function change() {
    const of = current();
    slider.max = Math.max(0, of.frames.length - 1);
    slider.value = of.frames.findIndex((frame) => frame.row >= (of.snapshot ? of.last : of.peak_live).row);
    keys.replaceChildren();
    legend(keys, [...colors(of).map((name, i) => [name, color(i)]), ["free", "var(--free)"], ["no memory", "var(--none)"]]);
    draw();
  }
  canvas.onmousemove = (event) => {
    const of = current(), height = canvas.clientHeight / Math.ceil(of.cells / across);
    const cell = Math.floor(event.offsetY / height) * across + Math.floor(event.offsetX / size);
    if (cell < 0 || cell >= of.cells || event.offsetX >= across * size) return;
    const kind = cells(of)[Number(slider.value) * of.cells + cell];
    const share = of.data.shares[Number(slider.value) * of.cells + cell] / 255;
    let offset = cell * of.cell_bytes, address = "";
    for (const [begin, length] of of.runs) {
      if (offset < length) {
        address = "0x" + (BigInt(begin) + BigInt(offset)).toString(16);
        break;
      }
      offset -= length;
    }
    const live = `${percent(share)} live, most of it of ${colors(of)[kind - 2]}`;
    readout.textContent = `${address}: ` + (kind === 0 ? "no memory" : kind === 1 ? "free" : live);
  };
  canvas.onmouseleave = () => (readout.textContent = "");
  slider.oninput = draw;
  shown.changed.push(change);
  shown.painted.push(draw);
  change();
}

function draw_holders() {
  const section = view("holders", "Holders");
  const tools = make(section, "div.row"), content = make(section, "div.lists");
  const moments = ["peak", "end"];
  let when = 0;
  const chosen = select(tools, "Show", ["at peak live", "at the end"], (index) => {
    when = index;
    fill();
  });
  show_if(tools, is_timed);
  const fill = () => {
    const of = current(), live = (when === 0 ? of.peak_live : of.last).live;
    content.replaceChildren();
    for (const [title, name] of [["By label", "labels"], ["By stream", "streams"], ["By thread", "threads"]]) {
      const all = of.holders[moments[when]][name];
      if (all.length === 0) continue;
      const part = make(content, "div");
      make(part, "p.faint", title);
      const body = make(make(part, "table"), "tbody"), most = 12;
      for (const each of all.slice(0, most)) {
        const row = make(body, "tr");
        make(row, "td.name", each.name).title = each.name;
        const bar = make(make(row, "td.bar"), "div");
        bar.style.width = (100 * each.bytes) / Math.max(1, all[0].bytes) + "%";
        const index = { streams: of.colors, labels: of.label_colors, threads: [] }[name].indexOf(each.name);
        bar.style.background = index < 0 ? color(11) : color(index);
        make(row, "td.number", bytes(each.bytes));
        make(row, "td.number", percent(each.bytes / Math.max(1, live)));
        make(row, "td.number", count(each.blocks) + (each.blocks === 1 ? " block" : " blocks"));
      }
      if (all.length > most) make(part, "p.faint", `and ${count(all.length - most)} more`);
    }
    if (live === 0) make(content, "p.faint", "Nothing is live.");
  };
  const change = () => {
    chosen.value = when = current().snapshot ? 1 : 0;
    fill();
  };
  shown.changed.push(change);
  change();
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
    const holder = make(content, "div.small"), of = current();
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
    if (current().timed) {
      part(`Live at the peak, ${unit}`, sizes.map((each) => each[unit + "_at_peak"]), format);
      part(`All allocations, ${unit}`, sizes.map((each) => each[unit]), format);
    }
    if (current().snapshot) part(`Live at the snapshot, ${unit}`, sizes.map((each) => each[unit + "_at_end"]), format);
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
  draw_changes();
  draw_tools();
  draw_memory();
  draw_fragmentation();
  draw_reuse();
  draw_waits();
  fit();
  draw_map();
  draw_holders();
  draw_sizes();
  draw_snapshot();
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
