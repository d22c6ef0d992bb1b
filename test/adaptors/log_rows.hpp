// Reads logs, and checks the order of their rows. Include it after `import gpumem;`: it includes
// nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

inline std::vector<gpumem::extend::trace_record> read_log(std::string text) {
  return gpumem::extend::trace_reader{std::move(text), "log"}.read_all();
}

inline bool is_call(gpumem::extend::trace_record const& row) {
  return row.action <= gpumem::extend::trace_action::allocate_failure;
}

/// Returns the rows that RMM's format has too, with all times 0.
inline std::vector<gpumem::extend::trace_record> rows_without_times(std::string text) {
  auto rows = read_log(std::move(text));
  std::erase_if(rows, [](auto const& row) { return !is_call(row); });
  for (auto& row : rows) {
    row.microseconds = 0;
    row.served = gpumem::extend::served_by::unknown;
  }
  return rows;
}

/// Returns the rows of each thread, with all times 0.
inline std::map<std::uint64_t, std::vector<gpumem::extend::trace_record>> rows_by_thread(std::string text) {
  std::map<std::uint64_t, std::vector<gpumem::extend::trace_record>> by_thread;
  for (auto const& row : rows_without_times(std::move(text))) by_thread[row.thread].push_back(row);
  return by_thread;
}

/// Expects that each address is allocated and freed in turn, and is free at the end.
inline void expect_addresses_alternate(std::string text) {
  std::map<std::uint64_t, bool> live;
  std::size_t number = 0;
  for (auto const& row : read_log(std::move(text))) {
    if (row.action < gpumem::extend::trace_action::allocate_failure) {
      bool const allocates = row.action == gpumem::extend::trace_action::allocate;
      ASSERT_NE(live[row.pointer], allocates) << "row " << number << ", address " << row.pointer;
      live[row.pointer] = allocates;
    }
    ++number;
  }
  for (auto const& [address, is_live] : live) EXPECT_FALSE(is_live) << address;
}

} // namespace test
