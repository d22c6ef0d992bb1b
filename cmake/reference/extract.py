#!/usr/bin/env python3
# Writes the public part of the interfaces and headers as plain declarations, which doxygen can read.
# SPDX-License-Identifier: Apache-2.0
#
# Each file of `root`/modules that declares a public name gets a file of that name in `out`. Declarations and comments stay
# on their lines, so that a warning of doxygen gives the line of the source. These rules say which names are public:
#   1. An interface shows what it exports, a header all that it declares: in gpumem's namespaces, or for C in none. The
#      namespace `detail` is the library's own.
#   2. An exported class of `detail` is shown if a shown class derives from it: its members are those of that class.
#   3. A class shows its public members, and those protected ones that have a comment for doxygen.
#   4. A declaration directly below a comment of `//` is the library's own. So is a macro without a comment.
#   5. Some declarations are not shown unless they have a comment: copies, moves and destructors, for which the comment
#      of the class speaks; functions that override those of a base; declarations whose definition has the comment.
#   6. In lines that stand together, the comment above the first of several functions of one name, or of several type
#      aliases, counts for all of them.
#   7. operator== and != without a comment get a sentence: the comment of the class says when two objects are equal.
#   8. A comment of `///` above an empty line of a header is for the whole file.
#   9. A name that a using-declaration takes from CCCL or CUDA is shown as an alias.
# Each other public name needs a comment for doxygen, in which only `code` is marked up. The constraints of a template
# become a part of its comment.
import html
import re

from cpp_reader import MACRO, Comment, read_file

NAME = re.compile(r"(?<![\w:.<@/-])\w+_\w+(?![\w(>/]|::|[.-]\w)")
CODE = re.compile(r"(`[^`]*`)")
TABLE = re.compile(r"^  +\S.*(?:\n  +\S.*)*", re.M)

# In a unit of the library these names need no namespace, nor do they in the declarations of the reference.
OPEN = "namespace gpumem { using namespace gpumem::extend; using namespace gpumem::driver_api; }"

COMPARES = {"operator==": Comment(0, ["Whether both are equal."], True),
            "operator!=": Comment(0, ["Whether both differ."], True)}


class File:
    def __init__(self, root, path):
        self.path, self.is_header = path.relative_to(root / "modules"), path.suffix != ".cppm"
        self.reader, self.declarations = read_file(path)

    def visit(self, call, declarations=None, space=(), is_open=False):
        """Calls `call(declaration, namespace, is_exported)` for each declaration of the namespaces."""
        for one in self.declarations if declarations is None else declarations:
            exported = is_open or one.is_exported or self.is_header
            inner = (*space, *one.name.split("::")) if one.name else space
            call(one, space, exported)
            if one.kind == "namespace":
                self.visit(call, one.members, inner, exported)


class Library:
    """All files, and the classes and aliases of gpumem by their names without namespace."""

    def __init__(self, root):
        self.files = [File(root, path) for path in sorted((root / "modules").rglob("*"))
                      if path.suffix in (".cppm", ".hpp", ".h") and "scheduled" not in path.parts]
        self.public, self.own, self.shown_bases, self.documented = {}, {}, set(), set()
        forward = set()
        for file in self.files:
            file.visit(lambda one, space, _: forward.add((space, one.name)) if is_forward(one) and one.is_exported else 0)
        for file in self.files:
            file.visit(lambda one, space, is_exported: self.note(one, space, is_exported or (space, one.name) in forward))
        for places in self.public.values():
            for one, _ in places:
                self.show_bases(one)

    def note(self, one, space, is_exported):
        one.is_exported = is_exported
        if one.comment and one.comment.is_doc:
            self.documented.add((space, one.head))
        if one.kind not in ("namespace", "other", "variable") and is_gpumem(space) and not is_forward(one):
            own = "detail" in space or not is_exported
            (self.own if own else self.public).setdefault(one.name.split("::")[-1], []).append((one, space))

    def show_bases(self, one):
        for access, base in one.bases if one.kind == "class" else ():
            for found, space in self.own.get(base.split("::")[-1], ()):
                if access == "public" and found.is_exported and found not in self.shown_bases:
                    self.shown_bases.add(found)
                    self.show_bases(found)

    def base(self, name):
        """The full name of a shown base; None for one that is the library's own."""
        last = name.split("::")[-1]
        for found, space in (*self.public.get(last, ()), *self.own.get(last, ())):
            if found.kind == "class" and ("detail" not in space or found in self.shown_bases):
                return "::".join((*space, last))
        return self.behind(last, set()) if last in self.own else name

    def behind(self, name, seen):
        """The shown class that an alias of the library's own names, if need be through others."""
        for one, _ in self.own.get(name, ()):
            for alias in [one, *one.members] if one not in seen else ():
                for word in re.findall(r"\w+", alias.head) if alias.kind == "alias" else ():
                    if word in self.public:
                        return self.base(word)
                    seen.add(one)
                    if found := self.behind(word, seen) if word != name else None:
                        return found
        return None

    def link(self, text):
        """Makes a name of a type or function a link, if there is one such name."""
        places = self.public.get(text, ())
        if len({space for _, space in places}) != 1 or places[0][0].kind == "using":
            return text
        return f'@ref {"::".join((*places[0][1], text))} "{text}"'


