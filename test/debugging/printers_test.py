# Runs the program in gdb, and compares the text that the library's printers give.
# SPDX-License-Identifier: Apache-2.0
# usage: printers_test.py GDB PROGRAM PRINTERS
import re
import subprocess
import sys

GDB, PROGRAM, PRINTERS = sys.argv[1:4]
SKIPPED = 77
EXPECTED = {
    "all.pool": r'pool_resource "weights" on device 0, 4 MiB of 8 GiB reserved = \{live_or_cached = 3145728, '
                r"reserved = 4194304, peak_reserved = 4194304, limit = 8589934592, shards = 1, handles = 4, "
                r"state = 0x",
    "all.moved_from": "pool_resource, moved from$",
    "all.block": r"allocation of 3 MiB at 0x[0-9a-f]+ = \{data = 0x[0-9a-f]+, bytes = 3145728, alignment = 256, "
                 r"stream = 0x[0-9a-f]+, timeline = 0x",
    "all.empty": "empty allocation$",
    "all.stream": r"stream 0x[0-9a-f]+ on device 0 = \{id = \d+, kind = own, capturing = (False|0|false), "
                  r"epoch = \d+, completed = \d+, timeline = 0x",
    "all.legacy": "stream the legacy stream$",
    "all.begun": r"task of .*answer.*, not ended = \{frame = 0x",
    "all.ended": r"task of .*answer.*, ended = \{frame = 0x[0-9a-f]+, result = .*42",
    "all.failed": r"task of .*failing.*, ended = \{frame = 0x[0-9a-f]+, error = ",
    "all.options": r"\{.*priority = 0",
    # Types of which the program has no object; clang 19 leaves the namespace out of their names.
    "sizeof(class event)": r"\d+$",
    "sizeof(class buffer)": r"\d+$",
    "sizeof(class tracking_label)": r"\d+$",
    "sizeof(struct block_info)": r"\d+$",
}


def run(*arguments):
    prints = [part for name in EXPECTED for part in ("-ex", f"echo {name}:", "-ex", f"print {name}")]
    command = [GDB, "-nx", "-batch", "-ex", "set print pretty off", "-ex", "set width 0", *arguments,
               "-ex", "break inspect", "-ex", "run", "-ex", "info threads", *prints, PROGRAM]
    said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120).stdout
    if re.search(r"ptrace:|Could not trace|[Ss]cripting in the \"?Python\"? language is not supported", said):
        print(said, "gdb cannot run programs here, or has no Python")
        sys.exit(SKIPPED)
    return said


def compare(kind, said):
    wrong = []
    for name, pattern in EXPECTED.items():
        found = re.search(rf"^{re.escape(name)}:\$\d+ = (.*)$", said, re.M)
        if not found or not re.match(pattern, found[1]):
            wrong.append(f"{kind}: {name} is printed as {found and found[1]}, not {pattern}")
    if "gpumem-library" not in said:
        wrong.append(f"{kind}: gdb names no thread gpumem-library")
    if wrong:
        print(said)
        sys.exit("\n".join(wrong))


# In a trusted folder gdb loads the printers with the program; otherwise it says so, and `source` loads them.
compare("trusted", run("-iex", f"add-auto-load-safe-path {PROGRAM}"))
declined = run("-iex", "set auto-load safe-path /nowhere", "-ex", f"source {PRINTERS}")
compare("sourced", declined)
if "declined" not in declined:
    sys.exit("gdb loads the printers of a program that the user does not trust:\n" + declined)
