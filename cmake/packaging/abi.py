#!/usr/bin/env python3
# Writes the binary interface of the C library as text, by abidw, and compares a library with such a text, by abidiff.
# Both are of Debian's package abigail-tools. The library has debug information where the tests are built.
# SPDX-License-Identifier: Apache-2.0
# usage: abi.py write [LIBRARY [FILE]]     # from build/release, for the version of the tree
#        abi.py compare LIBRARY FILE
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ROOT / "test/packaging/abi"
# As the debug information names them: a build leaves the machine's folders out.
HEADERS = [f"modules/bridge/gpumem/{name}" for name in ("gpumem.h", "graph_memory.h", "growable.h", "gpumem_torch.h",
                                                     "version.h")]
# Within a major version the interface grows: functions are added, and members at the end of structures. Of opaque types
# nothing is part of it.
OPAQUE = "gpumem_pool", "gpumem_growable", "gpumem_graph_memory", "gpumem_capture_scope"
GROWTH = f"""
[suppress_type]
  name_regexp = ^({'|'.join(OPAQUE)})$
[suppress_type]
  name_regexp = ^gpumem_.*
  type_kind = struct
  has_data_member_inserted_at = end
  has_size_change = yes
"""


def write(library, path):
    """Writes the text of the library's interface, which names no folder of the machine."""
    headers = [part for header in HEADERS for part in ("--header-file", header)]
    made = subprocess.run(["abidw", *headers, "--drop-private-types", "--exported-interfaces-only", "--no-corpus-path",
                           "--no-comp-dir-path", "--no-show-locs", "--no-elf-needed",
                           "--type-id-style", "hash", str(Path(library).resolve())],
                          capture_output=True, text=True, cwd=ROOT)
    if made.returncode != 0 or "<class-decl name='gpumem_statistics'" not in made.stdout:
        sys.exit(f"abi.py: abidw found no types in {library}: {made.stderr}")
    path.write_text(made.stdout)


def members(text):
    """Returns (structure, member, offset in bits) of the C structures: abidiff passes over members that change places."""
    structures = [(each, each.get("name")) for each in ElementTree.parse(text).iter("class-decl")]
    return {(name, member.find("var-decl").get("name"), member.get("layout-offset-in-bits"))
            for structure, name in structures if name.startswith("gpumem_") and name not in OPAQUE
            for member in structure.iter("data-member")}


def differences(text, other):
    """Returns what breaks programs made for the first text if the library is that of the other; "" if nothing does."""
    with tempfile.NamedTemporaryFile("w", suffix=".abignore") as rules:
        rules.write(GROWTH)
        rules.flush()
        made = subprocess.run(["abidiff", "--no-added-syms", "--suppressions", rules.name, str(text), str(other)],
                              capture_output=True, text=True)
    if not 0 <= made.returncode < 128 or made.returncode & 3:  # killed, or a file that it could not read
        sys.exit(f"abi.py: abidiff failed: {made.stdout}{made.stderr}")
    moved = "".join(f"the member {member} of {structure} is no longer at bit {offset}\n"
                    for structure, member, offset in sorted(members(text) - members(other)))
    return (made.stdout if made.returncode else "") + moved


def last_text():
    """Returns the text of the newest version; None if there is none."""
    texts = sorted(TEXTS.glob("*.abi"), key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)])
    return texts[-1] if texts else None


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"] and len(sys.argv) <= 4:
        version = re.search(r"project\(gpumem VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
        names = [Path(name) for name in sys.argv[2:]] + [ROOT / "build/release/src/c/libgpumem_c.so",
                                                         TEXTS / f"libgpumem_c-{version}.abi"][len(sys.argv) - 2:]
        write(*names)
    elif sys.argv[1:2] == ["compare"] and len(sys.argv) == 4:
        with tempfile.TemporaryDirectory() as scratch:
            write(sys.argv[2], Path(scratch) / "now.abi")
            sys.exit(differences(sys.argv[3], Path(scratch) / "now.abi") or 0)
    else:
        sys.exit("usage: abi.py write [LIBRARY [FILE]] | compare LIBRARY FILE")
