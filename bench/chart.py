#!/usr/bin/env python3
"""Draws bench/chart.svg from the first table of bench/README.md: time and reserved memory of each allocator.

usage: python3 bench/chart.py [--check]
  --check  changes nothing and fails if the file is not what the table gives
"""
# SPDX-License-Identifier: Apache-2.0
import math
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PAGE, CHART = FOLDER / "README.md", FOLDER / "chart.svg"
HEADER = re.compile(r"^\| trace \|(.+)\|$", re.M)
CELL = re.compile(r"^([\d,]+) \(([\d.]+)\)$")
WIDTH, ROW, TOP, LABEL, PANEL, GAP = 860, 30, 70, 176, 250, 90
OURS, OTHERS, RANGE, TEXT, FAINT = "#2f7d32", "#a9b8c9", "#3d4854", "#1f2328", "#57606a"
SHOWN = {"pool": "gpumem pool", "effort 1": "gpumem, effort 1", "PyTorch expandable": "PyTorch, expandable"}


def read_table(text):
    """Returns {allocator: [(ns an operation, utilization) for each trace]} of the allocators with both figures."""
    header = HEADER.search(text)
    if not header:
        raise SystemExit(f"{PAGE}: there is no table that begins with a column `trace`")
    names = [name.strip().strip("`") for name in header[1].split("|")]
    values = {name: [] for name in names}
    for line in text[header.end() + 1:].splitlines()[1:]:
        if not line.startswith("|"):
            break
        for name, cell in zip(names, line.strip("|").split("|")[1:]):
            if found := CELL.match(cell.strip()):
                values[name].append((float(found[1].replace(",", "")), float(found[2])))
    return {name: cells for name, cells in values.items() if cells}


def is_ours(name):
    return SHOWN.get(name, "").startswith("gpumem")


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def text_at(x, y, text, size=13, anchor="start", fill=TEXT, weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" '
            f'font-weight="{weight}">{text}</text>')


def panel(left, title, unit, rows, label):
    """Returns bars of the geometric means, and lines from the smallest to the largest value."""
    most = max(max(values) for values in rows.values())
    scale = PANEL / most
    yield text_at(left, TOP - 34, title, 14, weight="bold")
    yield text_at(left, TOP - 16, unit, 12, fill=FAINT)
    for index, (name, values) in enumerate(rows.items()):
        mean, y = geometric_mean(values), TOP + index * ROW
        yield (f'<rect x="{left}" y="{y}" width="{mean * scale:.1f}" height="18" '
               f'fill="{OURS if is_ours(name) else OTHERS}"/>')
        yield (f'<line x1="{left + min(values) * scale:.1f}" y1="{y + 9}" x2="{left + max(values) * scale:.1f}" '
               f'y2="{y + 9}" stroke="{RANGE}" stroke-width="1.5"/>')
        yield text_at(left + max(values) * scale + 6, y + 14, label(mean), 12)


def draw(table):
    names = list(table)
    height = TOP + ROW * len(names) + 56
    time = {name: [ns for ns, _ in table[name]] for name in names}
    memory = {name: [1 / utilization for _, utilization in table[name]] for name in names}
    traces = len(table[names[0]])
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
           'font-family="Helvetica, Arial, sans-serif" role="img">')
    yield "<title>Time and reserved memory of gpumem and of other allocators</title>"
    yield f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    for index, name in enumerate(names):
        yield text_at(LABEL - 12, TOP + index * ROW + 14, SHOWN.get(name, name), anchor="end",
                      weight="bold" if is_ours(name) else "normal")
    yield from panel(LABEL, "Time", "ns an allocation or a free, shorter is better", time, lambda ns: f"{ns:,.0f} ns")
    yield from panel(LABEL + PANEL + GAP, "Memory", "peak reserved / peak live, shorter is better", memory,
                     lambda ratio: f"{ratio:.2f} ×")
    yield text_at(LABEL, height - 30, f"Replay of {traces} traces of PyTorch programs on an H200.", 12, fill=FAINT)
    yield text_at(LABEL, height - 14, "Bar: geometric mean. Line: from the smallest to the largest.", 12, fill=FAINT)
    yield "</svg>"


def main(arguments):
    if arguments not in ([], ["--check"]):
        raise SystemExit(__doc__)
    chart = "\n".join(draw(read_table(PAGE.read_text()))) + "\n"
    if not arguments:
        CHART.write_text(chart)
    elif not CHART.exists() or CHART.read_text() != chart:
        raise SystemExit(f"{CHART} is not what the table gives: run python3 bench/chart.py")


if __name__ == "__main__":
    main(sys.argv[1:])
