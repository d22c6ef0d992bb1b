// Parses the command line of the adviser.
// SPDX-License-Identifier: Apache-2.0
module;
#include <CLI/CLI.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>
#include "../replay/command_line.hpp"
module advise:options.impl;
import gpumem;
import replay;
import :options;

namespace advise {

namespace detail {

inline constexpr char const* rule = R"(The answer, over one pass of the trace on the simulated device:
  1. Take the resources that complete the trace (within --memory) and make at
     most twice the fewest memory calls, or at most one for two calls of the
     program, or at most 100.
  2. Keep those that reserve at most 1.02 times the least.
  3. Choose the simplest: cuMemAlloc, the driver's pool, blocks of one size, the
     pool, the pool with another effort, all others, the pool with a limit at
     which requests wait.
Memory calls are the driver calls that get, map, or return memory. They take
microseconds, and the others much less.

Exit status: 0 with an answer, 1 if no resource completes the trace, 2 for a
wrong command line or a trace that cannot be read.)";

} // namespace detail

parsed_options parse_options(std::vector<std::string> arguments) {
  parsed_options parsed;
  options& chosen = parsed.chosen;
  std::string memory;
  CLI::App app{"Replays a recorded allocation trace over memory resources and says which one to take.",
               "gpumem-advise"};
  app.add_option("TRACE", chosen.trace, "a trace in RMM's log format or gpumem's binary form, plain or gzip");
  app.add_option("--memory", memory, "the most that may be reserved (40GiB); requests may wait for it")
      ->type_name("BYTES");
  app.add_flag("--bisect", chosen.bisect,
               "find the smallest limit under which the pool completes the trace, and the row that fails below it");
  app.add_option("--json", chosen.json, "also write the results to this file")->type_name("FILE");
  app.footer(detail::rule);
  parsed.help = replay::parse_command_line<replay::usage_error>(app, std::move(arguments));
  if (parsed.help) return parsed;
  if (chosen.trace.empty()) throw replay::usage_error("no TRACE was given");
  if (memory.empty()) return parsed;
  try {
    chosen.memory = gpumem::parse_bytes(memory);
  } catch (std::invalid_argument const&) {
    // reported below
  }
  if (chosen.memory == 0) throw replay::usage_error("--memory: '" + memory + "' is no size, such as 40GiB");
  return parsed;
}

} // namespace advise
