# Reads the declarations of parameters, data members and local variables of C++ files, without a compiler. It relies on
# clang-format: `T& name` is a declaration, `a & b` an expression.
# SPDX-License-Identifier: Apache-2.0
import re
from collections import namedtuple

# `kind` is "parameter", "member", "local" or "other"; the name can be used at the offsets from `start` to `end`.
Declaration = namedtuple("Declaration", "kind name type line start end lines")
Token = namedtuple("Token", "text start end")

HIDDEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"(?P<mark>\w*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'
                    r"(?<![\w'])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*", re.S | re.M)
TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.']*|::|->|&&|\.\.\.|\[\[|\]\]|[^\w\s]")
WORD = re.compile(r"[A-Za-z_]\w*$")
NO_TYPE = set("return else case new delete throw co_return co_await co_yield goto typename class struct union enum "
              "namespace using operator not and or concept template public private protected default requires sizeof "
              "import module export inline static constexpr constinit consteval typedef explicit virtual friend do try "
              "mutable extern thread_local override final noexcept if while for switch catch this nullptr true "
              "false alignas decltype alignof".split())
NO_NAME = NO_TYPE | set("const volatile auto void bool char int long short unsigned signed float double".split())
CONTROL = {"for", "if", "while", "switch", "catch", "constexpr"}
LOCK_ATTRIBUTE = "GPUMEM_"
OPEN = {"(": ")", "[": "]", "{": "}", "[[": "]]"}


def tokens(text):
    shown = HIDDEN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]) if match[0][0] != '"' else
                       '"' + " " * (len(match[0]) - 2) + '"', text)
    return [Token(match[0], *match.span()) for match in TOKEN.finditer(shown)]


