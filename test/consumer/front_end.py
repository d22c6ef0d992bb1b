#!/usr/bin/env python3
"""Prints the processor seconds that the compiler's front end takes for files with and without `import gpumem;`: the least
of several runs. No test, since times differ between machines.
SPDX-License-Identifier: Apache-2.0

usage: front_end.py NINJA BUILD_FOLDER PROGRAM    # a user's project, whose PROGRAM of app.cpp is built"""
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

SIX = "".join(f"#include <{name}>\n" for name in ["algorithm", "chrono", "functional", "iostream", "ranges", "regex"])
USE_SIX = """int six(int count, char** names) {
  std::vector<std::string> words(names, names + count);
  std::sort(words.begin(), words.end());
  std::function<bool(std::string const&)> const wanted = [what = std::regex("[a-z]+[0-9]*")](std::string const& word) {
    return std::regex_match(word, what);
  };
  auto const begin = std::chrono::steady_clock::now();
  for (auto const& word : words | std::views::filter(wanted) | std::views::take(10)) std::cout << word << '\\n';
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count() > 9;
}
"""
USE_POOL = """int use() {
  gpumem::pool_resource pool{gpumem::device{0}, {.limit = 64 << 20}};
  gpumem::stream stream{gpumem::device{0}};
  void* const block = pool.allocate(stream, 1 << 20);
  pool.deallocate(stream, block, 1 << 20);
  return block != nullptr;
}
"""
FILES = {"import": "import gpumem;\n", "import, pool": "import gpumem;\n" + USE_POOL, "six headers": SIX + USE_SIX,
         "six headers, import": SIX + "import gpumem;\n" + USE_SIX,
         "six headers, import, pool": SIX + "import gpumem;\n" + USE_SIX + USE_POOL}


RUNS = 5


def command_of(ninja, folder, program):
    """The command that compiles app.cpp, without that file and its outputs."""
    steps = subprocess.run([ninja, "-C", folder, "-t", "commands", program], check=True, capture_output=True, text=True)
    [step] = [line for line in steps.stdout.splitlines() if re.search(r" -c \S*app\.cpp$", line)]
    step = re.sub(r" -M[DTF]( \S+\.o(?:\.d)?)?(?= )| -o \S+| -c \S+", "", step)
    return shlex.split(step) + ["-fsyntax-only", "-x", "c++"]


def seconds(command, folder):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__.split("\n\n")[1])
    folder = sys.argv[2]
    command = command_of(*sys.argv[1:])
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in FILES.items():
            path = Path(scratch) / "file.cpp"
            path.write_text(text)
            print(f"{min(seconds(command + [os.fspath(path)], folder) for _ in range(RUNS)):5.2f} s  {name}")


main()
