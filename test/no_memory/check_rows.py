#!/usr/bin/env python3
# Holds the names that api_surface.cpp and the C headers list against the rows of this folder: each needs a row, or a
# line of NO_ROW that says why it has none.
# SPDX-License-Identifier: Apache-2.0
import re
import sys
from pathlib import Path

NO_ROW = {
    "a plain value: a struct, an enum or a constant": """
        acquire_error default_stream driver_pool_usage block_event block_info export_handle exported_page
        expected unexpected span stream_ref latency memory_location memory_range misuse_handler outcome failure
        reuse_policy version version_major version_minor version_patch
        literals::operator""_GiB literals::operator""_KiB literals::operator""_MiB literals::operator""_TiB
        extend::trace_action extend::trace_header extend::trace_error extend::queueing extend::holder_event
        extend::memory_traits extend::request_part extend::request_parts extend::waiting_statistics extend::epoch
        extend::page_extent extend::page_info extend::stream_timeline extend::acquired_t extend::await_result_t
        extend::await_value_t extend::stop_callback_t extend::never_stop_token""",
    "a concept": """
        extend::awaitable extend::awaiter extend::capturing_state extend::device_bound_state extend::holding_state extend::page_source
        extend::reporting_state extend::stoppable_token extend::trimmable_state
        extend::waiting_state""",
    "a part of a request that waits, which the rows of acquire and of scope use": """
        extend::ended_waiters extend::grant_hook extend::holder extend::waiter extend::waiter_list extend::woken_waiters
        extend::work_item extend::work_queue""",
    "reports or throws what the caller hands over; the handler is the program's": """
        set_misuse_handler extend::report_misuse extend::throw_failure""",
}


def rows(folder):
    names = set()
    for path in folder.glob("*.cpp"):
        text = re.sub(r'"\s*\n\s*"', "", path.read_text())
        for found in re.findall(r'\{"([\w: ]+)",', text):
            names |= set(found.split())
    return names


def public(root):
    text = (root / "test/static/api_surface.cpp").read_text()
    names = {name for name in re.findall(r"gpumem::([\w:]+(?:\"\"\w+)?)", text)}
    # CCCL's own, and the driver's names
    return {name for name in names if not re.match(r"detail$|mr::|driver_api::(CU|cuda|driver_table)", name)}


def in_c(root):
    names = set()
    for header in ("gpumem.h", "gpumem_torch.h"):
        text = re.sub(r"///[^\n]*", "", (root / "modules/bridge/gpumem" / header).read_text())
        names |= set(re.findall(r"\b(gpumem_\w+)\(", text))
    return names


def main():
    root = Path(sys.argv[1])
    have = rows(root / "test/no_memory")
    excused = {name for names in NO_ROW.values() for name in names.split()}
    wanted = public(root) | in_c(root)
    wrong = [f"{name}: no row in test/no_memory" for name in sorted(wanted - have - excused)]
    wrong += [f"{name}: in no header, but NO_ROW names it" for name in sorted(excused - wanted)]
    wrong += [f"{name}: has a row, so NO_ROW need not name it" for name in sorted(excused & have)]
    print("\n".join(wrong) or "each public function has a row")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
