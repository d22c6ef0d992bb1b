#!/usr/bin/env python3
# The page in headless Chromium: nothing fails, each view is drawn, zoom by mouse and keyboard, light and dark.
# SPDX-License-Identifier: Apache-2.0
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import logs
import torch_memory
from browser import Browser

program, root, chromium, writer = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
failures = []


def check(fact, what):
    if not fact:
        failures.append(what)


def count(browser, selector):
    return browser.evaluate(f"document.querySelectorAll({selector!r}).length")


def text_of(browser, selector):
    return browser.evaluate(f"document.querySelector({selector!r}).textContent")


def shown_range(browser):
    return [float(number) for number in browser.evaluate("document.body.dataset.range").split()]


def key(browser, name):
    text = {"text": name} if len(name) == 1 else {}
    browser.call("Input.dispatchKeyEvent", type="keyDown", key=name, **text)
    browser.call("Input.dispatchKeyEvent", type="keyUp", key=name)


def mouse(browser, kind, x, y, **more):
    browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)


def place_of(browser, selector):
    """Returns the middle of the element, when the page has ended to scroll."""
    return browser.evaluate(f"""new Promise((done) => {{ const place = document.querySelector({selector!r});
        let before = null, same = 0;
        const look = () => {{ place.scrollIntoView({{block: "center", behavior: "instant"}});
            const box = place.getBoundingClientRect(), now = [box.left + box.width / 2, box.top + box.height / 2];
            same = String(now) === before ? same + 1 : 0;
            before = String(now);
            same > 3 ? done(now) : requestAnimationFrame(look); }};
        look(); }})""")


def painted(browser):
    """Returns how many colors the map has."""
    return browser.evaluate("""(() => { const canvas = document.querySelector("#map canvas");
        const dots = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, seen = new Set();
        for (let i = 0; i < dots.length; i += 4) seen.add(dots[i] << 16 | dots[i + 1] << 8 | dots[i + 2]);
        return seen.size; })()""")


def check_views(browser, name, views):
    for view, selector in views.items():
        check(count(browser, f"#{view} {selector}") > 0, f"{name}: the view {view} is not drawn")
    paths = browser.evaluate("""[...document.querySelectorAll(".content path")]
        .filter((path) => path.closest("section").style.display !== "none").map((path) => path.getAttribute("d"))""")
    check(bool(paths) == ("memory" in views), f"{name}: there are no curves, or too many")
    check(all(path and "NaN" not in path for path in paths), f"{name}: a curve is empty")
    check(painted(browser) > 3, f"{name}: the map is empty")
    wide = browser.evaluate("document.documentElement.scrollWidth")
    check(wide <= browser.width, f"{name}: the page is wider than the window")
    untitled = browser.evaluate("""[...document.querySelectorAll(".chart svg")].filter((svg) => {
        const titles = [...svg.querySelectorAll("text.title")];
        return titles.length < 2 || !titles.every((text) => text.textContent); }).length""")
    check(untitled == 0, f"{name}: an axis has no title")


def check_zoom(browser):
    whole = shown_range(browser)
    x, y = place_of(browser, "#memory .frame")
    mouse(browser, "mouseWheel", x, y, deltaX=0, deltaY=-200)
    check(shown_range(browser) == whole, "the wheel zooms a chart without the focus")
    x, y = place_of(browser, "#memory .frame")
    mouse(browser, "mousePressed", x, y, button="left", clickCount=1)
    mouse(browser, "mouseReleased", x, y, button="left", clickCount=1)
    mouse(browser, "mouseWheel", x, y, deltaX=0, deltaY=-400)
    near = shown_range(browser)
    check(near[1] - near[0] < 0.9 * (whole[1] - whole[0]), "the wheel does not zoom")
    mouse(browser, "mousePressed", x, y, button="left", clickCount=1)
    mouse(browser, "mouseMoved", x - 80, y, button="left", buttons=1)
    mouse(browser, "mouseReleased", x - 80, y, button="left", clickCount=1)
    check(shown_range(browser)[0] > near[0], "dragging does not move")
    key(browser, "0")
    check(shown_range(browser) == whole, "0 does not show all")
    key(browser, "+")
    near = shown_range(browser)
    check(near[1] - near[0] < 0.9 * (whole[1] - whole[0]), "+ does not zoom")
    key(browser, "ArrowRight")
    check(shown_range(browser)[0] > near[0], "→ does not move")
    for _ in range(9):
        key(browser, "ArrowLeft")
    check(shown_range(browser)[0] == whole[0], "← does not stop at the begin")
    for _ in range(40):
        key(browser, "+")
    near = shown_range(browser)
    check(0 < near[1] - near[0] < (whole[1] - whole[0]) / 50, "the zoom stops early")
    mouse(browser, "mouseMoved", x, y)
    check("live" in text_of(browser, "#memory .readout"), "there is no readout")
    key(browser, "Home")
    browser.evaluate("""(() => { const over = [...document.querySelectorAll(".tools select")].at(-1);
        over.value = 1; over.dispatchEvent(new Event("change")); })()""")
    check(shown_range(browser)[1] != whole[1], "the axis does not change to rows")


