# gdb's printers for pools, allocations, streams and tasks. The object file of debugging.cpp has this text in its
# section .debug_gdb_scripts, so that gdb loads it with the program. `source` in gdb loads it too.
# SPDX-License-Identifier: Apache-2.0
import re

import gdb
import gdb.printing

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
STREAMS = {0: "handle 0", 1: "the legacy stream", 2: "the per-thread stream"}


def size(count):
    """Text of a count of bytes, in the largest unit that gives a whole number."""
    unit = 0
    while count and count % 1024 == 0 and unit + 1 < len(UNITS):
        count, unit = count // 1024, unit + 1
    return f"{count} {UNITS[unit]}"


def load(atomic):
    """The value of a std::atomic, which libstdc++ keeps alone in it."""
    kind = atomic.type.strip_typedefs().template_argument(0)
    return atomic.address.cast(kind.pointer()).dereference()


def text(string):
    return string["_M_dataplus"]["_M_p"].string(length=int(string["_M_string_length"]))


def pointee(owner, name):
    """The object of a std::unique_ptr, which is one pointer, as a type that the library describes."""
    return owner.address.cast(described(name).pointer().pointer()).dereference().dereference()


def described(name):
    """The type of gpumem::detail, by its name with or without the namespace (see PRINTERS)."""
    try:
        return gdb.lookup_type(f"gpumem::detail::{name}")
    except gdb.error:
        return gdb.lookup_type(name)


def part(pointer, owner, name, kind):
    """A member of a class with virtual functions, by its offset: gdb would look for the class by its full name."""
    offset = next(field.bitpos // 8 for field in described(owner).fields() if field.name == name)
    return (pointer.cast(gdb.lookup_type("char").pointer()) + offset).cast(described(kind).pointer()).dereference()


def ordinal(device):
    """The ordinal of a device, whose class is not described: a pointer to a state that begins with it."""
    number = gdb.lookup_type("int").pointer().pointer()
    return int(device.address.cast(number).dereference().dereference())


def handle_text(handle):
    return STREAMS.get(int(handle), f"{int(handle):#x}")


def function_at(address):
    """The coroutine whose resume or destroy function starts at this address; without a symbol, the address."""
    symbol = gdb.execute(f"info symbol {address:#x}", to_string=True).split(" in section ")[0]
    if symbol.startswith("No symbol"):
        return f"{address:#x}"
    return re.sub(r"( \[clone .*\])?( \+ \d+)?$", "", symbol).strip()


class Printer:
    """Base: a line of text, and named children. Says so where the library's debug information is not in the program."""

    def __init__(self, value):
        self.value = value
        try:
            self.line, self.parts = self.read()
        except (gdb.error, RuntimeError) as error:
            self.line, self.parts = f"{value.type.unqualified()} (cannot be read: {error})", []

    def to_string(self):
        return self.line

    def children(self):
        return iter(self.parts)


class Pool(Printer):
    def read(self):
        kind = re.match(r"(?:gpumem::)?(\w+)", self.value.type.strip_typedefs().name)[1]
        state = self.value["state_"]["state_"]
        if not state:
            return f"{kind}, moved from", []
        parts = part(state["engine_"], "pool_engine", "parts_", "pool_parts")
        where = parts["where"]["_M_payload"]
        device = f" on device {ordinal(where)}" if where["_M_engaged"] else ""
        chunks = parts["chunks"]
        shards = parts["shards"]
        live = sum(int(pointee(shards["shards_"]["_M_elems"][i], "pool_shard")["live"]["bytes"])
                   for i in range(int(load(shards["count_"]))))
        reserved, limit = int(chunks["reserved_"]), int(load(chunks["limit_"]))
        bound = f" of {size(limit)}" if limit else ""
        line = f'{kind} "{text(parts["options"]["name"])}"{device}, {size(reserved)}{bound} reserved'
        handles = state["special_handles_" if state["special_"] else "plain_handles_"]
        return line, [("live_or_cached", live), ("reserved", reserved), ("peak_reserved", int(chunks["peak_"])),
                      ("limit", limit), ("shards", int(load(shards["count_"]))), ("handles", int(load(handles))),
                      ("state", state)]


class Allocation(Printer):
    def read(self):
        if not self.value["data_"]:
            return "empty allocation", []
        count = int(self.value["bytes_"])
        line = f"allocation of {size(count)} at {int(self.value['data_']):#x}"
        return line, [("data", self.value["data_"]), ("bytes", count),
                      ("alignment", 1 << int(self.value["alignment_log2_"])),
                      ("stream", handle_text(self.value["stream_"])), ("timeline", self.value["timeline_"])]


class Stream(Printer):
    def read(self):
        timeline = self.value["timeline_"]
        if not timeline:
            return "stream, moved from", []
        kind = str(load(timeline["kind_"])).rsplit("::", 1)[-1]
        line = f"stream {handle_text(load(timeline['handle_']))} on device {timeline['device_']}"
        return line, [("id", int(load(timeline["id_"]))), ("kind", kind),
                      ("capturing", bool(load(timeline["capturing_"]))), ("epoch", int(load(timeline["epochs_"]["now_"]))),
                      ("completed", int(load(timeline["epochs_"]["completed_"]))), ("timeline", timeline)]


class StreamRef(Printer):
    def read(self):
        return f"stream {handle_text(self.value['__stream'])}", []


class Task(Printer):
    """A task of clang's frame: the resume function, null once the body has ended, the destroy function, the promise."""

    def read(self):
        frame = self.value["frame_"]["_M_fr_ptr"]
        if not frame:
            return "task, moved from", []
        resume, destroy = (int(frame.cast(gdb.lookup_type("unsigned long").pointer())[i]) for i in range(2))
        name = function_at(resume or destroy)
        return f"task of {name}, {'not ended' if resume else 'ended'}", [("frame", frame)] + self.promise(frame)

    def promise(self, frame):
        try:
            kind = described(f"task_promise<{self.value.type.strip_typedefs().template_argument(0)}>")
        except (gdb.error, RuntimeError):
            return []
        offset = max(16, kind.alignof)
        promise = (frame.cast(gdb.lookup_type("char").pointer()) + offset).cast(kind.pointer())
        found = [("error", promise["error_"])] if promise["error_"]["_M_exception_object"] else []
        if any(field.name == "value_" for base in kind.fields() if base.is_base_class for field in base.type.fields()):
            found.append(("result", promise["value_"]))
        return found


# Each printer with a pattern for the name of its type, and with a member of that type. The member tells the type from
# another program's type of the same name: clang 19 leaves the namespace out of the names of exported classes. No report
# is known; without `export` the namespace is there.
PRINTERS = [(re.compile(pattern), member, printer) for pattern, member, printer in (
    (r"(gpumem::)?(pool|arena|fixed_size)_resource<.*>", "state_", Pool),
    (r"(gpumem::)?allocation", "alignment_log2_", Allocation),
    (r"(gpumem::)?stream", "timeline_", Stream),
    (r"(cuda::(\w+::)*)?stream_ref", "__stream", StreamRef),
    (r"(gpumem::)?task<.*>", "frame_", Task))]


def gpumem_printers(value):
    kind = value.type.unqualified().strip_typedefs()
    if kind.code not in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION):
        return None
    for pattern, member, printer in PRINTERS:
        if pattern.fullmatch(kind.name or "") and has_member(kind, member):
            return printer(value)
    return None


def has_member(kind, name):
    return any(field.name == name or field.is_base_class and has_member(field.type.strip_typedefs(), name)
               for field in kind.fields())


gdb.printing.register_pretty_printer(gdb.current_objfile(), gpumem_printers, replace=True)
