// What a person asks of the replay tool.
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

/// When the calls of a pass come.
export enum class pace_choice {
  full,     ///< each as soon as the one before it has returned
  recorded, ///< each when the trace says, or as soon as possible after that
};

/// The most that a pool may reserve: bytes, or a factor of each trace's peak live.
export struct limit_choice {
  std::uint64_t bytes = 0;
  double factor = 0; ///< in use if not 0

  std::uint64_t of(std::uint64_t peak_live_bytes) const;
  friend bool operator==(limit_choice const&, limit_choice const&) = default;
};

/// Kernels between the operations: one of `microseconds` after every `every`-th allocation.
export struct work_choice {
  double microseconds = 0;
  unsigned every = 1;

  friend bool operator==(work_choice const&, work_choice const&) = default;
};

/// A resource that can be asked for by name.
export struct resource_name {
  std::string_view name;
  bool takes_limit = false;
};

export struct options {
  std::vector<std::string> traces;
  std::vector<std::string> resources; ///< names that exist, each once
  std::vector<std::string> peers;     ///< libraries with allocators of others
  device_choice device = device_choice::automatic;
  unsigned threads = 1;
  unsigned repeat = 5;
  std::optional<limit_choice> limit;
  bool foreign = false;
  std::optional<work_choice> work;
  pace_choice pace = pace_choice::full;
  std::string json; ///< empty: none
};

/// A command line that cannot be obeyed.
export class usage_error : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

/// "1.5GiB", a whole number of bytes from 1024 up, or below that a factor: "1.05". Throws usage_error.
export limit_choice parse_limit(std::string const& text);

/// The libraries that --peer names, ahead of the rest: what is in them are resources too. Throws usage_error.
export std::vector<std::string> parse_peers(std::vector<std::string> arguments);

/// The options, or, when help was asked for, its text. Throws usage_error.
export struct parsed_options {
  options chosen;
  std::optional<std::string> help;
};
export parsed_options parse_options(std::vector<std::string> arguments, std::span<resource_name const> known);

} // namespace replay
