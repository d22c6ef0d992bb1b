#!/usr/bin/env python3
"""Checks the table of features. Argument: source folder.

Each name in the column "here" is public, and the code of one of the row's tests uses it. Each file exists, and CMake
knows the tests. No name of the column "there" stands in two rows, and no two rows are about the same names and tests.
"""
# SPDX-License-Identifier: Apache-2.0
import re
import sys
from pathlib import Path

ABSENT = "not there"


def code_of(path):
    """Returns the text of a source file without comments."""
    text = path.read_text()
    if path.suffix in (".py", ".sh", ".txt"):
        return re.sub(r'"""(.|\n)*?"""|#.*', "", text)
    return re.sub(r"/\*(.|\n)*?\*/|//.*", "", text)


def names_in(cell):
    """Returns the names in a cell, without those of files."""
    return [name for name in re.findall(r"`([^`]+)`", cell) if "/" not in name]


def parts_of(name):
    return [part for part in re.split(r"\.|::", name) if part != "std"]


def holds(code, word):
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", code) is not None


class Tree:
    """What the check needs to know of the sources."""

    def __init__(self, root):
        self.root = root
        self.code = {}
        files = [path for path in (root / "modules").rglob("*") if path.suffix in (".cppm", ".cuh", ".hpp", ".h", ".py")]
        files.append(root / "src/torch/allocator.cpp")  # PyTorch's users call it
        # The text of each one begins with its name, since Python modules are called by it.
        self.interfaces = {path: f"{path.stem}\n{code_of(path)}" for path in files}
        self.sources = [path.read_text() for path in (root / "src").rglob("*.cpp")]

    def is_public(self, name):
        """Whether one interface has all parts of the name; for a variable of the environment, whether a source has."""
        if name.isupper() and any(f'"{name}"' in code for code in self.sources):
            return True
        return any(all(holds(code, part) for part in parts_of(name)) for code in self.interfaces.values())

    def exists(self, file):
        return (self.root / file).is_file()

    def uses(self, test, name):
        if test not in self.code:
            self.code[test] = code_of(self.root / test)
        return holds(self.code[test], parts_of(name)[-1])

    def is_registered(self, test):
        """Whether CMake, or a source that CMake knows, names the test."""
        folder = (self.root / test).parent
        stem = re.sub("_test$", "", Path(test).stem)
        beside = [path for path in folder.iterdir() if path.suffix in (".txt", ".cpp", ".cu")]
        beside.append(folder.parent / "CMakeLists.txt")
        return any(path.is_file() and re.search(rf"(?<![a-z]){stem}(?![a-z])", path.read_text()) for path in beside)


def wrong_rows(table, tree):
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    if not rows:
        yield "there is no row"
    there_before, here_before = {}, {}
    for row in rows:
        cells = [cell.strip() for cell in row.split("|")]
        if len(cells) != 5:
            yield f"a row has three cells: {row}"
            continue
        there, here, test = cells[1:4]
        tests = re.findall(r"`([^`]+)`", test)
        if not tests and (test != "–" or not here.startswith(ABSENT)):
            yield f"no test is named: {row}"
        for file in tests + [name for name in re.findall(r"`([^`]+)`", here) if "/" in name]:
            if not tree.exists(file):
                yield f"no such file as {file}: {row}"
        tests = [file for file in tests if tree.exists(file)]
        for file in tests:
            if not tree.is_registered(file):
                yield f"CMake does not run {file}: {row}"
        for name in names_in(here):
            if not tree.is_public(name):
                yield f"no interface has {name}: {row}"
            elif tests and not any(tree.uses(file, name) for file in tests):
                yield f"the tests do not use {name}: {row}"
        for name in names_in(there):
            if there_before.setdefault(name, row) != row:
                yield f"{name} has two rows: {row}"
        about = (frozenset(names_in(here)) - {"std::invalid_argument"} or here, frozenset(tests))
        if here_before.setdefault(about, row) != row:
            yield f"two rows are about the same: {row}"


# Rows that are wrong, and a part of what must be said of each.
PLANTED = (
    ("| x | `no_such_name` | `test/base/stream_test.cpp` |", "no interface has no_such_name"),
    ("| x | `buffer.no_such_member` | `test/containers/buffer_test.cpp` |", "no interface has buffer.no_such_member"),
    ("| x | `neither` | `test/base/stream_test.cpp` |", "no interface has neither"),  # in comments alone
    ("| x | `buffer` | `no/such/file` |", "no such file as no/such/file"),
    ("| x | `src/no_such_file` | `test/base/stream_test.cpp` |", "no such file as src/no_such_file"),
    ("| x | `buffer` | `test/base/version_test.cpp` |", "the tests do not use buffer"),
    ("| x | `buffer` | – |", "no test is named"),
    ("| x | `buffer` | `test/static/features.py` | |", "a row has three cells"),
    ("| `x` | a | `test/base/stream_test.cpp` |\n| `x` | b | `test/base/stream_test.cpp` |", "x has two rows"),
    ("| x | a | `test/base/stream_test.cpp` |\n| y | a | `test/base/stream_test.cpp` |", "two rows are about the same"),
)


def main():
    tree = Tree(Path(sys.argv[1]))
    table = (tree.root / "modules/FEATURES.md").read_text()
    wrong = list(wrong_rows(table, tree))
    # The check itself must be able to fail.
    for rows, expected in PLANTED:
        if not any(told.startswith(expected) for told in wrong_rows(f"| a | b | c |\n|---|---|---|\n{rows}", tree)):
            wrong.append(f"this is not found ({expected}): {rows}")
    print("\n".join(wrong) or "every row is correct")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