def check_map(browser):
    state = "#map p:nth-of-type(2)"
    before, colors = text_of(browser, state), painted(browser)
    browser.evaluate("""(() => { const slider = document.querySelector("#map input"); slider.value = 1;
        slider.dispatchEvent(new Event("input")); })()""")
    check(text_of(browser, state) != before, "the slider does not change the map")
    browser.evaluate("""document.querySelector("#map button").click()""")
    check(text_of(browser, state) == before and painted(browser) == colors, "the button does not show the peak")
    x, y = place_of(browser, "#map canvas")
    mouse(browser, "mouseMoved", x, y)
    check("0x7f" in text_of(browser, "#map .readout"), "the map shows no address")


def check_snapshots(browser, folder):
    """Pages of snapshots: alone, with the trace of PyTorch, and beside each other."""
    memory = torch_memory.Memory(seed=1).run(600)
    (folder / "traced.pickle").write_bytes(pickle.dumps(torch_memory.snapshot([memory]), 4))
    subprocess.run([writer, folder], check=True, stdout=subprocess.DEVNULL)
    pages = {"waiting": ["waiting.json"], "traced": ["traced.pickle"], "changed": ["before.json", "traced.pickle"]}
    always = {"figures": "td", "map": "canvas", "holders": "td.bar div", "sizes": "rect"}
    timed = {"memory": ".content path", "fragmentation": ".content path"}
    more = {"waiting": {"snapshot": "td"}, "traced": timed, "changed": {"changes": "td.bar div"}}
    for name, files in pages.items():
        subprocess.run([program, *files, "-o", f"{name}.html"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        for width, dark in ((1280, False), (800, True)):
            browser.show(folder / f"{name}.html", width, dark=dark)
            check_views(browser, f"{name}, {width} px", always | more[name])
    check(browser.evaluate("getComputedStyle(document.querySelector('#memory')).display") == "none",
          "a snapshot without a trace shows curves")
    browser.evaluate("""(() => { const file = document.querySelector(".tools select");
        file.value = 1; file.dispatchEvent(new Event("change")); })()""")
    check_views(browser, "changed, the second file", always | timed)
    check(browser.evaluate("getComputedStyle(document.querySelector('#memory')).display") != "none",
          "the curves of a trace are hidden")
    for selector in ("#map select", "#holders select"):
        state = "document.querySelector('main').innerHTML + document.querySelector('#map canvas').toDataURL()"
        before = browser.evaluate(state)
        browser.evaluate(f"""(() => {{ const chosen = document.querySelector({selector!r});
            chosen.value = 0; chosen.dispatchEvent(new Event("change")); }})()""")
        check(browser.evaluate(state) != before, f"{selector} changes nothing")


def main(folder):
    logs.busy_log(folder / "busy.log")
    pages = {"busy": [folder / "busy.log"], "etl": [root / "bench/traces/etl_skew.csv.gz"],
             "both": [folder / "busy.log", root / "bench/traces/etl_skew.csv.gz"]}
    views = {"figures": "td", "memory": ".content path", "fragmentation": ".content path", "reuse": ".content rect",
             "map": "canvas", "holders": "td.bar div", "sizes": "rect"}
    for name, files in pages.items():
        subprocess.run([program, *files, "-o", folder / f"{name}.html"], check=True, stdout=subprocess.DEVNULL)
    browser = Browser(chromium)
    try:
        for name in pages:
            more = {} if name == "etl" else {"waits": ".content rect"}
            more |= {"comparison": "path"} if name == "both" else {}
            backs = []
            for width, dark in ((1280, False), (800, True)):
                browser.show(folder / f"{name}.html", width, dark=dark)
                check_views(browser, f"{name}, {width} px", views | more)
                backs.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
            check(backs[0] != backs[1], "light and dark are the same")
        browser.show(folder / "busy.html")
        check_map(browser)
        check_zoom(browser)
        browser.show(folder / "both.html")
        first = text_of(browser, "#holders")
        browser.evaluate("""(() => { const file = document.querySelector(".tools select");
            file.value = 1; file.dispatchEvent(new Event("change")); })()""")
        check(text_of(browser, "#holders") != first, "the file does not change")
        check_snapshots(browser, folder)
        failures.extend(browser.complaints())
        # A damaged page says so.
        text = (folder / "etl.html").read_text()
        (folder / "damaged.html").write_text(text.replace('id="curves-data">', 'id="curves-data">!', 1))
        browser.events.clear()
        try:
            browser.show(folder / "damaged.html")
        except SystemExit:
            pass
        check(browser.complaints(), "a damaged page has no error")
    finally:
        browser.close()
    if failures:
        sys.exit("\n".join(failures))


with tempfile.TemporaryDirectory() as folder:
    main(Path(folder))
