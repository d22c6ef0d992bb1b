#!/usr/bin/env python3
# Counts parameters, data members and long-lived locals whose names are function words or bare participles. Prints each
# layer's share, and fails if the share of the whole library is above `MAX_PERCENT`. With -v it lists the names.
# SPDX-License-Identifier: Apache-2.0
import sys
from collections import Counter
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
from declarations import declarations  # noqa: E402

FOLDERS = ["modules", "src"]
SUFFIXES = {".cppm", ".cpp", ".hpp", ".h", ".cu"}
MAX_PERCENT = 3
SHORT_LINES = 10  # a local that lives no longer may have any name

# `other`, `rest`, `first`, `last`, `next`, `now` and `more` are left out: they are usual names of things.
FUNCTION_WORDS = set("""
about above across after against along among apart around as aside at away back before behind below beneath beside
besides between beyond by down during except from here in inside instead into near of off on onto out outside over past
per since there through till to together toward towards under until up upon via with within without
all another any anyone anything both each either every everything he her his how it its itself many me mine my neither
nobody none nothing one others our ours own same several she some somebody someone something such that their theirs them
these they this those us we what whatever when whence where whether which who whoever whole whom whose why you
also and anew because else elsewhere if nor not or otherwise whereas while
""".split())
# A participle says what a bool tells, so it may be the name of one.
PARTICIPLES = set("""
asked awaited become been begun being broken brought built called chosen coming done drawn driven fallen forgotten found
freed given going gone got grown growing had happened having held hidden kept known lacking lasted leaving left lost
made meant met missing moving named needed noted owed paid passed put remaining said seen sent shown spent spoken split
taken told tried understood unknown unused used waiting wanted wished woken written
""".split())


# Whether the declared name says nothing of the thing.
def is_bare(declaration):
    words = declaration.name.strip("_").split("_")
    if all(word in FUNCTION_WORDS for word in words):
        return True
    return "bool" not in declaration.type and len(words) == 1 and words[0] in PARTICIPLES


def is_counted(declaration):
    return declaration.kind in ("parameter", "member") or (
        declaration.kind == "local" and declaration.lines > SHORT_LINES)


# Returns the declarations of a text that count, each with whether its name is bare.
def judge_text(text):
    return [(d, is_bare(d)) for d in declarations(text) if is_counted(d)]


def layer_of(path):
    return path.parts[1] if len(path.parts) > 2 else path.parts[0]


def check(root):
    totals, bare, findings = Counter(), Counter(), []
    paths = sorted(path for folder in FOLDERS for path in root.glob(f"{folder}/**/*") if path.suffix in SUFFIXES)
    for path in paths:
        relative = path.relative_to(root)
        for declaration, is_hit in judge_text(path.read_text()):
            totals[layer_of(relative)] += 1
            if is_hit:
                bare[layer_of(relative)] += 1
                findings.append(f"{relative}:{declaration.line}: {declaration.kind} {declaration.type} {declaration.name}")
    return totals, bare, findings


def main(root, verbose):
    totals, bare, findings = check(root)
    if verbose:
        print("\n".join(findings))
    for layer in sorted(totals):
        print(f"{layer}: {bare[layer]} of {totals[layer]}, {100 * bare[layer] / totals[layer]:.1f} %")
    percent = 100 * bare.total() / max(totals.total(), 1)
    print(f"{bare.total()} of {totals.total()} names are function words or bare participles: {percent:.1f} %, "
          f"at most {MAX_PERCENT} %")
    return 1 if percent > MAX_PERCENT else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[-1]), "-v" in sys.argv))
