// Makes snapshots, and writes them to files.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <ios>
#include <map>
#include <ostream>
#include <stdexcept>
#include <string>
#include <utility>
module gpumem.snapshot;

namespace gpumem {

memory_snapshot detail::make_snapshot(memory_copy copy, std::string name, int device) {
  memory_snapshot made{{std::move(copy)}, std::move(name), device};
  std::map<std::uint32_t, std::uint32_t> numbers{{0, 0}}; // in the snapshot, by the process's number
  for (auto& each : made.blocks) {
    auto const [at, added] = numbers.try_emplace(each.label, static_cast<std::uint32_t>(made.labels.size()));
    if (added) made.labels.push_back(label_text(each.label));
    each.label = at->second;
  }
  return made;
}

void write_snapshot(memory_snapshot const& snapshot, std::string const& path, snapshot_format format) {
  std::ofstream out{path, std::ios::trunc | std::ios::binary};
  format == snapshot_format::json ? write_json(snapshot, out) : write_pickle(snapshot, out);
  out.close();
  if (!out) throw std::runtime_error{"gpumem: cannot write the snapshot " + path + ": " + std::strerror(errno)};
}

} // namespace gpumem
