#!/usr/bin/env python3
# Reads the pages that explain the code: each file and each name of the library that they quote exists.
# SPDX-License-Identifier: Apache-2.0
import re
import sys
from pathlib import Path

PAGES = ["modules/README.md", "modules/pools/README.md", "modules/coroutines/README.md", "src/simulator/README.md"]
SUFFIXES = {".cppm", ".cpp", ".hpp", ".h", ".cu", ".cuh", ".inc", ".py", ".sh", ".cmake", ".map", ".txt"}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
QUOTED = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?")
FILE = re.compile(r"\w\.(?:cppm|cpp|hpp|cu|c|h|inc|md|py|sh|cmake|txt)$")
NAME = re.compile(r"(?:~?\w+(?:::|\.|:))*~?(\w+)(?:\(\))?")
SNAKE = re.compile(r"\b[a-z]\w*_\w+\b")


def words_of(root, folders=("modules", "src")):
    """Each word of the sources: by default of the library's."""
    words = set()
    for folder in folders:
        for path in sorted(root.glob(f"{folder}/**/*")):
            if path.suffix in SUFFIXES or path.name == "CMakeLists.txt":
                words |= set(re.findall(r"\w+", path.read_text()))
    return words


def without_foreign_names(line, is_foreign):
    """A table's row without its last cell, if that names things of other libraries."""
    return "|".join(line.split("|")[:-2]) if is_foreign and line.startswith("|") else line


def check_page(root, page, words):
    text = (root / page).read_text()
    for kind, body in BLOCK.findall(text):
        if kind == "mermaid":
            yield from (name for name in SNAKE.findall(body) if name not in words)
    is_foreign = False
    for line in BLOCK.sub("", text).splitlines():
        if line.startswith("|"):
            is_foreign = is_foreign or line.split("|")[-2].strip() == "elsewhere"
        else:
            is_foreign = False
        line = without_foreign_names(line, is_foreign)
        paths = [path for path in LINK.findall(line) if path]
        for quoted in QUOTED.findall(line):
            if PATH.fullmatch(quoted) and ("/" in quoted or FILE.search(quoted)):
                paths.append(quoted)
            elif (name := NAME.fullmatch(quoted)) and name[1] not in words:
                yield quoted
        for path in paths:
            if not (root / path).exists() and not (root / page).parent.joinpath(path).exists():
                yield path


def check(root, pages):
    words = words_of(root)
    return [f"{page}: there is no {name}" for page in pages for name in dict.fromkeys(check_page(root, page, words))]


if __name__ == "__main__":
    failures = check(Path(sys.argv[1]), PAGES)
    print("\n".join(failures) if failures else "each file and name that the pages quote exists")
    sys.exit(1 if failures else 0)
