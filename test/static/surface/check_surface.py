#!/usr/bin/env python3
# Reads the names that the interfaces export, namespace by namespace, and holds them against those that
# api_surface.cpp names: `import gpumem;` shows users no other.
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
PRIVATE = {"detail", "std", "__gnu_cxx"}  # the library's own, and what users' units need of the standard library


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


def exported(text):
    """Pairs of namespace and name that a unit exports."""
    text = TEXT.sub('""', COMMENT.sub("", text))
    names, scopes, head, at = set(), [], "", 0
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
                note(names, scopes, plain)
                head = ""
        elif letter == "}":
            scopes.pop()
            head = ""
        elif letter == ";":
            note(names, scopes, plain.split(" {}")[0])
            head = ""
        else:
            head += letter
    return names


def note(names, scopes, plain):
    space = "::".join(name for name, _ in scopes if name)
    is_open = plain.startswith("export ") or any(is_exported for _, is_exported in scopes)
    skip = re.match(r"(export )?(module|import|static_assert)\b", plain)
    if plain and is_open and not skip and not PRIVATE & set(space.split("::")):
        if name := name_of(plain):
            names.add((space, name))


def check(root):
    found = set()
    for path in sorted(root.glob("modules/**/*.cppm")):
        if "thrust" not in path.parts and "scheduled" not in path.parts:
            found |= exported(path.read_text())
    listed = set()
    for named in re.findall(r"^using ([\w:]+(?:::operator\"\"\w+)?);", (root / "test/static/api_surface.cpp").read_text(), re.M):
        space, _, name = named.rpartition("::")
        listed.add((space, name))
    tell = [f"{space}::{name} is exported, and api_surface.cpp does not name it" for space, name in sorted(found - listed)]
    return tell + [f"api_surface.cpp names {space}::{name}, which is not exported" for space, name in sorted(listed - found)]


if __name__ == "__main__":
    failures = check(Path(sys.argv[1]))
    print("\n".join(failures) if failures else "each exported name is listed")
    sys.exit(1 if failures else 0)
