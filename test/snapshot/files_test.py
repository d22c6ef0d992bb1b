# Checks the files of snapshots: JSON against the table of the guide, pickles by PyTorch's reader and by Python's.
# SPDX-License-Identifier: Apache-2.0
#
# usage: files_test.py WRITER GUIDE_PAGE MEMORY_VIZ
import importlib.util
import io
import json
import pickle
import pickletools
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

WRITER, PAGE, VIEWER = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
TYPES = {"text": str, "integer": int, "truth": bool, "object": dict, "list": list}


def schema():
    """The rows of the guide's table: the type of each member, and whether each object has it."""
    rows = re.findall(r"^\| `([\w.*\[\]]+)` \| (\w+)(, if [^|]+)? \|", PAGE.read_text(), re.M)
    return {name: (TYPES[kind], not condition) for name, kind, condition in rows}


def faults(value, rows, name=""):
    """Compares a value with the rows, both ways; yields what differs."""
    if isinstance(value, list):
        for each in value:
            yield from faults(each, rows, name + "[]")
    if not isinstance(value, dict):
        return
    prefix = name + "." if name else ""
    for key, member in value.items():
        row = rows.get(prefix + key) or rows.get(prefix + "*")
        if not row:
            yield f"the guide has no row {prefix}{key}"
        elif type(member) is not row[0]:
            yield f"{prefix}{key} is {type(member)}"
        yield from faults(member, rows, prefix + key)
    for row, (_, always) in rows.items():
        below = row.removeprefix(prefix)
        if row.startswith(prefix) and always and re.fullmatch(r"\w+", below) and below not in value:
            yield f"{row} is missing"


class Plain(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"names {module}.{name}")


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        subprocess.run([WRITER, cls.folder.name], check=True, timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def path(self, name):
        return Path(self.folder.name) / name

    def json(self, name):
        return json.loads(self.path(name).read_text())

    def pickle(self, name):
        return Plain(io.BytesIO(self.path(name).read_bytes())).load()

    def test_json_is_what_the_guide_says(self):
        rows = schema()
        self.assertGreater(len(rows), 30)
        seen = set()
        for name in ("before.json", "waiting.json"):
            snapshot = self.json(name)
            self.assertEqual(list(faults(snapshot, rows)), [])
            text = json.dumps(snapshot)
            seen |= {row for row in rows if f'"{re.split(r"[.]", row)[-1]}"' in text or row.endswith("*")}
        self.assertEqual(set(rows) - seen, set(), "no file has these members")

    def test_the_check_of_json_finds_faults(self):
        rows, snapshot = schema(), self.json("before.json")
        for change in (lambda s: s.pop("pages"), lambda s: s.update(more=1), lambda s: s.update(pieces="1"),
                       lambda s: s["regions"][0]["blocks"][0].pop("bytes"),
                       lambda s: s["regions"][0]["blocks"][0].update(state=3)):
            changed = json.loads(json.dumps(snapshot))
            change(changed)
            self.assertEqual(len(list(faults(changed, rows))), 1)

    def test_json_adds_up(self):
        snapshot = self.json("before.json")
        self.assertEqual(snapshot["pool"], 'a "pool"\n')
        self.assertEqual(snapshot["calls_meanwhile"], 0)
        blocks = [each for region in snapshot["regions"] for each in region["blocks"]]
        self.assertEqual(sum(each["bytes"] for each in blocks), snapshot["statistics"]["reserved"])
        live = sum(each["requested"] for each in blocks if each["state"] == "live")
        self.assertEqual(live, snapshot["statistics"]["live"])
        self.assertEqual([each["label"] for each in blocks if "label" in each], ["weights\\\x01"])
        waiting = self.json("waiting.json")["waiting"]
        self.assertEqual([(each["bytes"], each["scope"]) for each in waiting], [(40 << 20, "work")])

    def test_pickle_has_the_members_of_pytorch(self):
        text = self.path("before.pickle").read_bytes()
        self.assertLessEqual(max(operation.proto for operation, _, _ in pickletools.genops(text)), 2)
        snapshot = self.pickle("before.pickle")
        self.assertEqual(set(snapshot), {"segments", "device_traces", "allocator_settings", "external_annotations"})
        reserved = self.json("before.json")["statistics"]["reserved"]
        self.assertEqual(sum(each["total_size"] for each in snapshot["segments"]), reserved)
        for segment in snapshot["segments"]:
            self.assertEqual(segment["total_size"], sum(block["size"] for block in segment["blocks"]))
        frames = [frame["name"] for segment in snapshot["segments"] for block in segment["blocks"]
                  for frame in block["frames"]]
        self.assertEqual(frames, ["weights\\\x01"])

    @unittest.skipUnless(VIEWER.exists(), "cmake/run.sh setup brings PyTorch's reader")
    def test_memory_viz_reads_pickles(self):
        for action in ("stats", "trace"):
            done = subprocess.run([sys.executable, "-B", VIEWER, action, self.path("before.pickle")],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            if action == "stats":
                self.assertRegex(done.stdout, r"total_allocated: 52\.0MiB")
        spec = importlib.util.spec_from_file_location("memory_viz", VIEWER)
        viewer = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(viewer)
        before, after = self.pickle("before.pickle"), self.pickle("waiting.pickle")
        text = viewer.segments(before, format_flamegraph=lambda lines: lines)  # the picture needs a script of the web
        self.assertRegex(text, r"active_allocated;label:0:weights\S* 31457275")
        self.assertIn("weights", viewer.memory(before, format_flamegraph=lambda lines: lines))
        # The command `compare` of this version passes whole snapshots to a function that takes their segments.
        self.assertIsInstance(viewer.compare(before["segments"], after["segments"],
                                             format_flamegraph=lambda lines: lines), str)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
