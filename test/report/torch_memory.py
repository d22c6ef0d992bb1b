# Snapshots of a simulated caching allocator, with the members that PyTorch writes: segments of two streams, best fit,
# blocks that wait for an event, and a trace of all entries or of the last ones.
# SPDX-License-Identifier: Apache-2.0
import random

MIB, BASE = 1 << 20, 0x7F0000000000
LAYERS = ("embed", "attention", "mlp", "loss", "optimizer")
STREAMS = (0, 0x55AA1200)


def stack(layer):
    """The frames of a layer, the innermost first."""
    return [{"name": "forward", "filename": "/lib/python3/site-packages/torch/nn/modules/linear.py", "line": 116},
            {"name": layer, "filename": "/home/user/train.py", "line": 20 + len(layer)},
            {"name": "main", "filename": "/home/user/train.py", "line": 90}]


def label(layer):
    return f"train.py:{20 + len(layer)} {layer}"


STACKS = {layer: stack(layer) for layer in LAYERS}


class Memory:
    def __init__(self, seed=1, device=0):
        self.choose, self.device = random.Random(seed), device
        self.segments, self.free, self.live, self.pending = {}, {}, {}, {}
        self.trace, self.time, self.next = [], 1_790_000_000_000_000, BASE + (device << 40)
        self.states = []  # after each entry: live and reserved bytes

    def add(self, action, address, size, stream, frames=()):
        self.time += self.choose.randrange(1, 400)
        key = "device_free" if action == "oom" else "addr"
        self.trace.append({"action": action, key: address, "size": size, "stream": stream, "time_us": self.time,
                           "frames": list(frames)})
        self.states.append((sum(each["requested"] for each in self.live.values()), sum(
            size for size, _ in self.segments.values())))

    def release(self, address):
        """Completes a free: the block joins its free neighbours."""
        block = self.pending.pop(address)
        segment = block["segment"]
        ranges = sorted(self.free[segment] + [(address, block["size"])])
        joined = [ranges[0]]
        for begin, size in ranges[1:]:
            before, length = joined[-1]
            if before + length == begin:
                joined[-1] = (before, length + size)
            else:
                joined.append((begin, size))
        self.free[segment] = joined
        self.add("free_completed", address, block["requested"], block["stream"])
        if joined == [(segment, self.segments[segment][0])] and self.choose.random() < 0.3:
            size, stream = self.segments.pop(segment)
            del self.free[segment]
            self.add("segment_free", segment, size, stream)

    def allocate(self, requested, stream, layer):
        size = (requested + 511) // 512 * 512
        fits = [(length, begin, segment) for segment, ranges in self.free.items()
                if self.segments[segment][1] == stream for begin, length in ranges if length >= size]
        if not fits:
            length = max(20 * MIB, (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB)
            segment, self.next = self.next, self.next + length + self.choose.choice((0, 0, 64 * MIB))
            self.segments[segment], self.free[segment] = (length, stream), [(segment, length)]
            self.add("segment_alloc", segment, length, stream, STACKS[layer])
            fits = [(length, segment, segment)]
        length, address, segment = min(fits)
        self.free[segment].remove((address, length))
        if length > size:
            self.free[segment].append((address + size, length - size))
        self.live[address] = {"size": size, "requested": requested, "stream": stream, "segment": segment,
                              "layer": layer}
        self.add("alloc", address, requested, stream, STACKS[layer])

    def run(self, steps):
        for _ in range(steps):
            if self.live and self.choose.random() < 0.48:
                address = self.choose.choice(sorted(self.live))
                block = self.pending[address] = self.live.pop(address)
                self.add("free_requested", address, block["requested"], block["stream"])
                if self.choose.random() < 0.9:
                    self.release(address)
            elif self.pending and self.choose.random() < 0.2:
                self.release(min(self.pending))
            elif self.choose.random() < 0.01:
                self.add("oom", 0, 1 << 40, 0, STACKS["loss"])
            else:
                size = self.choose.choice([100, 3000, MIB, 5 * MIB, 9 * MIB]) + self.choose.randrange(1000)
                self.allocate(size, self.choose.choice(STREAMS), self.choose.choice(LAYERS))
        self.add("snapshot", 0, 0, 0)
        return self

    def blocks(self, segment):
        def block(address, size, state, requested=0, frames=()):
            return {"address": address, "size": size, "requested_size": requested, "state": state,
                    "frames": list(frames)}
        for address, each in self.live.items():
            if each["segment"] == segment:
                yield block(address, each["size"], "active_allocated", each["requested"], STACKS[each["layer"]])
        for address, each in self.pending.items():
            if each["segment"] == segment:
                yield block(address, each["size"], "active_pending_free", each["requested"])
        for address, size in self.free[segment]:
            yield block(address, size, "inactive")

    def snapshot_segments(self):
        return [{"device": self.device, "address": segment, "total_size": size, "allocated_size": 0, "active_size": 0,
                 "requested_size": 0, "stream": stream, "segment_type": "large", "segment_pool_id": (0, 0),
                 "is_expandable": False, "frames": [],
                 "blocks": sorted(self.blocks(segment), key=lambda each: each["address"])}
                for segment, (size, stream) in sorted(self.segments.items())]


def snapshot(memories, last=None, history=True):
    """What torch.cuda.memory._snapshot() returns: the last entries of the traces, all of them, or none."""
    traces = [each.trace[-last:] if last else each.trace for each in memories] if history else [[] for _ in memories]
    return {"segments": [segment for each in memories for segment in each.snapshot_segments()],
            "device_traces": traces, "allocator_settings": {"max_split_size": -1}, "external_annotations": []}
