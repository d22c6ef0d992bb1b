#!/usr/bin/env python3
"""The page of served functions is that of the code. Arguments: source folder, and --write to write the page."""
# SPDX-License-Identifier: Apache-2.0
import re
import sys
import textwrap
from pathlib import Path

DEFINED = re.compile(r'^(?:extern "C" )?(?:CUresult|cudaError_t|char const\*|cudaChannelFormatDesc)\s+'
                     r"(cu(?:da)?[A-Z]\w*)\(", re.M)
ROW = re.compile(r'row<&\w+>\("(\w+)",')
REFUSED = re.compile(r"cuGetExportTable|cudaLaunch(Cooperative)?Kernel(ExC)?")
ABOUT = {"driver": "entry_*.cpp", "runtime": "runtime/*.cpp"}
HEAD = """# Functions that the simulated device serves

A program on the simulated device may call these. Any other function of the driver or the runtime says on stderr that it
is not simulated, and returns CUDA_ERROR_NOT_SUPPORTED or cudaErrorNotSupported. Functions with the suffixes _ptsz and
_ptds, for the per-thread default stream, are served as those without.

`test/simulator/check_entries.py` compares this page with the code; `--write` writes it anew.
"""


def served(simulator, pattern):
    """The topic and the functions of each source file."""
    for path in sorted(simulator.glob(pattern)):
        text = path.read_text()
        names = sorted(name for name in set(DEFINED.findall(text)) if not REFUSED.fullmatch(name))
        if names:
            yield re.split(r"[.;] ", text.splitlines()[0].removeprefix("// ") + " ")[0], names


def page(simulator):
    text = HEAD
    for kind, pattern in ABOUT.items():
        text += f"\n## The {kind}\n\n"
        for topic, names in served(simulator, pattern):
            text += textwrap.fill(f"- {topic}: {', '.join(names)}", 120, subsequent_indent="  ") + "\n"
    return text


def without_row(simulator):
    """Functions of the driver that cuGetProcAddress does not find under their name or a versioned one."""
    rows = set(ROW.findall((simulator / "entry_rows.inc").read_text()))
    for _, names in served(simulator, ABOUT["driver"]):
        yield from (name for name in names if re.sub(r"_v\d$", "", name) not in rows)


def main():
    simulator = Path(sys.argv[1]) / "src" / "simulator"
    written = simulator / "ENTRIES.md"
    if "--write" in sys.argv:
        written.write_text(page(simulator))
    wrong = [f"{name} has no row in entry_rows.inc" for name in without_row(simulator)]
    if written.read_text() != page(simulator):
        wrong.append("ENTRIES.md is not what the code serves: run test/simulator/check_entries.py . --write")
    print("\n".join(wrong) or "the page of served functions is that of the code")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
