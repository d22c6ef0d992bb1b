#!/usr/bin/env python3
# Shows that a planted fault is found by its line, and that each stale fault is reported.
# SPDX-License-Identifier: Apache-2.0
import subprocess
import tempfile
import unittest
from pathlib import Path

FINDER = Path(__file__).parents[2] / "mutants" / "find_faults.awk"
SOURCES = {
    "a.cpp": """class local {
public:
  int once() { return 0; }
};

void a::end(b& other) {
  step();
}
""",
    "b.cpp": """[[gnu::cold]] bool b::end(
    int) noexcept try {
  step();
  twice();
  twice();
} catch (int) { return false; }

void aa::end() {
  step();
}
""",
}


class CheckFaults(unittest.TestCase):
    def find(self, faults, *options):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "mutants.txt").write_text("# One-line faults.\n# Of two files.\n\n" + faults)
            for name, text in SOURCES.items():
                Path(folder, name).write_text(text)
            found = subprocess.run(["awk", *options, "-f", FINDER, "mutants.txt", *SOURCES], cwd=folder, text=True,
                                   capture_output=True, check=False)
        self.assertEqual(found.stderr, "")
        return found.returncode, found.stdout.splitlines()

    def test_line_that_stands_once_is_found(self):
        faults = "other\ndoes\nx\ny\n\nbad\nis bad\n  int once() { return 0; }\n  \\n; // a:b%d\n\nlast\ndoes\nx\ny\n"
        self.assertEqual(self.find(faults, "-v", "name=bad"),
                         (0, ["is bad", "a.cpp", "3", "  int once() { return 0; }", "  \\n; // a:b%d", ""]))

    def test_line_is_found_in_its_function(self):
        for function, file, number in [("a::end", "a.cpp", "7"), ("b::end", "b.cpp", "3"), ("aa::end", "b.cpp", "9")]:
            self.assertEqual(self.find(f"bad\nis bad\nin {function}\n  step();\n  stop();\nSEED=9", "-v", "name=bad"),
                             (0, ["is bad", file, number, "  step();", "  stop();", "SEED=9"]))
        self.assertEqual(self.find("bad\nis bad\nin b::end\n} catch (int) { return false; }\n}")[0], 0)

    def test_all_stale_faults_are_reported(self):
        faults = ["gone\ndoes\n  none();\n  x();\n", "moved\ndoes\nin end\n  step();\n  x();\n",
                  "double\ndoes\n  step();\n  x();\n", "near\ndoes\nin b::end\n  twice();\n  x();\n",
                  "short\ndoes\n  step();\n"]
        places = ["a.cpp:7", "b.cpp:3", "b.cpp:9"]
        found = [f"  found at {place}" for place in places]
        remedy = "  name its function in the line before: in CLASS::FUNCTION"
        self.assertEqual(self.find("\n".join(faults)), (1, [
            "mutants.txt: short: 3 lines", "mutants.txt: gone: 0 times in the sources:   none();",
            "mutants.txt: moved: 0 times in end:   step();", *found,
            "mutants.txt: double: 3 times in the sources:   step();", *found, remedy,
            "mutants.txt: near: 2 times in b::end:   twice();", "  found at b.cpp:4", "  found at b.cpp:5", remedy]))

    def test_unknown_fault_is_reported(self):
        self.assertEqual(self.find("bad\nis bad\nx\ny\n", "-v", "name=good"), (1, ["mutants.txt: good: no such fault"]))


if __name__ == "__main__":
    unittest.main()
