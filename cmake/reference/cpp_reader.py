#!/usr/bin/env python3
# Reads the declarations of a C++ file, with their comments, without compiling it. It knows the C++ of this project.
# SPDX-License-Identifier: Apache-2.0
import re

COMMENT = r"//[^\n]*|/\*.*?\*/"
TEXT = r'"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\''
ATTRIBUTE = (r"\[\[.*?\]\]|__attribute__\(\((?:[^()]|\([^()]*\))*\)\)|\balignas\([^)]*\)"
             r"|\bGPUMEM_(?:CAPABILITY|GUARDED_BY|REQUIRES|EXCLUDES|ACQUIRES|TRY_ACQUIRES|RELEASES|ASSERTS)(?:_SHARED)?"
             r"\((?:[^()]|\([^()]*\))*\)"
             r"|\bGPUMEM_(?:DETAIL_\w+|NOEXCEPT|SCOPED_LOCK|NO_LOCK_ANALYSIS)\b")
DIRECTIVE = r"^[ \t]*\#(?:\\\n|[^\n])*"
BLANKED = re.compile(f"(?P<text>{TEXT})|{COMMENT}|{ATTRIBUTE}|{DIRECTIVE}", re.S | re.M)
MACRO = re.compile(r"^#define (GPUMEM_\w+)(?:\([^)]*\))?(?: .*)?$", re.M)

NAMESPACE = re.compile(r'(?:export\s+)?(?:inline\s+)?namespace\s+([\w:]+)\s*\{|(?:export|extern\s*"C"|extern)\s*\{')
CLASS = re.compile(r"(?:export\s+)?(?:typedef\s+)?(?:class|struct|union)\s+(\w+(?:::\w+)*)")
ENUM = re.compile(r"(?:export\s+)?(?:typedef\s+)?enum\b(?:\s+(?:class|struct))?\s*(\w*)\s*(?::[^{;]+)?(?=[{;])")
ALIAS = re.compile(r"(?:export\s+)?(?:using\s+(\w+)\s*=|typedef\b.*?(\w+)\s*$)", re.S)
CONCEPT = re.compile(r"(?:export\s+)?concept\s+(\w+)")
USING = re.compile(r"(?:export\s+)?using\s+(?:typename\s+)?([\w:]+(?:operator\s*\S+)?)\s*$")
ACCESS = re.compile(r"(public|protected|private)\s*:(?!:)")
WORD = re.compile(r"\w+")
GETTER = re.compile(r"\{ return (\w+_)(?:\.value\(\))?; \}")
OPERATOR = re.compile(r'operator\s*(""\s*\w+|\(\s*\)|\[\s*\]|co_await\b|[^\s\w(]+|[\w:]+[\s*&]*(?=\())')
NAME_OF_FUNCTION = re.compile(rf"({OPERATOR.pattern}|~?\w+)\s*\($")
NAME_OF_VARIABLE = re.compile(r"(\w+)\s*(?:\[[^\]]*\]\s*|:\s*\d+\s*)*(?:=.*|\{.*)?$", re.S)
CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


class Comment:
    """Lines that stand together above a declaration or behind it, without their marks."""

    def __init__(self, first, lines, is_doc):
        self.first, self.lines, self.is_doc = first, lines, is_doc


class Declaration:
    """One declaration. `first` and `last` are numbers of lines; `members` are those of a namespace, class or enum."""

    kind = name = head = access = ""
    comment = trailing = body = returned = None  # `returned`: the data member that a function returns
    is_exported = is_defined = False
    members = bases = constraints = ()


