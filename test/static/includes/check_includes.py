#!/usr/bin/env python3
# Finds names of the C and C++ libraries for which a file neither includes the header nor imports the module. Whether
# such a name compiles depends on which headers one version of the library happens to include.
# SPDX-License-Identifier: Apache-2.0
import functools
import os
import re
import sys
from pathlib import Path

sys.dont_write_bytecode = True
from standard_headers import MACROS, STD  # noqa: E402

FOLDERS = ["modules", "src", "test", "bench", "cmake"]
SUFFIXES = {".cppm", ".cpp", ".hpp", ".h", ".cu", ".c"}
COMMENT_OR_TEXT = re.compile(
    r'//[^\n]*|/\*.*?\*/|'
    r'(?P<text>R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:[^"\\\n]|\\.)*"|(?<!\w)\'(?:[^\'\\\n]|\\.)+\')', re.S)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.M)
IMPORT = re.compile(r"^[ \t]*(export\s+)?import\s+([\w.]*)(?::([\w.]+))?\s*;", re.M)
MODULE = re.compile(r"^[ \t]*(?:export\s+)?module\s+([\w.]+)(?::([\w.]+))?\s*;", re.M)
ASKED = re.compile(r"\bdefined\s*\(\s*\w+\s*\)|#[ \t]*ifn?def\s+\w+")
EXPORTED = re.compile(r"^export namespace std \{(.*?)^\}", re.M | re.S)
STD_NAME = re.compile(r"(?<!\w::)\bstd::(ranges::\w+|\w+)")
WORD = re.compile(r"[A-Za-z_]\w*")


def blank(text, keep_text):
    """Returns the text without comments, and without literals unless `keep_text`; line numbers stay the same."""
    return COMMENT_OR_TEXT.sub(lambda c: c[0] if keep_text and c["text"] else " " + "\n" * c[0].count("\n"), text)


class File:
    def __init__(self, path, root):
        text = blank(path.read_text(), keep_text=True)
        self.path, self.includes, self.imports = path.relative_to(root), INCLUDE.findall(text), IMPORT.findall(text)
        named = MODULE.search(text)
        self.module, self.partition = (named[1], named[2] or "") if named else ("", "")
        self.code = blank(INCLUDE.sub("", ASKED.sub("", text)), keep_text=False)
        self.exports = {name for body in EXPORTED.findall(self.code) for name in re.findall(r"using std::(\w+);", body)}

    def is_bare(self):
        """Returns whether it is a header without includes, whose includers must provide the names that it uses."""
        return self.path.suffix == ".hpp" and not self.includes


class Tree:
    def __init__(self, root):
        paths = sorted(p for folder in FOLDERS for p in root.glob(f"{folder}/**/*") if p.suffix in SUFFIXES)
        self.files = [File(path, root) for path in paths]
        self.at = {file.path: file for file in self.files}
        self.units = {(file.module, file.partition): file for file in self.files if file.module}

    def header(self, file, name):
        """Returns the project's header that an include names; None for a library's header."""
        beside = Path(os.path.normpath(file.path.parent / name))
        return self.at.get(beside) or next((f for f in self.files if f"/{f.path}".endswith(f"/{name}")), None)

    def reach(self, file):
        """Returns the library headers and the bare headers that a file includes, itself or through other headers."""
        libraries, bare, seen, todo = set(), [], {file}, [file]
        while todo:
            at = todo.pop()
            for name in at.includes:
                header = self.header(at, name)
                if header is None:
                    libraries.add(name)
                elif header not in seen:
                    seen.add(header)
                    (bare if header.is_bare() else todo).append(header)
        return libraries, bare

    def imported(self, file):
        """Returns the names of std that the file's imports export; a module exports those of its partitions."""
        names = set()
        for _, module, partition in file.imports:
            if unit := self.units.get((module or file.module, partition)):
                names |= unit.exports
                again = [p for export, _, p in unit.imports if export and not partition]
                names = names.union(*(u.exports for p in again if (u := self.units.get((unit.module, p)))))
        return names


@functools.cache
def std_headers(name):
    return [header for header, pattern in STD.items() if re.fullmatch(pattern, name)]


@functools.cache
def macro_headers(name):
    """Returns the headers that define the macro; <cstdint> and <stdint.h> define the same ones."""
    found = [header for header, pattern in MACROS.items() if re.fullmatch(pattern, name)]
    return found + [f"{header[1:]}.h" for header in found if header.startswith("c")]


def faults_of(file, tree):
    libraries, bare = tree.reach(file)
    imported, told = tree.imported(file), {}
    for part in [file, *bare]:
        for found in STD_NAME.finditer(part.code):
            if found[1] not in imported and libraries.isdisjoint(std_headers(found[1])):
                told.setdefault(found[0], (part, found.start(), std_headers(found[1])))
        for found in WORD.finditer(part.code):
            if (known := macro_headers(found[0])) and libraries.isdisjoint(known):
                told.setdefault(found[0], (part, found.start(), known))
    for name, (part, at, known) in told.items():
        line, place = part.code.count("\n", 0, at) + 1, "" if part is file else f", included by {file.path}"
        wanted = " or ".join(f"<{header}>" for header in known) or "a row of standard_headers.py for it"
        yield f"{part.path}:{line}{place}: {name} without {wanted}"


def check(root):
    tree = Tree(root)
    return [fault for file in tree.files if not file.is_bare() for fault in faults_of(file, tree)]


if __name__ == "__main__":
    failures = check(Path(sys.argv[1]))
    print("\n".join(failures) if failures else "each file includes or imports the names that it uses")
    sys.exit(1 if failures else 0)
