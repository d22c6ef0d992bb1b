#!/usr/bin/env python3
# Shows that the check of the comments finds each kind of words, and that it leaves plain comments alone.
# SPDX-License-Identifier: Apache-2.0
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
from check_prose import check, check_text, glossary  # noqa: E402

SUBJECT = "begin with the subject: the thread, the block, the call"
ACTOR = "name the thread, the stream, the caller, the pool"
NUMBER = "say the number, or the name of the constant"
SPLIT = "words, split it into sentences of at most 30"
EXPLAINED = "the glossary explains the term, so leave the parenthesis out"
TERMS = """## Glossary

| term | meaning |
|---|---|
| shard | A part of a pool. |
| adopted, foreign stream | A stream with a promise. |
| to poison | To fill. |

## Names

| namespace | for |
"""
OTHERWISE = "write \"otherwise\", or quote code: `else`"


class CheckProse(unittest.TestCase):
    def finds(self, text, *findings):
        self.assertEqual(check_text(text), list(findings))

    def test_clause_as_subject_is_found(self):
        for word in ["What", "Who", "Whom", "Whose", "Of"]:
            self.finds(f"int i; // {word} is rare saves itself.", (1, f"\"{word} is rare\": {SUBJECT}"))

    def test_clause_as_subject_is_found_in_a_later_sentence(self):
        self.finds("// Null. The pool\n// is closed. What is\n// left stays.", (2, f"\"What is left\": {SUBJECT}"))
        self.finds("/* It ends (a name: `a.b`).\n * Of two, the first. */", (2, f"\"Of two, the\": {SUBJECT}"))

    def test_same_words_inside_a_sentence_are_accepted(self):
        self.finds("// The thread knows what is rare, and of whose blocks. Whatever it is, e.g. this one.")

    def test_unnamed_actor_is_found(self):
        for word in ["nobody", "somebody", "whoever", "whomever", "anybody"]:
            self.finds(f"// A block that {word} uses.", (1, f"\"{word} uses.\": {ACTOR}"))
        self.finds("// Nobody's.", (1, f"\"Nobody's.\": {ACTOR}"))

    def test_unnamed_number_is_found(self):
        for word in ["so many", "so often", "so much"]:
            self.finds(f"// It waits {word} as told.", (1, f"\"{word} as\": {NUMBER}"))
        self.finds("// Unmaps as many pages.", (1, "\"as many pages.\": say the number, or \"as many … as\""))
        self.finds("// Unmaps as many pages as\n// were mapped.")

    def test_else_is_found_where_it_means_otherwise(self):
        self.finds("// Null, else the\n// block; or else nothing.", (1, f"\"else the block;\": {OTHERWISE}"),
                   (2, f"\"else nothing.\": {OTHERWISE}"))
        self.finds("// The branch `else`, `if (a) b; else\n// c;`: nothing else, and where else?")

    def test_long_sentence_of_a_doc_comment_is_found(self):
        words = "word " * 29
        self.finds(f"/// A {words}end. More.", (1, f"\"A word word …\": 31 {SPLIT}"))
        self.finds(f"/// A {words}.\n/// More.")
        self.finds(f"/// A {words}. find_extent() {words}. map_all {words}. `where` {words}. *Throws* {words}.")
        self.finds(f"// A {words}end.")

    def test_lines_of_a_list_or_table_are_no_sentence(self):
        words = "word " * 20
        self.finds(f"/// - {words}\n/// - {words}\n///\n/// {words}\n///   name  {words}\n///   name  {words}")

    def test_comments_of_neighbouring_members_are_apart(self):
        words = "word " * 20
        self.finds(f"int a; ///< {words}\nint b; ///< {words}")
        self.finds(f"int a; ///< {words}\n       ///< {words}", (1, f"\"word word word …\": 40 {SPLIT}"))

    def test_explanation_of_a_term_is_found(self):
        for text, shown in [("All shards (the parts of a pool).", "shards (the parts of …"),
                            ("A foreign stream (one that may die).", "foreign stream (one that …"),
                            ("It poisons (fills) and poisoned (fills the block) it.", "poisoned (fills the block …")]:
            self.assertEqual(check_text(f"int i; // {text}", glossary(TERMS)), [(1, f"\"{shown}\": {EXPLAINED}")])
        self.assertEqual(check_text("// One\n// shard\n// (a part of\n// it).", glossary(TERMS)),
                         [(2, f"\"shard (a part of …\": {EXPLAINED}")])

    def test_other_parentheses_are_accepted(self):
        for text in ["A shard (0), a shard (`a part`), adopted (see stream::adopt()).", "A part of shards (for example 2).",
                     "A namespace (a name of it), the shard of it (a part)."]:
            self.assertEqual(check_text(f"// {text}", glossary(TERMS)), [])
        self.assertIsNone(glossary("## Names\n\n| shard | A part. |\n"))

    def test_code_and_strings_are_accepted(self):
        self.finds('if (nobody) else; auto a = "// What else?"; auto b = R"x("// Nobody)x"; char d = \'"\'; // So.')
        self.finds("int c = 1'000; // What's this", (1, f"\"What's this\": {SUBJECT}"))

    def test_files_of_the_named_folders_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ["src/core/a.cpp", "src/base/b.hpp", "src/core/deep/c.cu", "src/core/d.py"]:
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("\n// Nobody.\n")
            Path(folder, "modules").mkdir()
            Path(folder, "modules", "README.md").write_text(TERMS)
            Path(folder, "src", "core", "e.cpp").write_text("// A shard (part of it).\n")
            self.assertEqual(check(Path(folder), ["src/core"]), [f"src/core/a.cpp:2: \"Nobody.\": {ACTOR}",
                                                                 f"src/core/deep/c.cu:2: \"Nobody.\": {ACTOR}",
                                                                 f"src/core/e.cpp:1: \"shard (part of it …\": {EXPLAINED}"])


if __name__ == "__main__":
    unittest.main()
