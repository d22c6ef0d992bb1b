#!/usr/bin/env python3
# Writes the public declarations of the library in a form that doxygen reads: without modules, bodies and constraints.
# SPDX-License-Identifier: Apache-2.0
#
# A file of `modules` that declares a public name gets a file of that name. Declarations and comments stay on their
# lines, so that a warning of doxygen gives the line of the source. In comments `code` and lists of `- ` are marked up;
# other indented lines are a table. Names with an underscore become links. The constraints of a template become a part
# of its comment. A comment of `///` above an empty line of a header is for the page of the file.
import html
import itertools
import re

from cpp_reader import MACRO, Comment
from public_names import Library

NAME = re.compile(r"(?<![\w:.<@/-])\w+_\w+(?![\w(>/]|::|[.-]\w)")
CODE = re.compile(r"(`[^`]*`)")
TABLE = re.compile(r"^(?!- )(\S.*)\n(  +\S.*(?:\n  +\S.*)*)(?:\n|$)", re.M)
VERBATIM = re.compile(r"(@verbatim.*?@endverbatim)", re.S)
# In units of the library these names need no namespace.
OPEN = "namespace gpumem { using namespace gpumem::extend; using namespace gpumem::driver_api; }"


class Page:
    """The text of one file, by lines."""

    def __init__(self, library, file):
        self.library, self.file = library, file
        self.lines = [""] * len(file.reader.lines)
        self.is_empty = True
        self.write(0, "" if file.path.suffix == ".h" else OPEN)
        self.scope(file.declarations)
        if file.is_header:
            self.macros()
            self.about()

    def text(self):
        return "" if self.is_empty else "\n".join(line.rstrip() for line in self.lines)

    def write(self, line, text):
        self.lines[line] += text + " "

    def comment(self, comment, mark="/**", before="", behind=""):
        text = f"{mark} {before}{self.marked_up(comment.lines)}{behind} */"
        for at, line in enumerate(text.split("\n")):
            self.write(comment.first + at, line)

    def marked_up(self, lines):
        text = TABLE.sub(r"\1 @verbatim\n\2\n@endverbatim ", "\n".join(lines))
        return "".join(part if part.startswith("@") else self.prose(part) for part in VERBATIM.split(text))

    def prose(self, text):
        return "".join(self.code(part) if part.startswith("`") else self.words(part) for part in CODE.split(text))

    def words(self, text):
        text = re.sub(r"[\\<>@#&%]", lambda found: "\\" + found[0], text)
        return NAME.sub(lambda found: self.link(found[0]) or found[0], text)

    def code(self, text):
        return ("_" in text and self.link(text[1:-1])) or text

    def link(self, name):
        """A link to a type or function of that name; None if there is no such name, or if there are several."""
        found = self.library.public.get(name, ())
        if len({one.space for one in found}) != 1:
            return None
        return f'@ref {"::".join((*found[0].space, name))} "{name}"'

    def scope(self, declarations, owner=None):
        access = "public"
        for one in self.library.members(declarations, owner):
            if one.access and one.access != access:
                access = one.access
                self.write(one.comment.first if one.comment else one.first, access + ":")
            if one.kind == "namespace":
                self.namespace(one)
            else:
                self.is_empty = False
                self.declaration(one)

    def namespace(self, one):
        if one.comment and one.comment.is_doc and one.space[:1] == ("gpumem",):
            self.comment(one.comment)
        if one.name:
            self.write(one.first, f"namespace {one.name} {{")
        self.scope(one.members)
        if one.name:
            self.write(one.last, "}")

    def declaration(self, one):
        needs = f" @needs <code>{plain(' && '.join(one.constraints))}</code>" if one.constraints else ""
        if one.comment:
            self.comment(one.comment, behind=needs)
        elif one.shared and not one.trailing:
            self.comment(Comment(one.first, [" ".join(one.shared.lines)], True), behind=needs)
        if one.kind == "using":
            self.using(one)
        elif one.kind == "enum":
            self.enum(one)
        elif one.kind == "class" and one.is_defined:
            self.type(one)
        elif one.kind == "concept":
            for line in range(one.first, one.last + 1):
                self.write(line, self.file.reader.code_lines[line].replace("export ", ""))
        else:
            self.write(one.first, one.head + ";")
        if one.trailing:
            self.comment(Comment(one.first, [" ".join(one.trailing.lines)], True), mark="/**<")

    def using(self, one):
        name = one.name.removeprefix("::")
        if not one.comment:
            self.write(one.first, f'/** `{name}` of {"CCCL" if name.startswith("cuda::") else "CUDA"}. */')
        self.write(one.first, f"using {name.split('::')[-1]} = {name};")

    def type(self, one):
        bases = [(access, self.library.base(name)) for access, name in one.bases if access != "private"]
        named = ", ".join(f"{access or 'public'} {name}" for access, name in bases if name)
        self.write(one.first, one.head.removesuffix(" final") + (f" : {named}" if named else "") + " { public:")
        self.scope(one.members, one)
        self.close(one)

    def enum(self, one):
        self.write(one.first, one.head + " {")
        reader = self.file.reader
        first, texts = reader.line_of(one.body[0]), reader.text[slice(*one.body)].split("\n")
        for at, code in enumerate(reader.code[slice(*one.body)].split("\n")):
            self.write(first + at, code.strip())
            if found := re.search(r"///(<?)(.*)", texts[at]):
                self.comment(Comment(first + at, [found[2].strip()], True), mark="/**" + found[1])
        self.close(one)

    def close(self, one):
        self.write(one.last, f"}} {one.name if one.head.startswith('typedef') else ''};")

    def macros(self):
        reader = self.file.reader
        for found in MACRO.finditer(reader.text):
            line = reader.line_of(found.start())
            above, behind = reader.comment_above(line), reader.comment_behind(found.start())
            if not behind and not (above and above.is_doc):
                continue
            self.is_empty = False
            if above:
                self.comment(above)
            self.write(line, re.sub(r"\s*//.*", "", found[0]))
            if behind:
                self.comment(behind, mark="/**<")

    def about(self):
        """Writes the first lines of a header, and its comments that belong to no declaration."""
        reader, intro = self.file.reader, f"@file {self.file.path.name} "
        first = itertools.takewhile(lambda line: line.startswith("//") and "SPDX" not in line, reader.lines)
        self.comment(Comment(0, [line.removeprefix("// ") for line in first], True), before=intro + "@brief ")
        for at, line in enumerate(reader.lines):
            above = reader.comment_above(at) if not line else None
            if above and above.is_doc:
                self.comment(above, before=intro + "@details ")


def plain(text):
    return html.escape(text, quote=False).replace("::", "\\::")


def extract(root, out):
    library = Library(root)
    for file in library.files:
        if text := Page(library, file).text():
            path = out / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
