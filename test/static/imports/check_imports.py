#!/usr/bin/env python3
# Checks the import lines of modules/ and src/ against the order of the layers: a layer may use only layers before it.
# SPDX-License-Identifier: Apache-2.0
import re
import sys
from pathlib import Path

LAYERS = ["bridge", "base", "core", "observe", "sources", "pools/ranges", "pools/caches", "pools/shards", "pools/search",
          "pools/backend", "pools/parts", "pools/frees", "pools/waiting", "pools/engine", "pools/hardening", "pools/captures",
          "pools", "adaptors", "containers", "coroutines", "thrust", "snapshot", "growable", "device_heap"]
# Outside the layers: plain C++ that belongs to no module; `c` imports the whole module, as users do.
OUTSIDE = {"c", "simulator", "torch"}
MODULE = re.compile(r"^\s*(export\s+)?module\s+([\w.]+)(?::([\w.]+))?\s*;")
IMPORT = re.compile(r"^\s*(?:export\s+)?import\s+(?:([\w.]+)|:([\w.]+))\s*;")


class Unit:
    def __init__(self, path, root):
        self.path = path.relative_to(root)
        folder = self.path.parts[1:-1]
        self.layer = "/".join(folder if folder[:1] == ("pools",) else folder[:1]) or None
        self.exported, self.module, self.partition, self.imports = False, None, None, []
        text = re.sub(r"/\*.*?\*/", lambda c: "\n" * c[0].count("\n"), path.read_text(), flags=re.S)
        for number, line in enumerate(text.splitlines(), 1):
            line = line.split("//")[0]
            if found := MODULE.match(line):
                self.exported, self.module, self.partition = bool(found[1]), found[2], found[3]
            elif found := IMPORT.match(line):
                self.imports.append((number, found[1], found[2]))

    def noun(self):
        """Returns the partition's name without the suffix that marks an implementation."""
        return self.partition.split(".")[0] if self.partition else None


def check(root):
    faults = []
    files = sorted([*root.glob("modules/**/*.cppm"), *root.glob("src/**/*.cpp")])
    units = [u for u in (Unit(f, root) for f in files) if u.layer not in OUTSIDE]
    layers = {u.noun(): u.layer for u in units if u.exported and u.partition and u.module == "gpumem"}
    table = next((u for u in units if u.exported and u.module == "gpumem" and not u.partition), None)
    for unit in units:
        faults += check_unit(unit, layers)
    if table is None:
        faults.append("modules: no unit says `export module gpumem;`")
    else:
        listed = {partition for _, _, partition in table.imports}
        faults += [f"{table.path}: does not list :{noun}" for noun in layers if noun not in listed]
    return faults + cycles(units)


def check_unit(unit, layers):
    is_table = unit.exported and unit.module == "gpumem" and not unit.partition
    if is_table:
        return []
    if unit.module is None:
        return [f"{unit.path}: is no module unit"]
    if unit.layer not in LAYERS:
        return [f"{unit.path}: is in no layer"]
    if unit.module == "gpumem" and not unit.partition:
        return [f"{unit.path}: `module gpumem;` imports every layer unseen; make it a partition, :noun.impl"]
    faults = []
    if unit.noun() and unit.path.stem != unit.noun():
        faults.append(f"{unit.path}: is named otherwise than its partition :{unit.partition}")
    if unit.exported and unit.partition and "." in unit.partition:
        faults.append(f"{unit.path}: an interface partition is one noun, not :{unit.partition}")
    for number, module, partition in unit.imports:
        faults += check_import(unit, number, module, partition, layers)
    return faults


def check_import(unit, number, module, partition, layers):
    here = f"{unit.path}:{number}"
    if module:
        own = unit.layer in ("thrust", "snapshot", "growable", "device_heap") and module.startswith("gpumem")
        return [] if own else [f"{here}: imports the module {module}"]
    if unit.module != "gpumem":
        return []  # a partition of a module above gpumem
    if partition not in layers:
        return [f"{here}: imports :{partition}, which is no interface partition"]
    if LAYERS.index(layers[partition]) > LAYERS.index(unit.layer):
        return [f"{here}: {unit.layer} imports :{partition} upward, from {layers[partition]}"]
    return []


def cycles(units):
    """Finds cycles between partitions; an interface and its implementation count as one."""
    graph = {}
    for unit in units:
        if unit.partition and unit.module == "gpumem":
            uses = {partition for _, _, partition in unit.imports if partition and partition != unit.noun()}
            graph.setdefault(unit.noun(), set()).update(uses)
    found, done = [], set()

    def visit(noun, trail):
        if noun in trail:
            found.append("cycle: " + " -> ".join([*trail[trail.index(noun):], noun]))
        elif noun not in done:
            for used in sorted(graph.get(noun, ())):
                visit(used, [*trail, noun])
            done.add(noun)

    for noun in sorted(graph):
        visit(noun, [])
    return found


if __name__ == "__main__":
    failures = check(Path(sys.argv[1]))
    print("\n".join(failures) if failures else "no import points upward")
    sys.exit(1 if failures else 0)
