#!/usr/bin/env python3
# Reads the comments of the C++ sources for words that CONTRIBUTING.md advises against, for long sentences, and for terms
# of the glossary that are explained again. `lint` runs it.
# SPDX-License-Identifier: Apache-2.0
# usage: check_prose.py ROOT [FOLDER...]
import re
import sys
from pathlib import Path

# The folders whose comments keep the rules.
FOLDERS = ["modules", "src", "test", "bench"]
SUFFIXES = {".cppm", ".cpp", ".hpp", ".h", ".cu"}
MAX_WORDS = 30

TOKEN = re.compile(r'R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"'  # a raw string
                   r'|"(?:\\.|[^"\\\n])*"'
                   r"|(?<!\w)'(?:\\.|[^'\\\n])+'"
                   r"|(?P<comment>//[^\n]*|/\*.*?\*/)", re.S)
MARKER = re.compile(r"^\s*(?:///?<?|/\*+|\*+/?)? ?")
QUOTED = re.compile(r"`[^`]*`")
SENTENCE = re.compile(r"""(?:^|(?<=[.!?])|(?<=[.!?]["')]))\s+(?=["'(*]?(?:[A-Z0-9_]|[a-z]\w*[_(]))""")
SUBJECT = "begin with the subject: the thread, the block, the call"
ACTOR = "name the thread, the stream, the caller, the pool"
NUMBER = "say the number, or the name of the constant"
ELSE_AFTER = r"(?<!thing )(?<!where )(?<!one )(?<!what )"  # "nothing else" is no "otherwise"
RULES = [
    (re.compile(r"^(?:What|Who|Whom|Whose|Of)\b"), SUBJECT),
    (re.compile(r"\b(?:nobody|somebody|anybody|whoever|whomever)\b", re.I), ACTOR),
    (re.compile(r"\bso (?:many|often|much)\b", re.I), NUMBER),
    (re.compile(r"\bas many\b(?!.*?\bas\b)", re.I), "say the number, or \"as many … as\""),
    (re.compile(ELSE_AFTER + r"\belse\b", re.I), "write \"otherwise\", or quote code: `else`"),
]
EXPLAINED = "the glossary explains the term, so leave the parenthesis out"


def glossary(page):
    """Finds, in a text, a term of the page's glossary and the parenthesis that follows it. None without a glossary."""
    section = re.search(r"^## Glossary\n(.*?)(?=^## |\Z)", page, re.S | re.M)
    cells = re.findall(r"^\| ([^|]+) \|", section[1], re.M) if section else []
    terms = {term.removeprefix("to ") for cell in cells if cell != "term" for term in cell.split(", ")}
    words = "|".join(re.escape(term) for term in sorted(terms, key=len, reverse=True))
    return re.compile(rf"\b(?:{words})(?:e?s|e?d|ing)? \(([^()]*)", re.I) if terms else None


class Comment:
    """Lines of comment that stand together, each with its number."""

    def __init__(self, line, before, text):
        self.column, self.is_alone, self.is_doc = len(before), not before.strip(), text.startswith("///")
        self.lines = [(line + n, part) for n, part in enumerate(text.removesuffix("*/").split("\n"))]

    def continues(self, other):
        is_below = self.column == other.column and self.lines[0][0] == other.lines[-1][0] + 1
        return is_below and self.is_alone and self.is_doc == other.is_doc

    def paragraphs(self):
        """Pairs of whether lines are a table or code, which stands indented, and the lines without comment marks."""
        found = [(False, [])]
        for number, text in self.lines:
            text = MARKER.sub("", text, count=1)
            is_indented = text.startswith("  ")
            item = re.match(r"\s*(?:[-*]|\d+\.) ", text)
            if item or not text.strip() or is_indented != found[-1][0]:
                found.append((is_indented, []))
            found[-1][1].append((number, text[item.end():] if item else text))
        return found


def comments(text):
    found = []
    for token in TOKEN.finditer(text):
        if token["comment"]:
            start = token.start()
            one = Comment(text.count("\n", 0, start) + 1, text[text.rfind("\n", 0, start) + 1:start], token["comment"])
            if found and one.continues(found[-1]):
                found[-1].lines += one.lines
            else:
                found.append(one)
    return found


def sentences(lines):
    """Pairs of the first line's number and the text, in which quoted code is one word, `_`."""
    text, starts = "", []
    for number, line in lines:
        starts.append((len(text), number))
        text += line + "\n"
    text = QUOTED.sub(lambda code: "_" + re.sub(r"[^\n]", " ", code[0][1:]), text)
    ends = [0, *(cut.end() for cut in SENTENCE.finditer(text)), len(text)]
    for begin, end in zip(ends, ends[1:]):
        if text[begin:end].strip():
            lead = len(text[begin:end]) - len(text[begin:end].lstrip())
            yield text[begin + lead:end].rstrip(), [(max(0, at - begin - lead), number) for at, number in starts]


def line_at(starts, at):
    return max(number for start, number in starts if start <= at)


def explains(inside):
    """Whether the text in a parenthesis explains the word before. One word, such as a value, does not."""
    return len(inside.split()) > 1 and not re.match(r"see |for example ", inside)


def check_sentence(text, starts, is_bounded, terms):
    flat = text.replace("\n", " ")
    for found in terms.finditer(flat) if terms else ():
        if explains(found[1]):
            yield line_at(starts, found.start()), f"\"{' '.join(found[0].split()[:4])} …\": {EXPLAINED}"
    for rule, instead in RULES:
        for found in rule.finditer(flat):
            shown = " ".join(flat[found.start():].split()[:max(3, len(found[0].split()))])
            yield line_at(starts, found.start()), f"\"{shown}\": {instead}"
    words = [word for word in text.split() if re.search(r"\w", word)]
    if is_bounded and len(words) > MAX_WORDS:
        shown = " ".join(words[:3])
        yield line_at(starts, 0), f"\"{shown} …\": {len(words)} words, split it into sentences of at most {MAX_WORDS}"


def check_text(text, terms=None):
    """Pairs of line number and finding. `terms`: what glossary() returns."""
    found = []
    for comment in comments(text):
        for is_table, lines in comment.paragraphs():
            for sentence, starts in sentences(lines):
                found += check_sentence(sentence, starts, comment.is_doc and not is_table, terms)
    return sorted(found)


def check(root, folders):
    paths = sorted({p for folder in folders for p in root.glob(f"{folder}/**/*") if p.suffix in SUFFIXES})
    page = root / "modules" / "README.md"
    terms = glossary(page.read_text() if page.exists() else "")
    found = [(path, line, finding) for path in paths for line, finding in check_text(path.read_text(), terms)]
    return [f"{path.relative_to(root)}:{line}: {finding}" for path, line, finding in found]


if __name__ == "__main__":
    root = Path(sys.argv[1])
    if not glossary((root / "modules" / "README.md").read_text()):
        sys.exit("modules/README.md has no glossary")
    failures = check(root, sys.argv[2:] or FOLDERS)
    print("\n".join(failures) if failures else "the comments keep the rules")
    sys.exit(1 if failures else 0)