class Reader:
    def __init__(self, text):
        self.text = text
        self.tokens = tokens(text)
        self.partner = self.pair()
        self.braces = {}  # the kind of each opening brace
        self.found = []

    # Returns the index of the other bracket, for each bracket.
    def pair(self):
        partner, stack = {}, []
        for index, token in enumerate(self.tokens):
            if token.text in OPEN:
                stack.append(index)
            elif token.text in OPEN.values() and stack:
                partner[index] = stack.pop()
                partner[partner[index]] = index
        return partner

    def at(self, index):
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    # Returns the tokens of the statement before `index`, with each pair of brackets as its opening bracket.
    def head(self, index):
        words = []
        index -= 1
        while index >= 0 and self.at(index) not in (";", "{", "(", "["):
            text = self.at(index)
            if text == "}" and (not words or words[-1] not in (",", "{", ")", ".")):
                break
            if text in (")", "]", "]]", "}"):
                index = self.partner.get(index, index)
                text = self.at(index)
            words.append(text)
            index -= 1
        return words[::-1]

    def brace_kind(self, index, outer):
        previous = self.at(index - 1)
        head = self.head(index)
        bare = self.outside_angles(head)
        if "namespace" in bare or (bare[:1] == ["extern"] and previous == '"') or (bare[:1] == ["export"] and len(bare) == 1):
            return "namespace"
        if "enum" in bare and "(" not in bare:
            return "enum"
        if any(word in bare for word in ("class", "struct", "union")) and "=" not in bare and previous not in (")", "="):
            if outer != "function" or bare[0] in ("class", "struct", "union"):
                return "class"
        if outer in ("init", "enum") and previous in (",", "{", "="):
            return "init"
        if outer in ("namespace", "class", ""):
            if previous in (")", "}", "const", "noexcept", "override", "final", "try", "mutable", "]]", "&", "&&"):
                return "function"
            if "(" in bare and "->" in bare:
                return "function"
            if "requires" in bare and "(" not in bare and previous != "=":
                return "function"
            return "init"
        if previous in ("else", "do", "try", ";", "{", "}", ":", "mutable", "noexcept", "const", "]]", ""):
            return "function"
        if previous == ")":
            return "function"
        if previous == "]":
            return "function" if not WORD.match(self.at(self.partner.get(index - 1, 0) - 1)) else "init"
        if "->" in bare and "(" in bare and self.is_lambda_arrow(index):
            return "function"
        return "init"

    # Whether the type before the brace is that of a lambda: `[](…) -> type {`.
    def is_lambda_arrow(self, index):
        index -= 1
        while index > 0 and self.at(index) not in (";", "{", "}", "->", "="):
            index = self.partner.get(index, index) - 1 if self.at(index) in (")", "]") else index - 1
        if self.at(index) != "->":
            return False
        index -= 1
        while self.at(index) in ("mutable", "noexcept", "const"):
            index -= 1
        return self.at(index) == ")" and self.at(self.partner.get(index, 0) - 1) in ("]", ">")

    @staticmethod
    def outside_angles(words):
        depth, kept = 0, []
        for word in words:
            if word == "<":
                depth += 1
            elif word == ">":
                depth = max(0, depth - 1)
            elif depth == 0:
                kept.append(word)
        return kept

    def type_ends(self, index):
        text, start = self.at(index), self.tokens[index].start if index >= 0 else 0
        if WORD.match(text):
            return text not in NO_TYPE
        if index < 1:
            return False
        adjacent = self.tokens[index - 1].end == start
        if text == ">":
            return adjacent
        if text in ("*", "&", "&&", "..."):
            return (adjacent or text == "...") and (self.type_ends(index - 1) or (
                text == "..." and WORD.match(self.at(index - 1)) is not None))
        return False

    # Returns the text of the type before `index`.
    def type_text(self, index):
        first = index
        while first > 0 and self.at(first - 1) not in (";", "{", "}", "(", ")", ",", "]]", "[", "=", ":"):
            if self.at(first - 1) == ">":
                depth = 0
                while first > 0:
                    first -= 1
                    depth += {">": 1, "<": -1}.get(self.at(first), 0)
                    if depth == 0:
                        break
            else:
                first -= 1
        return re.sub(r"\s+", " ", self.text[self.tokens[first].start:self.tokens[index - 1].end])

    def line(self, offset):
        return self.text.count("\n", 0, offset) + 1

    def read(self):
        stack = []
        for index, token in enumerate(self.tokens):
            text = token.text
            if text == "{":
                outer = next((self.braces[i] for i in reversed(stack) if i in self.braces), "")
                self.braces[index] = self.brace_kind(index, outer)
            if text in OPEN:
                stack.append(index)
            elif text in OPEN.values() and stack:
                stack.pop()
            elif WORD.match(text) and text not in NO_NAME and index > 0:
                self.read_name(index, stack)
        return self.found

    def read_name(self, index, stack):
        following = self.at(index + 1)
        inner = stack[-1] if stack else -1
        if self.at(inner) == "[" and self.at(inner - 1) in ("auto", "const", "&", "&&") and self.at(index - 1) in ("[", ","):
            self.read_binding(index, inner, stack)
            return
        if not self.type_ends(index - 1):
            return
        if self.at(index).startswith(LOCK_ATTRIBUTE):
            return
        ends = ("=", ";", ",", ")", "{", ":", "[", "(", "...")
        if following not in ends and not following.startswith(LOCK_ATTRIBUTE):
            return
        if following == "=" and self.at(index + 2) == "=" and self.tokens[index + 1].end == self.tokens[index + 2].start:
            return
        if self.at(inner) == "(":
            self.read_in_parentheses(index, inner, stack)
        elif self.at(inner) in ("[", "[["):
            return
        else:
            kind = self.braces.get(inner, "namespace")
            if kind == "class" and following != "(":
                self.add("member", index, inner)
            elif kind == "function":
                self.add("local", index, inner)
            elif kind == "namespace" and following not in ("(", ":"):
                self.add("other", index, inner)

    def read_binding(self, index, bracket, stack):
        outer = stack[-2] if len(stack) > 1 else -1
        if self.at(outer) == "(":
            self.add("local", index, outer, self.body_after(self.partner.get(outer, outer)))
        else:
            self.add("local", index, outer)

    def read_in_parentheses(self, index, parenthesis, stack):
        close = self.partner.get(parenthesis, parenthesis)
        before = self.at(parenthesis - 1)
        if self.at(index + 1) == "(":
            return
        if before in CONTROL:
            self.add("local", index, parenthesis, self.body_after(close))
        elif before == "]" or (before == ">" and self.is_template_lambda(parenthesis - 1)):
            self.add("local", index, parenthesis, self.body_after(close))
        elif before.startswith(LOCK_ATTRIBUTE) or before == "(":
            return
        else:
            self.add("parameter", index, parenthesis, self.body_after(close))

    def is_template_lambda(self, index):
        depth = 0
        while index > 0:
            depth += {">": 1, "<": -1}.get(self.at(index), 0)
            if depth == 0:
                return self.at(index - 1) == "]"
            index -= 1
        return False

    # Returns the index of the last token of the body after the parenthesis at `close`, or of its statement. After a
    # colon, the braces of the members' initializers come first.
    def body_after(self, close):
        index, initializers = close + 1, False
        while index < len(self.tokens):
            text, previous = self.at(index), self.at(index - 1)
            if text in (";", ")", "}", "]"):
                return index
            if text == ":":
                initializers = True
            initializes = initializers and (WORD.match(previous) or previous == ">")
            if text == "{" and not self.is_before_body(index, close, initializes):
                return self.partner.get(index, index)
            index = self.partner.get(index, index) + 1 if text in OPEN else index + 1
        return len(self.tokens) - 1

    # Whether the brace initializes a member, or belongs to a requirement of the function.
    def is_before_body(self, index, close, initializes):
        if index == close + 1:
            return False
        return initializes or "requires" in (self.at(index - 1), self.at(self.partner.get(index - 1, 0) - 1))

    def add(self, kind, index, outer, last=None):
        if last is None:
            last = self.partner.get(outer, len(self.tokens) - 1) if outer >= 0 else len(self.tokens) - 1
        token, end = self.tokens[index], self.tokens[last].end
        line = self.line(token.start)
        self.found.append(Declaration(kind, token.text, self.type_text(index), line, token.start, end,
                                      self.line(end) - line))


def declarations(text):
    return Reader(text).read()