class Reader:
    def __init__(self, text):
        self.lines = text.split("\n")
        self.text = text
        # `code` is without comments, attributes and directives, `shape` without texts too. Places are those of `text`.
        self.code = BLANKED.sub(lambda m: m[0] if m["text"] else re.sub(r"[^\n]", " ", m[0]), text)
        self.shape = BLANKED.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
        self.code_lines = self.code.split("\n")

    def line_of(self, at):
        return self.text.count("\n", 0, at)

    def skip(self, at, end):
        while at < end and self.shape[at].isspace():
            at += 1
        return at

    def skip_balanced(self, at):
        """Returns the place after the bracket that closes the one at `at`."""
        opening = self.shape[at]
        closing, at = CLOSING[opening], at + 1
        while self.shape[at] != closing:
            letter = self.shape[at]
            is_bracket = letter in "([{" or (letter == "<" and opening == "<" and self.shape[at - 1] != "<")
            is_arrow = letter == "-" or (opening == "<" and letter in "<>=" and self.shape[at + 1] in "<=")
            at = self.skip_balanced(at) if is_bracket and not is_arrow else at + (2 if is_arrow else 1)
        return at + 1

    def skip_constraint(self, at):
        """Returns the place after the constraint that follows the word `requires`."""
        while True:
            at = self.skip(at, len(self.shape))
            if self.shape[at] == "!":
                at += 1
            if self.shape[at] == "(":
                at = self.skip_balanced(at)
            elif self.shape.startswith("requires", at):
                at = self.skip(at + len("requires"), len(self.shape))
                if self.shape[at] == "(":
                    at = self.skip(self.skip_balanced(at), len(self.shape))
                at = self.skip_balanced(at)
            else:
                while found := re.compile(r"[\w:]+").match(self.shape, at):
                    at = found.end()
                    if self.shape[at] == "<":
                        at = self.skip_balanced(at)
            following = self.skip(at, len(self.shape))
            if self.shape[following:following + 2] not in ("&&", "||"):
                return at
            at = following + 2

    def declarations(self, at, end, access=""):
        found = []
        while (at := self.skip(at, end)) < end:
            if self.shape[at] in ";}":
                at += 1
            elif section := ACCESS.match(self.shape, at, end):
                access, at = section[1], section.end()
            else:
                one, at = self.declaration(at, end)
                if one:
                    one.access = access
                    found.append(one)
        return found

    def declaration(self, at, end):
        """Returns the declaration at `at`, or None if it has no end, and the place after it."""
        one, start = Declaration(), at
        one.constraints = []
        if found := NAMESPACE.match(self.shape, at):
            return self.namespace(one, found)
        heads, at = self.template(one, at)
        head_from = at
        one.is_exported = bool(re.match(r"export\b", self.shape[start:start + 7]))
        if (found := ENUM.match(self.shape, at)) and not self.code.startswith("requires", at):
            one.kind, one.name, at = "enum", found[1], found.end()
        elif found := CLASS.match(self.shape, at):
            after = self.skip(found.end(), end)
            if self.shape[after] == "<":
                after = self.skip(self.skip_balanced(after), end)
            after = re.compile(r"\s*(final\b)?\s*").match(self.shape, after).end()
            if self.shape[after] in ":{;" and self.shape[after:after + 2] != "::":
                one.kind, one.name, at = "class", found[1], after
        return self.rest(one, start, heads, head_from, at, end)

    def namespace(self, one, found):
        opening = found.end() - 1
        after = self.skip_balanced(opening)
        one.kind, one.name = "namespace", found[1] or ""
        one.is_exported = found[0].startswith("export")
        one.first, one.last = self.line_of(found.start()), self.line_of(after)
        one.members = self.declarations(opening + 1, after - 1)
        one.comment = self.comment_above(one.first)
        return one, after

    def template(self, one, at):
        """Returns the text of the parameter lists of templates at `at`, and the place after them."""
        heads = ""
        while found := re.compile(r"(?:export\s+)?template\s*(?=<)").match(self.shape, at):
            after = self.skip_balanced(found.end())
            heads += "template " + self.flat(found.end(), after) + " "
            at = self.skip(after, len(self.shape))
            if re.compile(r"requires\b").match(self.shape, at):
                after = self.skip_constraint(at + len("requires"))
                one.constraints.append(self.flat(at + len("requires"), after))
                at = self.skip(after, len(self.shape))
        return heads, at

    def rest(self, one, start, heads, head_from, at, end):
        """Reads on from `at` to the end of the declaration."""
        cuts, head_to, parameters, bases_from = [], None, None, None
        is_assigned = in_members = False  # after `=`; in the list that initializes the members
        previous = ""
        while at < end and self.shape[at] != ";":
            letter = self.shape[at]
            if letter.isspace():
                at += 1
                continue
            if word := WORD.match(self.shape, at):
                after = word.end()
                if word[0] == "requires":
                    after = self.skip_constraint(after)
                    one.constraints.append(self.flat(word.end(), after))
                    cuts.append((at, after))
                elif word[0] == "operator":
                    after = OPERATOR.match(self.shape, at).end()
                elif word[0] == "concept":
                    one.kind, one.name = "concept", CONCEPT.match(self.shape, at)[1]
            elif letter == ":" and self.shape[at + 1] == ":":
                after = at + 2
            elif letter == ":":
                after = at + 1
                if one.kind == "class":
                    bases_from, head_to = after, at
                elif parameters:
                    in_members, head_to = True, at
            elif letter == "=":
                is_assigned, after = True, at + 1
            elif letter in "([":
                after = self.skip_balanced(at)
                if letter == "(" and not parameters and not is_assigned and not one.kind:
                    parameters = at
            elif letter == "<" and (one.kind == "class" or not is_assigned):
                after = self.skip_balanced(at)
            elif letter == "{":
                after = self.skip_balanced(at)
                is_body = one.kind in ("class", "enum") and not one.is_defined
                if is_body:
                    one.is_defined, one.body = True, (at + 1, after - 1)
                    head_to = at if head_to is None else head_to
                    if bases_from:
                        one.bases = self.base_names(self.code[bases_from:at])
                elif parameters and not is_assigned and not (in_members and re.match(r"[\w>]", previous)):
                    one.is_defined = True
                    head_to = at if head_to is None else head_to
                    if found := GETTER.fullmatch(self.flat(at, after)):
                        one.returned = found[1]
                    at = after
                    break
            else:
                after = at + 1
            previous = self.shape[after - 1]
            at = after
        else:
            if at >= end:
                return None, end
            head_to = at if head_to is None else head_to
            if one.kind == "concept":
                cuts, one.constraints = [], []
        self.describe(one, heads, head_from, head_to, cuts, parameters)
        one.first, one.last = self.line_of(start), self.line_of(at)
        if one.kind == "class" and one.is_defined:
            is_class = re.match(r"(?:export\s+)?class\b", self.shape[head_from:head_to])
            one.members = self.declarations(*one.body, access="private" if is_class else "public")
        one.comment = self.comment_above(one.first)
        one.trailing = self.comment_behind(at)
        return one, at + 1 if self.shape[at] == ";" else at

    def describe(self, one, heads, head_from, head_to, cuts, parameters):
        """Sets the head, which is one line, and the name and kind where they are not known yet."""
        head, at = "", head_from
        for cut_from, cut_to in [*cuts, (head_to, head_to)]:
            head += self.code[at:min(cut_from, head_to)] + " "
            at = max(at, min(cut_to, head_to))
        head = " ".join(re.sub(r"^(export|inline)\b", "", head.strip()).split())
        one.head = heads + re.sub(r"\binline ", "", head)
        if one.kind:
            return
        if head.startswith("friend "):
            one.kind = "friend"
        elif re.match(r"(?:module|import|static_assert)\b", head):
            one.kind = "other"
        elif found := USING.match(head):
            one.kind, one.name = "using", found[1]
        elif found := ALIAS.match(head):
            one.kind, one.name = "alias", found[1] or found[2]
        elif parameters and not head.startswith("typedef"):
            one.kind = "function"
        else:
            one.kind = "variable"
        if one.kind in ("function", "friend"):
            found = NAME_OF_FUNCTION.search(self.shape[head_from:parameters + 1]) if parameters else None
            one.name = re.sub(r"\s", "", found[1]) if found else ""
            if re.match(r"\(\s*\*\s*(\w+)\)", self.shape[parameters or 0:]):  # a pointer to a function
                one.kind, one.name = "variable", re.match(r"\(\s*\*\s*(\w+)\)", self.shape[parameters:])[1]
        elif one.kind == "variable":
            found = NAME_OF_VARIABLE.search(head)
            one.name = found[1] if found else ""

    def flat(self, start, end):
        return " ".join(self.code[start:end].split())

    def base_names(self, text):
        """Pairs of access and name of the bases of a class, without the arguments of templates."""
        while (plain := re.sub(r"<[^<>]*>", "", text)) != text:
            text = plain
        parts = [re.sub(r"\bvirtual\b|\.\.\.", "", part).split() for part in text.split(",")]
        return [(" ".join(part[:-1]), part[-1]) for part in parts]

    def comment_above(self, line):
        """The comment that ends on the line above, as far as all of it has the same mark."""
        first, kind = line, None
        while first > 0 and (found := re.match(r"\s*(///(?!<)|//(?!/))", self.lines[first - 1])):
            if kind not in (None, found[1]) or re.match(r"\s*// NOLINT", self.lines[first - 1]):
                break
            kind, first = found[1], first - 1
        if kind is None:
            return None
        return Comment(first, [re.sub(r"^\s*///? ?", "", text) for text in self.lines[first:line]], kind == "///")

    def comment_behind(self, at):
        """The comment of `///<` after the place, which may go on in the following lines."""
        line = self.line_of(at)
        tail = self.text[at:].split("\n", 1)[0]
        found = re.search(r"///<(.*)", tail)
        if not found:
            return None
        lines = [found[1].strip()]
        while line + len(lines) < len(self.lines) and (more := re.match(r"\s*///<(.*)", self.lines[line + len(lines)])):
            lines.append(more[1].strip())
        return Comment(line, lines, True)


def read_file(path):
    """Returns the reader of a file, and its declarations."""
    reader = Reader(path.read_text())
    return reader, reader.declarations(0, len(reader.shape))
