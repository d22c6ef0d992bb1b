// Parses the options of snapshots, and writes their files.
// SPDX-License-Identifier: Apache-2.0
#include "snapshot.hpp"

#include "options.hpp"
#include "pool.hpp"

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import gpumem;
import gpumem.snapshot;

#include "held_pool.hpp"

namespace gpumem::c {

snapshot_file parse_snapshot_options(std::string path, std::string_view options) {
  snapshot_file file{std::move(path)};
  bool named = false;
  while (!options.empty()) {
    auto const end = options.find(',');
    auto const option = trimmed(options.substr(0, end));
    options.remove_prefix(end == std::string_view::npos ? options.size() : end + 1);
    if (option.empty()) continue;
    auto const equals = option.find('=');
    auto const name = trimmed(option.substr(0, equals));
    auto const value = equals == std::string_view::npos ? std::string_view{} : trimmed(option.substr(equals + 1));
    if (name != "format") throw std::invalid_argument{"gpumem: unknown option '" + std::string{name} + "'"};
    if (named) throw std::invalid_argument{"gpumem: the option 'format' is repeated"};
    if (value != "json" && value != "pickle")
      throw std::invalid_argument{"gpumem: the option 'format' must be json or pickle, not '" + std::string{value} +
                                  "'"};
    named = true;
    file.pickle = value == "pickle";
  }
  return file;
}

void write_snapshot(detail::memory_copy copy, std::string name, int device, snapshot_file const& file) {
  auto const snapshot = detail::make_snapshot(std::move(copy), std::move(name), device);
  try {
    gpumem::write_snapshot(snapshot, file.path, file.pickle ? snapshot_format::pickle : snapshot_format::json);
  } catch (std::runtime_error const& error) { throw std::invalid_argument{error.what()}; }
}

detail::memory_copy copy_of(std::vector<memory_range> const& map) {
  detail::memory_copy copy;
  copy.pieces = 1;
  for (auto const& each : map) {
    copy.blocks.push_back({.base = each.base,
                           .bytes = each.bytes,
                           .requested = each.requested,
                           .stream = each.stream,
                           .state = each.live ? memory_state::live : memory_state::free,
                           .begins_region = each.base == each.region});
  }
  return copy;
}

} // namespace gpumem::c
