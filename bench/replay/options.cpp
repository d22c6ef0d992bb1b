// Parses the command line of the replay tool.
// SPDX-License-Identifier: Apache-2.0
module;

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include "command_line.hpp"

module replay:options.impl;

import gpumem;
import :options;

namespace replay {

namespace detail {

inline constexpr std::uint64_t least_limit_in_bytes = 1024;

std::string known_names(std::span<resource_name const> known) {
  std::string names;
  for (resource_name const& resource : known) names += std::string(resource.name) + ", ";
  return names + "all";
}

bool limit_fits(options const& chosen, resource_name const& resource) { return !chosen.limit || resource.takes_limit; }

// CLI11 takes all words after an option with several names, including the traces. Words with a dot or a slash are
// traces: no resource name contains either.
void return_swallowed_traces(options& chosen) {
  auto const is_file = [](std::string const& word) { return word.find_first_of("./") != std::string::npos; };
  std::copy_if(chosen.resources.begin(), chosen.resources.end(), std::back_inserter(chosen.traces), is_file);
  std::erase_if(chosen.resources, is_file);
}

// `all` means all resources that can do what was asked; a resource that is named must be able to do it.
void resolve_resources(options& chosen, std::span<resource_name const> known) {
  std::vector<std::string> resolved;
  auto const add = [&](std::string_view name) {
    if (std::find(resolved.begin(), resolved.end(), name) == resolved.end()) resolved.emplace_back(name);
  };
  for (std::string const& asked : chosen.resources) {
    if (asked == "all") {
      chosen.all_resources = true;
      for (resource_name const& resource : known) {
        if (resource.in_all && limit_fits(chosen, resource)) add(resource.name);
      }
      continue;
    }
    auto const found =
        std::find_if(known.begin(), known.end(), [&](resource_name const& resource) { return resource.name == asked; });
    if (found == known.end()) {
      throw usage_error("unknown resource '" + asked + "' (known: " + known_names(known) + ")");
    }
    if (!limit_fits(chosen, *found)) throw usage_error("resource '" + asked + "' takes no --limit");
    add(asked);
  }
  if (resolved.empty()) throw usage_error("no resource takes --limit");
  chosen.resources = std::move(resolved);
}

// Kernels at the recorded pace would be compared with kernels back to back. Several threads that spin until a time
// would compete for processors if there are fewer processors than threads.
void check_pace(options const& chosen) {
  if (chosen.pace == pace_choice::full) return;
  if (chosen.work) throw usage_error("--pace recorded and --work exclude each other");
  if (chosen.threads != std::vector{1U}) throw usage_error("--pace recorded is for one thread, not for --threads");
}

inline constexpr char const* column_help = R"(Columns of memory:
  peak live      the most requested bytes that were live at once, in all threads
  peak reserved  the most bytes that the resource had from the driver
  utilization    peak live / peak reserved
  fragmentation  1 - largest free range / free bytes, when the reserved bytes
                 reach their peak, in a cold pass of its own
  initial size   80 % of peak live (of one thread, x threads) in pages of
                 2 MiB, for initial_size of a pool

A log has no events, so a free on another stream than the allocation has no
order in it. That is a property of the trace and no error.

Exit status: 0 if all was measured, 1 if nothing was, 2 for a wrong command
line, 3 if a resource could not replay a trace: stderr names both, and the
table and the JSON have all other rows.)";

struct raw_options {
  std::string limit;
  double work = 0;
  unsigned every = 0;
};

CLI::Option* declare_peers(CLI::App& app, std::vector<std::string>& peers) {
  return app.add_option("--peer", peers, "shared library with other allocators, see bench/peers")
      ->type_name("FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::ExistingFile.description(""));
}

void declare(CLI::App& app, options& chosen, raw_options& raw, std::span<resource_name const> known) {
  std::map<std::string, device_choice> const devices{
      {"cuda", device_choice::cuda}, {"simulated", device_choice::simulated}, {"auto", device_choice::automatic}};
  app.add_option("TRACE", chosen.traces, "traces in RMM's log format or gpumem's binary form, plain or gzip");
  app.add_option("--resource", chosen.resources, "resources to replay over: " + known_names(known))
      ->type_name("NAME")
      ->delimiter(',');
  declare_peers(app, chosen.peers);
  app.add_option("--device", chosen.device, "device to run on; auto uses a CUDA device if there is one")
      ->type_name("cuda|simulated|auto")
      ->transform(CLI::CheckedTransformer(devices).description(""));
  app.add_option("--threads", chosen.threads,
                 "threads; each replays the whole trace on streams of its own (1); 1,2,4 gives a row for each number")
      ->type_name("N,...")
      ->delimiter(',')
      ->allow_extra_args(false) // otherwise it takes the traces that follow
      ->check(CLI::Range(1, 1024).description(""));
  app.add_option("--repeat", chosen.repeat, "warm passes after the cold one (5)")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000).description(""));
  app.add_option("--limit", raw.limit,
                 "limit on what a resource may reserve: bytes (1.5GiB), or a factor of the trace's peak live (1.05)")
      ->type_name("BYTES|FACTOR");
  app.add_flag("--foreign", chosen.foreign, "use raw stream handles in place of gpumem's own streams");
  auto* const work = app.add_option("--work", raw.work,
                                    "run kernels of this duration between the operations, and compare "
                                    "with the same kernels on preallocated memory")
                         ->type_name("MICROSECONDS")
                         ->check(CLI::Range(0.001, 1e6).description(""));
  app.add_option("--every", raw.every, "run a kernel after every N-th allocation (1)")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000'000).description(""))
      ->needs(work);
  std::map<std::string, pace_choice> const paces{{"full", pace_choice::full}, {"recorded", pace_choice::recorded}};
  app.add_option("--pace", chosen.pace,
                 "when calls are made: at once (full), or at the recorded times (recorded), which shows the share of "
                 "time that they take (full)")
      ->type_name("full|recorded")
      ->transform(CLI::CheckedTransformer(paces).description(""));
  app.add_option("--json", chosen.json, "also write the results to this file")->type_name("FILE");
  app.add_option("--csv", chosen.csv, "only write the one trace to this file, in RMM's log format")->type_name("FILE");
}

} // namespace detail

