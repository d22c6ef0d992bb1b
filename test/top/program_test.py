#!/usr/bin/env python3
# gpumem-top beside programs that publish their pools.
# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

TOP, MONITORED, PROMTOOL = sys.argv[1:4] if len(sys.argv) > 3 else [*sys.argv[1:3], ""]
FOLDER = Path("/dev/shm")
PROGRAM = "gpumem_monitore"  # Linux keeps 15 characters
LONGEST = 60  # seconds until a test gives up; none waits for it


def top(*arguments):
    done = subprocess.run([TOP, *arguments], capture_output=True, text=True, timeout=LONGEST)
    return done.returncode, done.stdout, done.stderr


class Program:
    """A monitored program that runs until it is told to end."""

    def __init__(self, mode="", monitor="1"):
        self.process = subprocess.Popen([MONITORED, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, "GPUMEM_MONITOR": monitor})
        self.ready = self.process.stdout.readline() == "ready\n"

    def page(self):
        return FOLDER / f"gpumem.{os.geteuid()}.{self.process.pid}"

    def rows(self, output):
        return [line for line in output.splitlines() if line.startswith(f"{self.process.pid} ")]

    def shown(self, enough):
        """The rows of this program in a table that satisfies the condition."""
        for _ in range(LONGEST * 10):
            rows = self.rows(top("--once")[1])
            if enough(rows):
                return rows
            time.sleep(.1)
        raise AssertionError(f"last seen: {rows}")

    def end(self):
        _, errors = self.process.communicate(timeout=LONGEST)
        return self.process.returncode, errors


class Test(unittest.TestCase):
    def run_program(self, *arguments):
        program = Program(*arguments)
        self.addCleanup(lambda: (program.process.kill(), program.process.communicate(),
                                 program.page().unlink(missing_ok=True)))
        self.assertTrue(program.ready)
        return program

    def test_a_row_for_each_pool(self):
        program = self.run_program()
        rows = program.shown(lambda rows: len(rows) == 2 and "3.00 MiB" in rows[0])
        self.assertRegex(rows[0], r'^\d+ +gpumem_monitore +training "a" +0 +3\.00 MiB +4\.00 MiB +64\.00 MiB +0 +0 +1$')
        self.assertRegex(rows[1], r"^\d+ +gpumem_monitore +fixed_size +0 +- +- +- +0 +0 +0$")
        page = program.page()
        self.assertEqual(page.stat().st_mode & 0o777, 0o600)
        self.assertEqual(program.end(), (0, ""))
        self.assertFalse(page.exists())
        self.assertEqual(program.rows(top("--once")[1]), [])

    def test_a_pool_that_ends_leaves_the_table(self):
        rows = self.run_program("end").shown(lambda rows: len(rows) == 2 and "second" in "".join(rows))
        self.assertNotIn("training", "".join(rows))

    def test_a_killed_program_leaves_no_page_after_the_next_look(self):
        program = self.run_program()
        program.shown(len)
        program.process.send_signal(signal.SIGKILL)
        program.process.wait()
        self.assertEqual(program.rows(top("--once")[1]), [])
        self.assertFalse(program.page().exists())

    def test_a_forked_child_leaves_the_page(self):
        program = self.run_program("fork")
        program.shown(len)
        self.assertTrue(program.page().exists())

    def test_more_pools_than_rows(self):
        program = self.run_program("many")
        program.shown(lambda rows: len(rows) == 100)
        self.assertRegex(top("--once")[1], r"(?m)^\d+ more pools have no rows\.$")

    def test_without_the_variable_nothing_is_published(self):
        for value in "", "0", "off":
            program = self.run_program("", value)
            self.assertFalse(program.page().exists())
        wrong = Program("", "yes")
        self.assertFalse(wrong.ready)
        self.assertIn("GPUMEM_MONITOR must be 0, 1, off or on", wrong.end()[1])

    def test_a_name_that_is_taken(self):
        # The program's number is not known before, so a link stands for the page of a program in another container.
        code = ("import os, sys; path = f'/dev/shm/gpumem.{os.geteuid()}.{os.getpid()}'; os.symlink('/none', path); "
                "os.execv(sys.argv[1], sys.argv[1:])")
        process = subprocess.Popen([sys.executable, "-c", code, MONITORED], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True, env={**os.environ, "GPUMEM_MONITOR": "on"})
        link = FOLDER / f"gpumem.{os.geteuid()}.{process.pid}"
        self.addCleanup(lambda: link.unlink(missing_ok=True))
        self.assertEqual(process.stdout.readline(), "ready\n")
        second = Path(f"{link}.1")
        self.assertTrue(second.is_file())
        process.communicate(timeout=LONGEST)
        self.assertTrue(link.is_symlink())
        self.assertFalse(second.exists())

    def test_prometheus(self):
        program = self.run_program()
        program.shown(lambda rows: "3.00 MiB" in "".join(rows))
        status, text, _ = top("--prometheus")
        self.assertEqual(status, 0)
        self.assertIn(f'\ngpumem_pool_live_bytes{{process="{program.process.pid}",program="{PROGRAM}",'
                      'pool="training \\"a\\"",number="0",device="0"} 3145728\n', text)
        self.assertIn("\n# TYPE gpumem_pool_misses_total counter\n", text)
        if PROMTOOL and not PROMTOOL.endswith("NOTFOUND"):
            done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_a_wrong_command_line(self):
        for arguments in ["--bogus"], ["--interval", "0"], ["file"]:
            status, output, errors = top(*arguments)
            self.assertEqual((status, output), (2, ""))
            self.assertIn("Try 'gpumem-top --help'.", errors)
        status, output, _ = top("--help")
        self.assertEqual(status, 0)
        self.assertIn("--prometheus", output)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
