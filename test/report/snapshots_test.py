# Snapshots as inputs of gpumem-report: gpumem's JSON, and pickles of all protocols as PyTorch writes them.
# SPDX-License-Identifier: Apache-2.0
#
# usage: snapshots_test.py PROGRAM SNAPSHOT_WRITER
import collections
import gzip
import json
import pickle
import re
import resource
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch_memory

PROGRAM, WRITER = (Path(each).resolve() for each in sys.argv[1:3])


class Snapshots(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.holder.name)
        subprocess.run([WRITER, cls.folder], check=True, timeout=120)
        cls.memory = torch_memory.Memory(seed=1).run(800)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def run_tool(self, *arguments):
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, cwd=self.folder)

    def figures(self, *files):
        done = self.run_tool(*files, "--json", "figures")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads((self.folder / "figures").read_text()), done.stdout

    def write_pickle(self, name, value, protocol=4):
        (self.folder / name).write_bytes(pickle.dumps(value, protocol))
        return name

    def refuses(self, name, text, message):
        (self.folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        done = self.run_tool(name, "--json", "figures")
        self.assertEqual((done.returncode, done.stdout), (2, ""), name)
        self.assertIn(f"{name}{message}", done.stderr)

    def test_json_of_a_pool(self):
        (figures,), text = self.figures("waiting.json")
        source = json.loads((self.folder / "waiting.json").read_text())
        live = [each for region in source["regions"] for each in region["blocks"] if each["state"] == "live"]
        self.assertEqual(figures["memory"], "snapshot")
        self.assertEqual(figures["end"]["live_bytes"], source["statistics"]["live"])
        self.assertEqual(figures["end"]["reserved_bytes"], source["statistics"]["reserved"])
        self.assertEqual(figures["end"]["blocks"], len(live))
        self.assertEqual(figures["allocations"], 0)
        self.assertEqual(figures["snapshot"]["pages"], len(source["pages"]))
        self.assertEqual(figures["snapshot"]["waiting"][0]["bytes"], source["waiting"][0]["bytes"])
        self.assertEqual(figures["snapshot"]["waiting"][0]["scope"], "work")
        self.assertEqual(len(figures["snapshot"]["thread_caches"]), len(source["thread_caches"]))
        self.assertEqual([each["name"] for each in figures["holders_at_end"]["labels"]], ["weights\\ ", "no label"])
        self.assertIn("waiting requests  40.0 MiB", text)
        self.assertIn("The snapshot shows one moment.", text)
        self.assertNotIn("\x01", text)

    def test_json_and_pickle_of_a_pool_say_the_same(self):
        (first,), _ = self.figures("before.json")
        (second,), _ = self.figures("before.pickle")
        for member in ("end", "sizes"):
            self.assertEqual(first[member], second[member])
        self.assertEqual(first["holders_at_end"]["labels"], second["holders_at_end"]["labels"])

    def check_moment(self, moment, live, reserved):
        self.assertEqual((moment["live_bytes"], moment["reserved_bytes"]), (live, reserved))

    def test_pickle_without_a_trace_shows_its_moment(self):
        whole = torch_memory.snapshot([self.memory], history=False)
        (figures,), text = self.figures(self.write_pickle("state.pickle", whole))
        self.check_moment(figures["end"], *self.memory.states[-1])
        free = [size for ranges in self.memory.free.values() for _, size in ranges]
        self.assertLessEqual(max(free), figures["end"]["largest_free_bytes"])
        labels = collections.Counter()
        for each in self.memory.live.values():
            labels[torch_memory.label(each["layer"])] += each["requested"]
        seen = {each["name"]: each["bytes"] for each in figures["holders_at_end"]["labels"]}
        self.assertEqual(seen, dict(labels))
        self.assertEqual(figures["snapshot"]["pending_bytes"],
                         sum(each["size"] for each in self.memory.pending.values()))
        self.assertNotIn("peak live", text)
        self.assertEqual(figures["snapshot"]["regions"], len(self.memory.segments))

    def test_trace_gives_the_time_in_each_protocol(self):
        whole = torch_memory.snapshot([self.memory])
        # the device's memory before the first entry is empty, so the rows are the entries
        kept = {"alloc", "free_requested", "segment_alloc", "segment_free", "oom"}
        states = [state for entry, state in zip(self.memory.trace, self.memory.states) if entry["action"] in kept]
        texts = set()
        for protocol in range(6):
            (figures,), text = self.figures(self.write_pickle("trace.pickle", whole, protocol))
            texts.add(text)
            self.assertEqual(figures["peak_live"]["live_bytes"], max(live for live, _ in states))
            self.assertEqual(figures["peak_reserved"]["reserved_bytes"], max(reserved for _, reserved in states))
            self.check_moment(figures["peak_live"], *states[figures["peak_live"]["row"]])
            self.check_moment(figures["peak_reserved"], *states[figures["peak_reserved"]["row"]])
            self.check_moment(figures["end"], *self.memory.states[-1])
            actions = collections.Counter(each["action"] for each in self.memory.trace)
            self.assertEqual(figures["allocations"], actions["alloc"])
            self.assertEqual(figures["frees"], actions["free_requested"])
            self.assertEqual(figures["failures"], actions["oom"])
            self.assertEqual(figures["unknown_frees"], 0)
        self.assertEqual(len(texts), 1)

    def test_trace_that_has_lost_its_begin_starts_with_the_memory_then(self):
        last = 300
        cut = torch_memory.snapshot([self.memory], last=last)
        (figures,), _ = self.figures(self.write_pickle("cut.pickle", cut))
        states = self.memory.states[-last - 1:]
        self.assertEqual(figures["peak_live"]["live_bytes"], max(live for live, _ in states))
        self.assertEqual(figures["peak_reserved"]["reserved_bytes"], max(reserved for _, reserved in states))
        self.check_moment(figures["end"], *states[-1])
        self.assertEqual(figures["unknown_frees"], 0)

    def test_each_device_stands_alone(self):
        other = torch_memory.Memory(seed=7, device=1).run(200)
        whole = torch_memory.snapshot([self.memory, other])
        figures, _ = self.figures(self.write_pickle("two.pickle", whole))
        self.assertEqual([each["name"] for each in figures], ["two, device 0", "two, device 1"])
        self.check_moment(figures[1]["end"], *other.states[-1])

    def test_what_changed(self):
        later = torch_memory.Memory(seed=1).run(900)
        first = self.write_pickle("first.pickle", torch_memory.snapshot([self.memory], history=False))
        second = self.write_pickle("second.pickle", torch_memory.snapshot([later]))
        figures, text = self.figures(first, second)
        for change in figures[1]["changes_from_first"]["labels"]:
            for memory, when in ((self.memory, "before"), (later, "after")):
                blocks = [each for each in memory.live.values() if torch_memory.label(each["layer"]) == change["name"]]
                self.assertEqual(change["blocks_" + when], len(blocks))
                self.assertEqual(change["bytes_" + when], sum(each["requested"] for each in blocks))
        self.assertIn("Changes from first to second", text)
        self.assertEqual(text.split("Changes from")[1].count("by label"), 1)

    def test_metadata_and_foreign_frames_name_holders(self):
        whole = torch_memory.snapshot([torch_memory.Memory(seed=3).run(30)], history=False)
        blocks = [each for segment in whole["segments"] for each in segment["blocks"]
                  if each["state"] == "active_allocated"]
        for each in blocks:
            each["frames"] = [{"name": "at::empty", "filename": "empty.cpp", "line": 3}]
        blocks[0]["user_metadata"] = "mine"
        (figures,), _ = self.figures(self.write_pickle("named.pickle", whole))
        self.assertEqual({each["name"] for each in figures["holders_at_end"]["labels"]},
                         {"mine", "empty.cpp:3 at::empty"})

    def test_parts_of_expandable_segments_join(self):
        mib, base = 1 << 20, torch_memory.BASE
        rows = [("segment_map", base, 2 * mib), ("segment_map", base + 2 * mib, 2 * mib), ("alloc", base, 3 * mib),
                ("free_requested", base, 3 * mib), ("segment_unmap", base, 4 * mib)]
        trace = [{"action": action, "addr": address, "size": size, "stream": 0, "time_us": at, "frames": []}
                 for at, (action, address, size) in enumerate(rows)]
        for expandable in (True, False):
            for entry in trace[:2]:
                entry["action"] = "segment_map" if expandable else "segment_alloc"
            whole = {"segments": [], "device_traces": [trace]}
            (figures,), _ = self.figures(self.write_pickle("parts.pickle", whole))
            self.assertEqual(figures["peak_reserved"]["largest_free_bytes"], (4 if expandable else 2) * mib)
            if expandable:
                self.assertEqual(figures["peak_live"]["free_bytes"], mib)
                self.assertEqual(figures["end"]["reserved_bytes"], 0)

    def test_empty_pools(self):
        for whole in ({"segments": [], "device_traces": [[]]}, {"segments": []}):
            (figures,), _ = self.figures(self.write_pickle("empty.pickle", whole))
            self.check_moment(figures["end"], 0, 0)
        done = self.run_tool("empty.pickle", "-o", "page.html")
        self.assertEqual(done.returncode, 0)

    def test_packed_and_pages(self):
        (self.folder / "packed.json.gz").write_bytes(gzip.compress((self.folder / "before.json").read_bytes()))
        done = self.run_tool("packed.json.gz")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.folder / "packed.html").exists())
        done = self.run_tool("before.json", "--svg", "picture.svg")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("before.json: the snapshot has no trace", done.stderr)

    def test_bad_json_says_what_and_where(self):
        text = (self.folder / "before.json").read_text()
        whole = json.loads(text)
        self.refuses("cut.json", text[:len(text) // 2], f":{text[:len(text) // 2].count(chr(10)) + 1}: cut short")
        self.refuses("bad.json", text.replace('"regions"', "regions", 1), ":1: not JSON")
        self.refuses("foreign.json", '{"a": 1}', ": no snapshot of gpumem")
        self.refuses("version.json", text.replace('"version":1', '"version":9'), ": version 9 of the format is unknown")

        def changed(name, message, change):
            copy = json.loads(text)
            change(copy["regions"][0]["blocks"], copy)
            self.refuses(name, json.dumps(copy), message)
        at = ": regions[0]: blocks[1]: "
        changed("a.json", at + "bytes is missing", lambda blocks, _: blocks[1].pop("bytes"))
        changed("b.json", at + "bytes is no number from 0", lambda blocks, _: blocks[1].update(bytes=-1))
        changed("c.json", at + "does not begin where", lambda blocks, _: blocks[1].update(address=5))
        changed("d.json", ": regions[0]: blocks[0]: the state 'x' is unknown",
                lambda blocks, _: blocks[0].update(state="x"))
        changed("e.json", at + "memory at addresses that no memory has",
                lambda blocks, _: blocks[1].update(bytes=1 << 60))
        changed("f.json", ": pages is no list", lambda _, copy: copy.update(pages=3))
        changed("g.json", ": thread_caches[0]: no object", lambda _, copy: copy.update(thread_caches=[3]))
        changed("h.json", ": regions is missing", lambda _, copy: copy.pop("regions"))
        changed("i.json", at + "requested is larger than bytes",
                lambda blocks, _: blocks[1].update(state="live", stream=0, requested=blocks[1]["bytes"] + 1))
        self.refuses("number.json", text.replace('"version":1', '"version":1e999'), ": a number is too large")
        self.assertIn("pool", whole)

    def test_bad_pickle_says_what_and_where(self):
        whole = torch_memory.snapshot([torch_memory.Memory(seed=5).run(40)])
        text = pickle.dumps(whole, 4)
        self.refuses("cut.pickle", text[:len(text) // 2], ": the pickle is cut short, at byte")
        self.refuses("run.pickle", pickle.dumps(print, 2), ": the pickle names something to import or to run")
        self.refuses("foreign.pickle", pickle.dumps({"a": 1}), ": segments is missing")
        self.refuses("list.pickle", pickle.dumps({"segments": 3}), ": a value of the pickle has another type")

        def changed(name, message, change):
            copy = pickle.loads(text)
            change(copy)
            self.refuses(name, pickle.dumps(copy), message)
        changed("a.pickle", ": segments[0]: blocks[0]: size is missing or no number",
                lambda copy: copy["segments"][0]["blocks"][0].pop("size"))
        changed("b.pickle", ": segments[0]: address is missing or no number",
                lambda copy: copy["segments"][0].update(address="x"))
        changed("c.pickle", ": device_traces[0]: entries[1]: addr is missing or no number",
                lambda copy: copy["device_traces"][0][1].update(addr=-1))
        changed("d.pickle", ": segments[0]: there is no device 5000",
                lambda copy: copy["segments"][0].update(device=5000))
        changed("e.pickle", ": segments[0]: blocks[0]: the state 'gone' is unknown",
                lambda copy: copy["segments"][0]["blocks"][0].update(state="gone"))
        changed("f.pickle", ": device_traces[0]: entries[0]: memory at addresses that no memory has",
                lambda copy: copy["device_traces"][0][0].update(size=1 << 60))
        live = [each["state"] for each in whole["segments"][0]["blocks"]].index("active_allocated")
        changed("g.pickle", f": segments[0]: blocks[{live}]: requested_size is larger than size",
                lambda copy: copy["segments"][0]["blocks"][live].update(requested_size=1 << 50))

    def test_deep_stacks_that_blocks_share(self):
        memory = torch_memory.Memory(seed=2).run(400)
        deep = [{"name": f"call{i}", "filename": "/lib/torch/nn/modules/module.py", "line": i} for i in range(300)]
        stacks = {name: deep + torch_memory.stack(name) for name in torch_memory.LAYERS}
        whole = torch_memory.snapshot([memory])
        for each in [*whole["device_traces"][0], *(block for one in whole["segments"] for block in one["blocks"])]:
            each["frames"] = stacks[each["frames"][1]["name"]] if each["frames"] else []
        (figures,), _ = self.figures(self.write_pickle("deep.pickle", whole))
        self.check_moment(figures["end"], *memory.states[-1])
        self.assertEqual({each["name"] for each in figures["holders_at_end"]["labels"]},
                         {torch_memory.label(each["layer"]) for each in memory.live.values()})

    def test_long_names_that_entries_share(self):
        text = "x" * (4 << 20)
        entry = {"action": "alloc", "addr": 1 << 20, "size": 1, "stream": 0, "time_us": 0,
                 "frames": [{"name": text, "filename": "label", "line": 0}]}
        block = {"size": 512, "state": "active_allocated", "user_metadata": text}
        whole = {"segments": [{"address": 1 << 20, "stream": 0, "blocks": [block] * 20_000}],
                 "device_traces": [[entry] * 20_000]}
        name = self.write_pickle("long.pickle", whole)
        limit = 1 << 30
        done = subprocess.run([PROGRAM, name, "--json", "figures"], capture_output=True, text=True, cwd=self.folder,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assertEqual(done.returncode, 0, done.stderr)
        (figures,) = json.loads((self.folder / "figures").read_text())
        self.assertEqual([each["name"] for each in figures["holders_at_peak"]["labels"]], ["x" * 500])

    def test_devices_share_the_bounds_of_a_page(self):
        entries = [{"action": action, "addr": 1 << 20, "size": 512, "stream": 0, "time_us": at, "frames": []}
                   for at, action in enumerate(["alloc", "free_requested"] * 2_000)]
        whole = {"segments": [], "device_traces": [entries] * 16}
        done = self.run_tool(self.write_pickle("many.pickle", whole), "--page", "many.html")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.folder / "many.html").read_text()
        data = json.loads(re.search(r'id="figures-data">(.*?)</script>', page, re.S)[1])
        self.assertEqual(len(data["recordings"]), 16)
        for each in data["recordings"]:
            self.assertEqual(each["rows"], len(entries))
            self.assertEqual(each["rows_of_column"], 2)  # 32,768 columns in all
            self.assertLessEqual(len(each["frames"]), 6 + 4)  # 96 in all, and those of the extremes

    def test_shared_blocks_without_end_are_refused(self):
        whole = torch_memory.snapshot([torch_memory.Memory(seed=5).run(40)], history=False)
        whole["segments"][0]["blocks"] = [dict(whole["segments"][0]["blocks"][0], size=256)] * 3000
        whole["segments"] = [whole["segments"][0]] * 3000
        self.refuses("shared.pickle", pickle.dumps(whole), ": segments")
        done = self.run_tool("shared.pickle")
        self.assertIn("blocks and entries without end", done.stderr)

    def test_cut_at_each_place_is_refused(self):
        text = pickle.dumps(torch_memory.snapshot([torch_memory.Memory(seed=5).run(6)]), 2)
        for end in range(2, len(text), max(1, len(text) // 60)):
            (self.folder / "part.pickle").write_bytes(text[:end])
            self.assertEqual(self.run_tool("part.pickle", "--json", "figures").returncode, 2, end)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
