# Compares the C library with the text of the last release's interface, and tests what that comparison finds.
# SPDX-License-Identifier: Apache-2.0
# usage: abi_test.py SOURCE LIBRARY
import re
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE, LIBRARY = (Path(path) for path in sys.argv[1:3])
sys.path.insert(0, str(SOURCE / "cmake/packaging"))
sys.dont_write_bytecode = True
import abi  # noqa: E402


class Interface(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.now = Path(cls.folder.name) / "now.abi"
        abi.write(LIBRARY, cls.now)
        cls.text = cls.now.read_text()

    def found(self, *changes):
        """Changes the text, each pair (old, new) once, and returns what the library of now breaks for it."""
        text = self.text
        for old, new in changes:
            self.assertIn(old, text)
            text = text.replace(old, new, 1)
        earlier = Path(self.folder.name) / "earlier.abi"
        earlier.write_text(text)
        return abi.differences(earlier, self.now)

    def part(self, expression):
        return re.search(rf"^ +{expression}", self.text, re.M | re.S)[0]

    def test_programs_made_for_the_last_release_run(self):
        self.assertEqual(abi.differences(abi.last_text(), self.now), "",
                         "the C library no longer serves programs that were made for the last release")

    def test_the_text_names_no_folder_and_no_library(self):
        self.assertNotIn(str(SOURCE), self.text)
        self.assertNotIn("libstdc++", self.text)
        self.assertEqual(self.text, (abi.write(LIBRARY, self.now), self.now.read_text())[1])

    def test_functions(self):
        symbol = self.part("<elf-symbol name='gpumem_trim'[^\\n]*\\n")
        function = self.part("<function-decl name='gpumem_trim'.*?</function-decl>\\n")
        gone = [(part, part + part.replace("gpumem_trim", "gpumem_gone")) for part in (symbol, function)]
        self.assertIn("gpumem_gone", self.found(*gone))
        self.assertEqual(self.found((symbol, ""), (function, "")), "")  # added since
        types = re.findall("<parameter type-id='(.*?)'", function)
        self.assertIn("parameter 2 of type", self.found((function, function.replace(types[1], types[0]))))

    def test_structures(self):
        whole = self.part("<class-decl name='gpumem_statistics'.*?</class-decl>\\n")
        last = re.findall(r" *<data-member.*?</data-member>\n", whole, re.S)[-1]
        bits = int(re.search(r"size-in-bits='(\d+)'", whole)[1])
        shorter = whole.replace(last, "").replace(f"size-in-bits='{bits}'", f"size-in-bits='{bits - 64}'")
        self.assertEqual(self.found((whole, shorter)), "")  # grown at the end since
        self.assertIn("gpumem_statistics", self.found((whole, whole.replace("'live'", "'other'"))))
        longer = whole.replace(last, last + last.replace("'lent'", "'other'").replace(
            "layout-offset-in-bits='", "layout-offset-in-bits='1")).replace(f"'{bits}'", f"'{bits + 64}'")
        self.assertIn("other", self.found((whole, longer)))

    def test_opaque_types_are_the_librarys_own(self):
        whole = self.part("<class-decl name='gpumem_growable'.*?</class-decl>\\n")
        self.assertEqual(self.found((whole, whole.replace("'64'", "'128'").replace("'buffer'", "'other'"))), "")

    def test_enums(self):
        value = self.part("<enumerator name='GPUMEM_CLOSED'[^\\n]*\\n")
        self.assertIn("GPUMEM_CLOSED", self.found((value, value.replace("'3'", "'33'"))))
        last = self.part("<enumerator name='GPUMEM_DRIVER_ERROR'[^\\n]*\\n")
        self.assertEqual(self.found((last, "")), "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
