#!/usr/bin/env python3
# The guide's page and the one of the program show what gpumem-report prints, and a picture that it has drawn.
# --write: puts both there.
# SPDX-License-Identifier: Apache-2.0
import re
import subprocess
import sys
import tempfile
from pathlib import Path

program, root = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
pages = [root / "modules/guide/report.md", root / "modules/guide/compare.md", root / "bench/report/README.md"]
picture = root / "bench/report.svg"
BLOCK = re.compile(r"^```text\n\$ gpumem-report ([^\n]*)\n(.*?)^```$", re.S | re.M)
PICTURE = "--svg bench/report.svg bench/traces/gpt_train.csv.gz"


def run(command):
    with tempfile.TemporaryDirectory() as folder:
        command = command.replace("bench/report.svg", f"{folder}/report.svg").split()
        if "--help" not in command:
            command += ["--json", f"{folder}/figures"]
        done = subprocess.run([program, *command], cwd=root, capture_output=True, text=True, check=True)
        drawn = Path(folder, "report.svg")
        return done.stdout, drawn.read_text() if drawn.exists() else None


fix = f"python3 {sys.argv[0]} PROGRAM ROOT --write"
for page in pages:
    text = page.read_text()
    made = BLOCK.sub(lambda block: f"```text\n$ gpumem-report {block[1]}\n{run(block[1])[0]}```", text)
    if "--write" in sys.argv:
        page.write_text(made)
    elif not BLOCK.search(text) or made != text:
        sys.exit(f"{page} differs from what the program prints: {fix}")
if PICTURE not in pages[0].read_text():
    sys.exit(f"{pages[0]} does not say how {picture} is drawn")
drawn = run(PICTURE)[1]
if "--write" in sys.argv:
    picture.write_text(drawn)
elif drawn != picture.read_text():
    sys.exit(f"{picture} differs from what the program draws: {fix}")
