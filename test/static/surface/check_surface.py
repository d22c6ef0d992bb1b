#!/usr/bin/env python3
# Reads the names that the interfaces export, namespace by namespace, and holds them against those that
# api_surface.cpp names: `import gpumem;` shows users no other. No name of the library's own equals a public one: in the
# generated interface, where all partitions are visible, it would hide the public one. And no interface has a friend by
# default, at which an importer of GCC 16.2 fails (no report is known).
# SPDX-License-Identifier: Apache-2.0
import re
import sys
from pathlib import Path

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^#(?:\\\n|[^\n])*", re.S | re.M)
TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'')
NAMESPACE = re.compile(r"^(export )?(?:inline )?namespace ([\w:]+)$")
TEMPLATE = re.compile(r"\btemplate (<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>)")
TYPE = re.compile(r"^(?:class|struct|union|enum class|enum|concept|using) (?:alignas\([^)]*\) )?([\w:]+)")
FUNCTION = re.compile(r'(operator""\w+|\w+) ?\(')
VALUE = re.compile(r"(\w+)$")
DEFAULTED_FRIEND = re.compile(r"\bfriend\b[^;{}]*= default;")


def name_of(head):
    """The name that a declaration introduces, given without its body."""
    head = re.sub(r"\[\[.*?\]\]", "", head)
    while template := TEMPLATE.search(head):
        head = head[:template.start()] + head[template.end():]
    head = " ".join(head.removeprefix("export").split())
    head = re.sub(r"^requires.*?(?=\b(?:class|struct) \w+|\b[\w:]+(?:<[^<>]*>)? \w+ ?\()", "", head)
    if found := TYPE.match(head):
        return found[1].split("::")[-1]
    head = head.split(" = ")[0]
    found = FUNCTION.search(head) or VALUE.search(head)
    return found[1] if found else None


def declared(text):
    """Pairs of namespace and name that a unit exports, and those that it declares without an export or as its own."""
    text = TEXT.sub('""', COMMENT.sub("", text))
    names, hidden, scopes, head, at = set(), set(), [], "", 0
    while at < len(text):
        letter = text[at]
        at += 1
        plain = " ".join(head.split())
        if letter == "{" and (found := NAMESPACE.match(plain)):
            scopes.append((found[2], bool(found[1])))
            head = ""
        elif letter == "{" and plain == "export":
            scopes.append(("", True))
            head = ""
        elif letter == "{":
            depth = 1
            while depth:
                depth += {"{": 1, "}": -1}.get(text[at], 0)
                at += 1
            head += " {}"
            is_function = "(" in TEMPLATE.sub("", plain) and not re.search(r"\b(class|struct|enum|requires)\b", plain)
            if is_function or text[at:].lstrip()[:1] not in (";", ","):
                note(names, hidden, scopes, plain)
                head = ""
        elif letter == "}":
            scopes.pop()
            head = ""
        elif letter == ";":
            note(names, hidden, scopes, plain.split(" {}")[0])
            head = ""
        else:
            head += letter
    return names, hidden


def note(names, hidden, scopes, plain):
    space = "::".join(name for name, _ in scopes if name)
    skip = re.match(r"(export )?(module|import|static_assert|using namespace|friend|template class|extern template)\b", plain)
    if not plain or skip or {"std", "__gnu_cxx"} & set(space.split("::")):
        return
    is_open = plain.startswith("export ") or any(is_exported for _, is_exported in scopes)
    if name := name_of(plain):
        (names if is_open and "detail" not in space.split("::") else hidden).add((space, name))


def check(root):
    found, hidden = set(), set()
    for path in sorted(root.glob("modules/**/*.cppm")):
        if not {"thrust", "snapshot", "growable", "device_heap", "scheduled"} & set(path.parts):
            of_unit = declared(path.read_text())
            found |= of_unit[0]
            hidden |= of_unit[1]
    listed = set()
    for named in re.findall(r"^using ([\w:]+(?:::operator\"\"\w+)?);", (root / "test/static/api_surface.cpp").read_text(), re.M):
        space, _, name = named.rpartition("::")
        listed.add((space, name))
    tell = [f"{space}::{name} is exported, and api_surface.cpp does not name it" for space, name in sorted(found - listed)]
    public = {name: space for space, name in found if space in ("gpumem", "gpumem::extend", "gpumem::driver_api")}
    text = "".join(path.read_text() for path in root.glob("modules/**/*.cppm"))
    tell += [f"an interface says `{friend}`: GCC needs a member, or a body" for friend in DEFAULTED_FRIEND.findall(text)]
    tell += [f"{space}::{name} has the name of {public[name]}::{name}" for space, name in sorted(hidden)
             if space == "gpumem::detail" and name in public and f"using {name} = detail::{name};" not in text]
    return tell + [f"api_surface.cpp names {space}::{name}, which is not exported" for space, name in sorted(listed - found)]


if __name__ == "__main__":
    failures = check(Path(sys.argv[1]))
    print("\n".join(failures) if failures else "each exported name is listed")
    sys.exit(1 if failures else 0)