def is_forward(one):
    return one.kind in ("class", "enum") and not (one.is_defined or one.head.startswith("typedef"))


def is_gpumem(space):
    return bool(space) and space[0] == "gpumem"


class Page:
    """The text of one file, by lines."""

    def __init__(self, library, file):
        self.library, self.file = library, file
        self.lines = [""] * (len(file.reader.lines) + 1)
        self.is_empty = True
        self.write(0, OPEN)

    def write(self, line, text):
        self.lines[line] += text + " "

    def comment(self, comment, mark="///", more=""):
        lines = self.marked_up("\n".join(comment.lines)).split("\n")
        lines[-1] += more
        for at, text in enumerate(lines):
            self.write(comment.first + at, f"{mark} {text}")

    def marked_up(self, text):
        def words(text):
            text = re.sub(r"[\\<>@#&%]", lambda m: "\\" + m[0], text)
            return NAME.sub(lambda m: self.library.link(m[0]), text)

        def code(text):
            linked = self.library.link(text[1:-1]) if "_" in text else text[1:-1]
            return linked if linked != text[1:-1] else text

        def prose(text):
            return "".join(code(part) if part.startswith("`") else words(part) for part in CODE.split(text))

        done, at = "", 0
        for table in TABLE.finditer(text):
            done += prose(text[at:table.start()]) + "@verbatim " + table[0] + " @endverbatim"
            at = table.end()
        return done + prose(text[at:])

    def scope(self, declarations, space, is_open, owner=None):
        """Writes the declarations of a namespace or of the class `owner`, as far as they are public."""
        before, access = None, "public"
        for one in declarations:
            if one.kind == "namespace":
                self.namespace(one, space, is_open)
                continue
            if not self.is_public(one, space, is_open, owner):
                continue
            if not (one.comment or one.trailing) and is_told_elsewhere(one, owner):
                continue
            one.shared = self.shared(before, one) or COMPARES.get(one.name)
            if not (one.comment or one.trailing or one.shared) and (space, one.head) in self.library.documented:
                continue
            if one.access and one.access != access:
                access = one.access
                self.write(one.comment.first if one.comment else one.first, access + ":")
            self.declaration(one, space)
            before = one

    def namespace(self, one, space, is_open):
        inner = (*space, *one.name.split("::")) if one.name else space
        if one.name:
            if one.comment and one.comment.is_doc and is_gpumem(inner):
                self.comment(one.comment)
            self.write(one.first, f"namespace {one.name} {{")
        self.scope(one.members, inner, is_open or one.is_exported or self.file.is_header)
        if one.name:
            self.write(one.last, "}")

    def is_public(self, one, space, is_open, owner):
        if one.comment and not one.comment.is_doc and not one.trailing:
            return False
        if owner:
            is_documented = one.comment or one.trailing
            is_visible = one.access == "public" or (one.access == "protected" and is_documented)
        elif "detail" in space:
            is_visible = one in self.library.shown_bases
        else:
            is_c = self.file.path.suffix == ".h" and not space
            is_visible = (is_open or one.is_exported or self.file.is_header) and (is_gpumem(space) or is_c)
        if one.kind == "using":
            return is_visible and not owner and re.match(r"::(cuda|CU)", one.name)
        if one.kind == "friend" and not (one.is_defined or one.head.endswith("= default")):
            return False
        has_page = one.kind == "enum" or (one.name and one.kind != "other" and not is_forward(one))
        return is_visible and has_page and "template <>" not in one.head

    def shared(self, before, one):
        """The comment of the declaration before, if it counts for this one too."""
        if one.comment or one.trailing or not before or one.first > before.last + 1:
            return None
        is_alike = one.kind == before.kind == "alias" or (one.name == before.name and one.kind == before.kind)
        return (before.comment or before.shared) if is_alike else None

    def declaration(self, one, space):
        self.is_empty = False
        needs = f" @needs <code>{plain(' && '.join(one.constraints))}</code>" if one.constraints else ""
        if one.kind == "using":
            self.using(one)
            return
        if one.comment:
            self.comment(one.comment, more=needs)
        elif one.shared and not one.trailing:
            text = self.marked_up("\n".join(one.shared.lines)).replace("\n", " ")
            self.write(one.first, f"/** {text}{needs} */")
        head = one.head
        if one.kind in ("class", "enum") and one.is_defined:
            self.body(one, head, space)
        elif one.kind == "concept":
            for line in range(one.first, one.last + 1):
                self.write(line, self.file.reader.code_lines[line].replace("export ", ""))
        else:
            self.write(one.first, head + ";")
            if one.trailing:
                self.comment(Comment(one.first, [" ".join(one.trailing.lines)], True), mark="///<")

    def using(self, one):
        name = one.name.removeprefix("::")
        if not one.comment:
            self.write(one.first, f'/** `{name}` of {"CCCL" if name.startswith("cuda::") else "CUDA"}. */')
        self.write(one.first, f"using {name.split('::')[-1]} = {name};")

    def body(self, one, head, space):
        if one.kind == "enum":
            self.write(one.first, head + " {")
            self.enumerators(one)
        else:
            bases = [(access, self.library.base(name)) for access, name in one.bases if access != "private"]
            named = ", ".join(f"{access or 'public'} {name}" for access, name in bases if name)
            self.write(one.first, head.removesuffix(" final") + (f" : {named}" if named else "") + " { public:")
            self.scope(one.members, space, True, owner=one)
        self.write(one.last, f"}} {one.name if head.startswith('typedef') else ''};")

    def enumerators(self, one):
        reader = self.file.reader
        start, end = one.body
        first, lines = reader.line_of(start), reader.text[start:end].split("\n")
        for at, code in enumerate(reader.code[start:end].split("\n")):
            self.write(first + at, code.strip())
            if found := re.search(r"///(<?)(.*)", lines[at]):
                self.write(first + at, f"///{found[1]} " + self.marked_up(found[2].strip()))

    def macros(self):
        reader = self.file.reader
        for found in MACRO.finditer(reader.text):
            line = reader.line_of(found.start())
            above, behind = reader.comment_above(line), reader.comment_behind(found.start())
            if (above and above.is_doc) or behind:
                self.is_empty = False
                if above:
                    self.comment(above)
                self.write(line, re.sub(r"\s*//.*", "", found[0]))
                if behind:
                    self.comment(behind, mark="///<")

    def about(self):
        """Writes the first line of a header, and its comments that belong to no declaration."""
        lines = self.file.reader.lines
        first = [line for line in lines[:8] if line.startswith("//") and "SPDX" not in line]
        blocks = [(0, first, "@brief")]
        for at, line in enumerate(lines):
            above = self.file.reader.comment_above(at) if not line else None
            if above and above.is_doc:
                blocks.append((above.first, above.lines, "@details"))
        for start, block, command in blocks:
            for at, text in enumerate(block):
                intro = "" if at else f"@file {self.file.path.name} {command} "
                self.write(start + at, f"/// {intro}{self.marked_up(text.removeprefix('// '))}")

    def text(self):
        self.scope(self.file.declarations, (), False)
        if self.file.is_header:
            self.macros()
            self.about()
        return "" if self.is_empty else "\n".join(line.rstrip() for line in self.lines) + "\n"


def is_told_elsewhere(one, owner):
    """Whether the class or a base says enough of a function, so that the function needs no comment."""
    if one.kind != "function" or not owner:
        return False
    takes_own = re.search(rf"\b{owner.name}(<[^<>]*>)?( const)?&{{0,2}} ?\w*\)", one.head)
    is_special = one.name.startswith("~") or (one.name in (owner.name, "operator=") and takes_own)
    return bool(is_special) or one.head.endswith("= delete") or re.search(r"\boverride\b", one.head)


def plain(text):
    return html.escape(text, quote=False).replace("::", "\\::")


def extract(root, out):
    library = Library(root)
    for file in library.files:
        if text := Page(library, file).text():
            path = out / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
