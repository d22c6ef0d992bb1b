#!/usr/bin/env python3
"""Checks the table of features: every name is in a public interface, every test exists. Argument: source folder."""
# SPDX-License-Identifier: Apache-2.0
import re
import sys
from pathlib import Path


def wrong_rows(table, interfaces, has_file):
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    if not rows:
        yield "there is no row"
    for row in rows:
        _, _, names, test, _ = (cell.strip() for cell in row.split("|"))
        for name in re.findall(r"`([^`]+)`", names):
            if not re.search(rf"(?<!\w){re.escape(name.split('.')[-1])}(?!\w)", interfaces):
                yield f"no interface has {name}: {row}"
        if not has_file(test.strip("`")):
            yield f"no such test: {row}"


def main():
    root = Path(sys.argv[1])
    modules = root / "modules"
    files = [p for p in modules.rglob("*") if p.suffix in (".cppm", ".hpp", ".h", ".py")]
    interfaces = "\n".join(p.read_text() for p in files)
    table = (modules / "FEATURES.md").read_text()
    wrong = list(wrong_rows(table, interfaces, lambda name: (root / name).is_file()))
    # The check itself must be able to fail.
    planted = "| a | b | c |\n|---|---|---|\n| x | `no_such_name` | `no/such/file` |"
    if len(list(wrong_rows(planted, interfaces, lambda name: (root / name).is_file()))) != 2:
        wrong.append("a row that is wrong is not found")
    print("\n".join(wrong) or "every row is correct")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
