# Writes binary logs of version 2 as a pool would: growth, moves of pages, several streams, and requests that wait.
# SPDX-License-Identifier: Apache-2.0
import random
import struct
from pathlib import Path

ALLOCATE, FREE, FAILURE, MAP, UNMAP, MOVE, WAIT, REFUSAL, CLOCK = 0, 1, 2, 3, 4, 5, 6, 7, 255
PAGE, BASE = 2 << 20, 0x7F0000000000


class Log:
    def __init__(self):
        self.rows, self.time = [], 0
        self.add(CLOCK)

    def add(self, action, pointer=0, size=0, stream=0, thread=1, served=0):
        self.rows.append(struct.pack("<QQQQIBBH", self.time, pointer, size, stream, thread, action, served, 0))

    def write(self, path):
        self.rows.append(struct.pack("<QQQQIBBH", self.time, self.time, 0, 0, 1, CLOCK, 0, 0))
        header = struct.pack("<8sIIQQQ", b"\x89gpumem\n", 2, 0, 36_000_000_000, 0, 0)
        Path(path).write_bytes(header + b"".join(self.rows))


def busy_log(path, seed=1, steps=3000, pages=64):
    """First fit over `pages` pages at 2 * `pages` addresses; the second half gets pages that move from the first."""
    choose, log = random.Random(seed), Log()
    mapped, live, waiting = set(), {}, []

    def gap(size):
        begin = BASE
        for pointer in sorted(live) + [BASE + 2 * pages * PAGE]:
            end = min(pointer, BASE + 2 * pages * PAGE)
            if end - begin >= size:
                return begin
            begin = max(begin, pointer + (live[pointer][0] + 255) // 256 * 256) if pointer in live else begin
        return None

    def pages_of(pointer, size):
        return range((pointer - BASE) // PAGE, (pointer + size - 1 - BASE) // PAGE + 1)

    def take(size, stream, thread, served):
        pointer = gap(size)
        needed = pages_of(pointer, size) if pointer else []
        absent = [page for page in needed if page not in mapped]
        used = {page for at, (length, _) in live.items() for page in pages_of(at, length)}
        idle = [page for page in mapped if page not in used and page not in needed]
        if pointer is None or len(mapped) + len(absent) - len(idle) > pages:
            return False
        for page in absent:
            if len(mapped) < pages:
                log.add(MAP, BASE + page * PAGE, PAGE)
            else:
                moved = idle.pop()
                mapped.discard(moved)
                log.add(MOVE, BASE + page * PAGE, PAGE, BASE + moved * PAGE)
            mapped.add(page)
        live[pointer] = (size, stream)
        served = served or (6 if absent else choose.choice([1, 1, 2, 2, 3, 4, 5]))
        log.add(ALLOCATE, pointer, size, stream, thread, served)
        return True

    for step in range(steps):
        log.time += choose.randrange(2_000, 90_000)
        stream, thread = choose.choice([0, 0x10, 0x20, 0x30]), choose.choice([7, 8, 9])
        crowded = step % 1000 > 600
        if live and choose.random() < (0.35 if crowded else 0.53):
            pointer = choose.choice(sorted(live))
            size, owner = live.pop(pointer)
            log.add(FREE, pointer, size, owner, thread)
            if waiting and take(*waiting[0], thread, 7):
                waiting.pop(0)
            continue
        size = choose.choice([1, 3, 5, 8]) << choose.randrange(8, 22)
        if waiting or not take(size, stream, thread, 0):
            log.add(FAILURE, 0, size, stream, thread)
            log.add(WAIT, 0, size, stream, thread)
            if len(waiting) > 4 or choose.random() < 0.3:
                log.time += 40_000
                log.add(REFUSAL, 0, size, stream, thread)
            else:
                waiting.append((size, stream))
    log.write(path)
