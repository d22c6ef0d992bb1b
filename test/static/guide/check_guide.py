#!/usr/bin/env python3
# Reads the user guide: its programs are files that tests run, its links lead somewhere, the names that it quotes
# exist, it lists the variables of the environment that the sources read, and the site has all of its pages.
# SPDX-License-Identifier: Apache-2.0
import re
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent.parent / "maps"))
from check_maps import LINK, check_page, words_of  # noqa: E402

GUIDE, EXAMPLES, VARIABLES = "modules/guide", "test/examples", "environment.md"
SITE = "cmake/site/mkdocs.yml"
MAX_PROGRAM, MAX_PAGE = 40, 120
FOREIGN = {"from_rmm.md"}  # quotes names of another library, and may have twice as many lines
PROGRAMS = {"c", "cmake", "cpp", "cuda", "python"}
OTHERS = {"mermaid", "sh", "text"}  # also "cpp foreign": code of another library
BLOCK = re.compile(r"^([^\n]*)\n```([^\n]*)\n(.*?)^```$", re.S | re.M)
READ = re.compile(r"""(?:getenv\(|is_set_in_environment\(|environ\.get\(|environ\[)["'](GPUMEM_\w+)|"""
                  r"\$ENV\{(GPUMEM_\w+)\}|\$\{(GPUMEM_\w+)[-:]")
READERS = {".cppm", ".cpp", ".hpp", ".py", ".sh", ".cmake"}


def blocks_of(text):
    """Each code block as the line above it, its language and its content."""
    return BLOCK.findall("\n" + text)


def headings_of(text):
    """The anchors that GitHub gives to the headings."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", text), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_blocks(root, page, text, shown):
    for above, language, content in blocks_of(text):
        named = re.search(r"`(test/[\w./]+)`", above)
        if language in PROGRAMS and not named:
            yield f"{page}: the line above a program names no file of test/: {content.partition(chr(10))[0]}"
        elif language in PROGRAMS:
            shown.add(named[1])
            path = root / named[1]
            if not path.exists() or path.read_text() != content:
                yield f"{page}: the program differs from {named[1]}"
        elif language.split()[-1:] != ["foreign"] and language not in OTHERS:
            yield f"{page}: unknown kind of code block: '{language}'"


PICTURE = re.compile(r"!\[[^\]]*\]\(([^)]*)\)")


def check_links(folder, page, text):
    yield from (f"{page}: there is no picture {each}" for each in PICTURE.findall(text) if not (folder / each).exists())
    text = PICTURE.sub("", text)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", BLOCK.sub("", text)):
        linked = folder / (target or page)
        if linked.parent != folder or not linked.exists():
            yield f"{page}: the link {target} leads to no page of the guide"
        elif anchor and anchor not in headings_of(linked.read_text()):
            yield f"{page}: {linked.name} has no heading {anchor}"


def check_examples(root, shown):
    added = set(re.findall(r"gpumem_add_example\(([\w.]+)", (root / EXAMPLES / "programs.cmake").read_text()))
    for path in sorted((root / EXAMPLES).iterdir()):
        if path.name == "CMakeLists.txt" or path.suffix == ".cmake":
            continue
        lines = len(path.read_text().splitlines())
        if lines > MAX_PROGRAM:
            yield f"{path.name}: {lines} lines, at most {MAX_PROGRAM}"
        if f"{EXAMPLES}/{path.name}" not in shown:
            yield f"{path.name}: no page shows it"
        if path.name not in added:
            yield f"{path.name}: no test runs it"


def check_variables(root, text):
    read = set()
    for folder in ["modules", "src", "cmake", "bench"]:
        for path in root.glob(f"{folder}/**/*"):
            if path.suffix in READERS:
                read |= {name for names in READ.findall(path.read_text()) for name in names if name}
    told = set(re.findall(r"^\| `(GPUMEM_\w+)", text, re.M))
    yield from (f"{VARIABLES}: {name} is missing" for name in sorted(read - told))
    yield from (f"{VARIABLES}: no source reads {name}" for name in sorted(told - read))


def check_site(root, pages):
    named = re.findall(rf"\b{GUIDE}/(\w+\.md)$", (root / SITE).read_text(), re.M)
    yield from (f"{SITE}: {page} is missing" for page in pages if page not in named)
    yield from (f"{SITE}: there is no page {page}" for page in named if page not in pages)


def check(root):
    folder, shown, found = root / GUIDE, set(), []
    words = words_of(root, ["modules", "src", "test", "bench", "cmake"])
    pages = {path.name: path.read_text() for path in sorted(folder.glob("*.md"))}
    for page, text in pages.items():
        lines = len(text.splitlines())
        most = MAX_PAGE * (2 if page in FOREIGN else 1)
        found += [f"{page}: {lines} lines, at most {most}"] if lines > most else []
        found += [*check_blocks(root, page, text, shown), *check_links(folder, page, text)]
        if page not in FOREIGN:
            found += [f"{page}: there is no {name}" for name in check_page(root, f"{GUIDE}/{page}", words)]
    linked = set(LINK.findall(pages["README.md"]))
    found += [f"README.md: no link to {page}" for page in pages if page not in linked | {"README.md"}]
    return found + [*check_examples(root, shown), *check_variables(root, pages[VARIABLES]), *check_site(root, pages)]


if __name__ == "__main__":
    failures = check(Path(sys.argv[1]))
    print("\n".join(failures) if failures else "the guide agrees with the sources")
    sys.exit(1 if failures else 0)
