// Parses the command line of the report.
// SPDX-License-Identifier: Apache-2.0
module;
#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>
#include "../replay/command_line.hpp"
module report:options.impl;
import gpumem;
import replay;
import :options;

namespace report {

namespace detail {

inline constexpr char const* meaning = R"(Without --page, --svg and --json it writes NAME.html, for the first FILE
NAME.log. The page needs no network.

Bytes:
  live      requested by the program, and not yet freed
  reserved  what the pool has from the driver or its upstream
  free      reserved bytes outside live blocks; blocks in thread caches are free
            here
  fragmentation  1 - largest free range / free bytes

A binary log of a pool, version 2, has rows of the pool's memory. Any other log
is replayed over a pool that moves pages always, on the simulated device.

A snapshot shows one moment. The pickle of PyTorch's recorded history has a
trace too, which gives the curves over time. In a pickle, a block's holder is
its metadata, or the innermost frame of its stack outside PyTorch.

Exit status: 0 if all was written, 2 for a wrong command line, a file that
cannot be read, or an output that cannot be written.)";

} // namespace detail

parsed_options parse_options(std::vector<std::string> arguments) {
  parsed_options parsed;
  options& chosen = parsed.chosen;
  CLI::App app{"Reports what a program did with memory: prints figures, and writes a page with pictures.",
               "gpumem-report"};
  app.add_option(
      "FILE", chosen.files,
      "logs in RMM's format or gpumem's binary form, snapshots of gpumem (JSON) or of PyTorch (pickle), plain "
      "or gzip; several are compared");
  auto const add = [&](char const* name, std::string& file, char const* text) {
    app.add_option(name, file, text)->type_name("FILE")->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  };
  add("-o,--page", chosen.page, "write the page to this file");
  add("--svg", chosen.svg, "write a picture of live and reserved memory to this file");
  add("--json", chosen.json, "write the figures to this file");
  app.footer(detail::meaning);
  parsed.help = replay::parse_command_line<replay::usage_error>(app, std::move(arguments));
  if (parsed.help) return parsed;
  if (chosen.files.empty()) throw replay::usage_error("no FILE was given");
  constexpr std::size_t most_files = 8;
  if (chosen.files.size() > most_files) throw replay::usage_error("more than 8 FILEs");
  if (chosen.page.empty() && chosen.svg.empty() && chosen.json.empty())
    chosen.page = replay::trace_name(chosen.files.front()) + ".html";
  return parsed;
}

} // namespace report
