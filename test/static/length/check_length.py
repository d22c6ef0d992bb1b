#!/usr/bin/env python3
# Finds source files with too many lines.
# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

FOLDERS = ["modules", "src", "test", "bench"]
SUFFIXES = {".cppm", ".cpp", ".hpp", ".h", ".cu", ".c", ".py", ".sh", ".cmake"}
MAX_LINES = 600


def check(root):
    paths = sorted(p for folder in FOLDERS for p in root.glob(f"{folder}/**/*")
                   if p.suffix in SUFFIXES or p.name == "CMakeLists.txt")
    lengths = [(path.relative_to(root), len(path.read_text().splitlines())) for path in paths]
    return [f"{path}: {lines} lines, at most {MAX_LINES}" for path, lines in lengths if lines > MAX_LINES]


if __name__ == "__main__":
    failures = check(Path(sys.argv[1]))
    print("\n".join(failures) if failures else f"no file is longer than {MAX_LINES} lines")
    sys.exit(1 if failures else 0)
