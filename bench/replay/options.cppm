// The options of the replay tool.
// SPDX-License-Identifier: Apache-2.0
module;

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

export module replay:options;

namespace replay {

export enum class device_choice { cuda, simulated, automatic };

/// When the calls of a pass are made.
export enum class pace_choice {
  full,     ///< each as soon as the previous one has returned
  recorded, ///< each at its time in the trace, or as soon as possible after it
};

/// The limit on what a pool may reserve: bytes, or a factor of each trace's peak live bytes.
export struct limit_choice {
  std::uint64_t bytes = 0;
  double factor = 0; ///< used if not 0

  std::uint64_t of(std::uint64_t peak_live_bytes) const;
  friend bool operator==(limit_choice const&, limit_choice const&) = default;
};

/// Kernels between the operations: one kernel of `microseconds` after every `every`-th allocation.
export struct work_choice {
  double microseconds = 0;
  unsigned every = 1;

  friend bool operator==(work_choice const&, work_choice const&) = default;
};

/// A resource that can be selected by name.
export struct resource_name {
  std::string_view name;
  bool takes_limit = false;
  bool by_time = false; ///< its counts and bytes depend on the time between the calls
  bool in_all = true;   ///< `all` includes it
};

export struct options {
  std::vector<std::string> traces;
  std::vector<std::string> resources; ///< existing names, each once
  bool all_resources = false;         ///< they were not named
  std::vector<std::string> peers;     ///< paths of libraries with other allocators
  device_choice device = device_choice::automatic;
  std::vector<unsigned> threads{1}; ///< each trace is replayed by each number of threads
  unsigned repeat = 5;
  std::optional<limit_choice> limit;
  bool foreign = false;
  std::optional<work_choice> work;
  pace_choice pace = pace_choice::full;
  std::string json; ///< output file; empty: none
  std::string csv;  ///< file for the trace in RMM's format, in place of a replay; empty: replay
};

/// An error in the command line.
export class usage_error : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

/// Parses "1.5GiB" or a number: a whole number from 1024 up means bytes, a smaller one a factor, as in "1.05". Throws
/// usage_error.
export limit_choice parse_limit(std::string const& text);

/// Returns the libraries that --peer names. They are parsed before the rest, since their allocators are valid resource
/// names. Throws usage_error.
export std::vector<std::string> parse_peers(std::vector<std::string> arguments);

/// The options, or the help text if it was asked for. Throws usage_error.
export struct parsed_options {
  options chosen;
  std::optional<std::string> help;
};
export parsed_options parse_options(std::vector<std::string> arguments, std::span<resource_name const> known);

} // namespace replay
