#!/usr/bin/env python3
# Shows which names the API reference has, and that a public name without a comment fails the build of it.
# SPDX-License-Identifier: Apache-2.0
import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
PROJECT = Path(__file__).parents[3]
sys.path.insert(0, str(PROJECT / "cmake" / "reference"))
from build_reference import build  # noqa: E402
from extract import extract  # noqa: E402
from public_names import Library  # noqa: E402


class Reference(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root, self.out = Path(folder.name, "root"), Path(folder.name, "out")

    def write(self, name, text):
        path = self.root / "modules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def shown(self, text, name="core/page.cppm"):
        """The lines that doxygen reads of a file, without the first."""
        self.write(name, "// A file.\n" + text)
        extract(self.root, self.out)
        path = self.out / name
        return [line for line in path.read_text().split("\n")[1:] if line] if path.exists() else []

    def test_only_exports_are_shown(self):
        self.assertEqual(self.shown("namespace gpumem {\nint own();\nexport int public_one() { return 1; }\n}\n"),
                         ["namespace gpumem {", "int public_one();", "}"])

    def test_a_header_shows_all_but_detail(self):
        lines = self.shown("namespace gpumem {\nint one();\nnamespace detail {\nint two();\n}\n}\n", "core/page.hpp")
        self.assertIn("int one();", lines)
        self.assertNotIn("int two();", lines)

    def test_own_members_are_not_shown(self):
        text = self.shown("""namespace gpumem {
/// A page.
export class page {
public:
  page(page&& other) noexcept;
  ~page();
  // For the library.
  void own();
  /// Returns the size.
  int size() const { return size_; }

protected:
  void undocumented();

private:
  int size_ = 0;
};
}
""")
        self.assertEqual(text, ["namespace gpumem {", "/** A page. */", "class page { public:", "/** Returns the size. */",
                                "int size() const;", "} ;", "}"])

    def test_a_constraint_becomes_a_part_of_the_comment(self):
        text = self.shown("""export namespace gpumem {
/// Sorts.
template <class T>
  requires std::integral<T> && (sizeof(T) > 1)
void sort(T* first) noexcept
  requires requires(T& t) { t.swap(t); }
{
  first->swap(*first);
}
}
""")
        self.assertEqual(text[1:-1], ["/** Sorts. @needs <code>std\\::integral&lt;T&gt; &amp;&amp; (sizeof(T) &gt; 1) "
                                      "&amp;&amp; requires(T&amp; t) { t.swap(t); }</code> */",
                                      "template <class T> void sort(T* first) noexcept;"])

    def test_a_base_in_detail_is_shown(self):
        self.write("core/base.cppm", "namespace gpumem::detail {\n/// A base.\nexport template <class T> class base {\n"
                                     "public:\n/// Starts.\nvoid start();\n};\nexport class other {};\n}\n")
        lines = self.shown("namespace gpumem {\n/// A page.\nexport class page : public detail::base<page> {\n};\n}\n")
        self.assertIn("class page : public gpumem::detail::base { public:", lines)
        base = (self.out / "core/base.cppm").read_text()
        self.assertIn("void start();", base)
        self.assertNotIn("other", base)

    def test_overloads_in_lines_that_stand_together_share_a_comment(self):
        text = self.shown("export namespace gpumem {\n/// Starts.\nvoid start();\nvoid start(int);\n\n"
                          "void start(char);\n}\n")
        self.assertEqual(text[2:-1], ["void start();", "/** Starts. */ void start(int);", "void start(char);"])

    def test_a_getter_of_the_member_of_its_name_gets_a_sentence(self):
        for code, has_sentence in [("int seen_pages() const { return seen_pages_; }", True),
                                   ("T& seen_pages() {\n  return seen_pages_.value();\n}", True),
                                   ("bool seen_pages() { return seen_pages_; }", False),
                                   ("int pages() { return seen_pages_; }", False), ("int seen_pages();", False)]:
            text = self.shown(f"namespace gpumem {{\n/// A page.\nexport class page {{\npublic:\n{code}\n}};\n}}\n")
            self.assertEqual(text[3].startswith("/** Returns the seen pages. */"), has_sentence, text)

    def test_each_exported_name_is_shown(self):
        library, shown = Library(PROJECT), set()
        for file in library.files:
            for scope in [file.declarations, *(one.members for one in file.named if one.kind == "namespace")]:
                shown |= {one.name.removeprefix("::").split("::")[-1] for one in library.members(scope)}
        surface = (PROJECT / "test/static/api_surface.cpp").read_text()
        exported = {name.split("::")[-1] for name in re.findall(r"^using ([\w:]+);", surface, re.M)}
        self.assertGreater(len(exported), 250)
        self.assertEqual(exported - shown, set())

    @unittest.skipUnless(shutil.which("doxygen"), "doxygen is missing")
    def test_a_name_without_a_comment_fails(self):
        main_page = self.root / "main.dox"
        self.root.mkdir()
        main_page.write_text("/** @mainpage Pages */\n/** @namespace gpumem Pages. */\n")
        for comment, status in [("/// Starts.", 0), ("", 1)]:
            self.write("core/page.cppm", f"// A file.\nexport namespace gpumem {{\n\n{comment}\nvoid start();\n}}\n")
            failed, messages = build(self.root, self.out, "1.0", main_page)
            self.assertEqual(failed, status, messages)
            if status:
                self.assertIn("modules/core/page.cppm:5: error: Member start() (function)", messages)


if __name__ == "__main__":
    unittest.main()
