#!/usr/bin/env python3
# Finds the public declarations of the library: those that the API reference shows.
# SPDX-License-Identifier: Apache-2.0
#
# These rules say which declarations are public:
#   1. An interface shows what it exports, a header all that it declares: in gpumem's namespaces, or for C in none. The
#      namespace `detail`, or one whose name ends so, is the library's own.
#   2. An exported class of `detail` is shown if a shown class derives from it: its members are those of that class.
#   3. A class shows its public members, and those protected ones that have a comment for doxygen.
#   4. A declaration directly below a comment of `//` is the library's own. So is a macro without a comment.
#   5. Some declarations are not shown unless they have a comment: copies, moves and destructors, for which the comment
#      of the class speaks; functions that override those of a base; declarations whose definition has the comment.
#   6. In lines that stand together, the comment above the first of several functions of one name, or of several type
#      aliases, counts for all of them.
#   7. operator== and != without a comment get a sentence: the comment of the class says when two objects are equal.
#   8. A function that returns the data member of its name gets a sentence, unless it returns a bool: name() returns name_.
#   9. A name that a using-declaration takes from CCCL or CUDA is shown as an alias.
# Each other public name needs a comment for doxygen: of `///`, or of `///<` behind it.
import re

from cpp_reader import Comment, read_file

COMPARES = {"operator==": Comment(0, ["Whether both are equal."], True),
            "operator!=": Comment(0, ["Whether both differ."], True)}


class File:
    def __init__(self, root, path):
        self.path, self.is_header = path.relative_to(root / "modules"), path.suffix != ".cppm"
        self.reader, self.declarations = read_file(path)
        self.named = list(self.flatten(self.declarations, (), self.is_header))

    def flatten(self, declarations, space, is_exported):
        """All declarations outside of classes, each with its namespace and whether users can name it."""
        for one in declarations:
            one.space = space
            is_c = self.path.suffix == ".h" and not space
            one.is_own = any(part.endswith("detail") for part in space) or not (space[:1] == ("gpumem",) or is_c)
            one.is_exported = one.is_exported or is_exported
            yield one
            if one.kind == "namespace":
                inner = (*space, *one.name.split("::")) if one.name else space
                yield from self.flatten(one.members, inner, one.is_exported)


class Library:
    """All files, and the names outside of classes: `public` and `own` give the declarations of a name."""

    def __init__(self, root):
        self.files = [File(root, path) for path in sorted((root / "modules").rglob("*"))
                      if path.suffix in (".cppm", ".cuh", ".hpp", ".h") and "scheduled" not in path.parts]
        named = [one for file in self.files for one in file.named]
        forward = {(one.space, one.name) for one in named if is_forward(one) and one.is_exported}
        self.documented = {(one.space, one.head) for one in named if has_doc(one)}
        self.public, self.own, self.shown_bases = {}, {}, set()
        for one in named:
            one.is_exported = one.is_exported or (one.space, one.name) in forward
            if one.kind not in ("namespace", "other", "variable") and not is_forward(one):
                names = self.public if one.is_exported and not one.is_own else self.own
                names.setdefault(one.name.split("::")[-1], []).append(one)
        for ones in self.public.values():
            for one in ones:
                self.show_bases(one)

    def show_bases(self, one):
        for access, base in one.bases:
            for found in self.own.get(base.split("::")[-1], ()) if access == "public" else ():
                if found.is_exported and found not in self.shown_bases:
                    self.shown_bases.add(found)
                    self.show_bases(found)

    def base(self, name):
        """The full name of a shown base; None for one that is the library's own. An alias stands for its class."""
        words = [name.split("::")[-1]]
        if words[0] not in self.own and words[0] not in self.public:
            return name
        for word in words:  # which grows meanwhile
            for one in (*self.public.get(word, ()), *self.own.get(word, ())):
                if one.kind == "class" and (one in self.shown_bases or not one.is_own):
                    return "::".join((*one.space, word))
                if one.kind == "using":
                    return name
                aliases = [alias.head for alias in (one, *one.members) if alias.kind == "alias"]
                words += [more for more in re.findall(r"\w+", " ".join(aliases)) if more not in words]
        return None

    def members(self, declarations, owner=None):
        """Those public ones of the declarations of a namespace, or of the class `owner`, that are shown.

        Sets `shared` to the comment that counts for a declaration without one of its own."""
        before = None
        for one in declarations:
            if one.kind == "namespace":
                yield one
            elif self.is_public(one, owner):
                if not has_doc(one) and is_told_by(owner, one):
                    continue
                one.shared = shared_comment(before, one) or COMPARES.get(one.name) or getter_comment(one)
                if has_doc(one) or one.shared or owner or (one.space, one.head) not in self.documented:
                    yield one
                    before = one

    def is_public(self, one, owner):
        if one.comment and not has_doc(one):
            return False
        if owner:
            is_visible = one.access == "public" or (one.access == "protected" and has_doc(one))
        else:
            is_visible = one in self.shown_bases or (one.is_exported and not one.is_own)
        if one.kind == "using":
            return is_visible and not owner and re.match(r"::(cuda|CU)", one.name)
        if one.kind == "friend" and not (one.is_defined or one.head.endswith("= default")):
            return False
        is_named = one.kind == "enum" or (one.name and one.kind != "other")
        return is_visible and is_named and not is_forward(one) and "template <>" not in one.head


def has_doc(one):
    return bool(one.trailing or (one.comment and one.comment.is_doc))


def is_forward(one):
    return one.kind in ("class", "enum") and not (one.is_defined or one.head.startswith("typedef"))


def shared_comment(before, one):
    """The comment of the declaration before, if it counts for this one too."""
    if has_doc(one) or not before or one.first > before.last + 1 or one.kind != before.kind:
        return None
    return (before.comment or before.shared) if one.kind == "alias" or one.name == before.name else None


def getter_comment(one):
    """The comment of a function that returns the data member of its name."""
    if has_doc(one) or one.returned != f"{one.name}_" or re.search(r"\bbool\b", one.head):
        return None
    return Comment(one.first, [f"Returns the {one.name.replace('_', ' ')}."], True)


def is_told_by(owner, one):
    """Whether the class or a base says enough of a function, so that it is not shown."""
    if one.kind != "function" or not owner:
        return False
    takes_own = re.search(rf"\b{owner.name}(<[^<>]*>)?( const)?&{{0,2}} ?\w*\)", one.head)
    is_special = one.name.startswith("~") or (one.name in (owner.name, "operator=") and takes_own)
    return bool(is_special or one.head.endswith("= delete") or re.search(r"\boverride\b", one.head))