std::uint64_t limit_choice::of(std::uint64_t peak_live_bytes) const {
  if (factor == 0) return bytes;
  return static_cast<std::uint64_t>(std::ceil(factor * static_cast<double>(peak_live_bytes)));
}

limit_choice parse_limit(std::string const& text) {
  bool const plain = !text.empty() && text.find_first_not_of("0123456789.") == std::string::npos;
  if (plain) {
    CLI::Validator const positive = CLI::PositiveNumber;
    double factor = 0;
    if (positive(text).empty() && CLI::detail::lexical_cast(text, factor) &&
        factor < static_cast<double>(detail::least_limit_in_bytes)) {
      return {.factor = factor};
    }
  }
  std::uint64_t bytes = 0;
  try {
    bytes = gpumem::parse_bytes(text);
  } catch (std::invalid_argument const&) {
    // reported below, in the message that names both forms
  }
  if (bytes == 0) {
    throw usage_error("--limit: '" + text + "' is neither a size (1.5GiB) nor a factor of peak live (1.05)");
  }
  return {.bytes = bytes};
}

std::vector<std::string> parse_peers(std::vector<std::string> arguments) {
  std::vector<std::string> peers;
  CLI::App app;
  detail::declare_peers(app, peers);
  app.set_help_flag();
  app.allow_extras();
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(std::move(arguments));
  } catch (CLI::ParseError const& error) { throw usage_error(error.what()); }
  return peers;
}

parsed_options parse_options(std::vector<std::string> arguments, std::span<resource_name const> known) {
  parsed_options parsed;
  options& chosen = parsed.chosen;
  detail::raw_options raw;
  CLI::App app{"Replays recorded allocation traces over memory resources and prints what each costs.", "gpumem-replay"};
  detail::declare(app, chosen, raw, known);
  app.footer(detail::column_help);
  parsed.help = parse_command_line<usage_error>(app, std::move(arguments));
  if (parsed.help) return parsed;
  detail::return_swallowed_traces(chosen);
  if (chosen.traces.empty()) throw usage_error("no TRACE was given");
  if (!chosen.csv.empty() && chosen.traces.size() > 1) throw usage_error("--csv takes one TRACE");
  if (!raw.limit.empty()) chosen.limit = parse_limit(raw.limit);
  if (raw.work > 0) chosen.work = work_choice{raw.work, raw.every == 0 ? 1 : raw.every};
  detail::check_pace(chosen);
  if (chosen.resources.empty()) chosen.resources = {"all"};
  detail::resolve_resources(chosen, known);
  return parsed;
}

} // namespace replay
