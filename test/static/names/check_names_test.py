#!/usr/bin/env python3
# Shows that the check of the names reads each kind of declaration, and that it counts bare names alone.
# SPDX-License-Identifier: Apache-2.0
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
from check_names import check, judge_text  # noqa: E402
from declarations import declarations  # noqa: E402

LONG = "\n" * 11


class ReadDeclarations(unittest.TestCase):
    def reads(self, text, *names):
        self.assertEqual([(d.kind, d.name) for d in declarations(text)], list(names))

    def test_parameters_of_functions_are_read(self):
        self.reads("void take(block& in, std::span<int const> of, T&&... all) noexcept;",
                   ("parameter", "in"), ("parameter", "of"), ("parameter", "all"))
        self.reads("template <class T> auto f(T const* from = nullptr) -> std::vector<T> { return g(from, *from); }",
                   ("parameter", "from"))

    def test_parameters_of_constructors_are_read(self):
        self.reads("struct s { explicit s(int in) : base<int>{in}, in_{in} {} int in_; };",
                   ("parameter", "in"), ("member", "in_"))

    def test_members_are_read(self):
        self.reads("class c { sync::mutex of_ GPUMEM_GUARDED_BY(at); int used = 0; unsigned how : 8 = 1; "
                   "std::array<int, 2> all{}; block* next() const; };",
                   ("member", "of_"), ("member", "used"), ("member", "how"), ("member", "all"))

    def test_locals_are_read(self):
        self.reads("void f() { auto const in = a * b; lock held{m}; if (auto* at = g(in)) h(*at); "
                   "for (auto& each : all) each = in; auto [from, to] = pair; return of; }",
                   ("local", "in"), ("local", "held"), ("local", "at"), ("local", "each"), ("local", "from"),
                   ("local", "to"))

    def test_parameters_of_lambdas_are_locals(self):
        self.reads("void f() { g([&](int one) { return one; }); }", ("local", "one"))

    def test_expressions_and_types_are_not_read(self):
        self.reads("enum class how { own, all }; using at = int; void f() { in = a & of; x < y > all; return why; "
                   "g(in, of); s{.at = in}; throw of; }")
        self.reads("// int in;\nchar const* text = \"int of;\";\n#define HOW int at;\n", ("other", "text"))

    def test_scope_ends_with_the_body(self):
        found = declarations("void f(int in)\n  requires requires(T& t) { t.go(); }\n{\n  g(in);\n}\nint in;\n")
        self.assertEqual([(d.name, d.lines) for d in found], [("in", 4), ("t", 0), ("in", 0)])
        found = declarations("c::c(int in)\n    : base<int>{in}, at_{in} {\n  g(in);\n}\n")
        self.assertEqual([(d.name, d.lines) for d in found], [("in", 3)])


class JudgeNames(unittest.TestCase):
    def counts(self, text, counted, *bare):
        judged = judge_text(text)
        self.assertEqual((len(judged), [d.name for d, is_hit in judged if is_hit]), (counted, list(bare)))

    def test_function_words_and_participles_are_bare(self):
        self.counts("void f(block& in, block& found, block& of_all, block& found_block, device peer);", 5,
                    "in", "found", "of_all")

    def test_participle_may_name_a_bool(self):
        self.counts("class c { bool found_; std::atomic<bool> used; bool own; };", 3, "own")

    def test_short_locals_are_not_counted(self):
        self.counts(f"void f() {{ int in; {LONG} }} void g() {{ int of; \n }}", 1, "in")

    def test_share_is_counted_by_layer(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in [("modules/base/a.cppm", "void f(int in);"), ("src/base/a.cpp", "void f(int bytes) {}"),
                               ("src/core/b.cpp", "void g(int of, int all) {}"), ("test/c.cpp", "void h(int of);")]:
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            totals, bare, findings = check(Path(folder))
        self.assertEqual((dict(totals), dict(bare)), ({"base": 2, "core": 2}, {"base": 1, "core": 2}))
        self.assertEqual(findings[0], "modules/base/a.cppm:1: parameter int in")


if __name__ == "__main__":
    unittest.main()
