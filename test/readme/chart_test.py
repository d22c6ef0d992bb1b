#!/usr/bin/env python3
# The chart is drawn from the table: it needs one, and differs with each figure. An old chart and an unknown option fail.
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "chart.py"
TABLE = """| trace | `pool` | RMM pool | `cuda` |
|---|---|---|---|
| first | 40 (.965) | 1,094 (.819) | 27,317 |
| second | 37 (.976) | 894 (.916) | 35,900 |
"""


def run(page, *arguments):
    """Runs the script beside this page; returns its exit status."""
    (folder / "README.md").write_text(page)
    return subprocess.run([sys.executable, folder / "chart.py", *arguments], capture_output=True).returncode


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "chart.py").write_text(SCRIPT.read_text())
    assert run("no table\n") != 0
    assert run(TABLE, "--check") != 0, "there is no chart yet"
    assert run(TABLE) == 0
    chart = (folder / "chart.svg").read_text()
    assert "RMM pool" in chart and "cuda" not in chart, "an allocator without utilization has no bar"
    assert run(TABLE, "--check") == 0
    assert run(TABLE.replace("37 (", "38 ("), "--check") != 0, "the table has changed"
    assert run(TABLE, "--chek") != 0
