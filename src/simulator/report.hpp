// The findings of the simulated device: errors that it detected in the program.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace simulated {

/// Kinds of findings, in the same order as gpumem::simulator::finding_kind.
enum class finding_kind {
  unordered_access,
  unordered_reuse,
  unordered_free,
  use_after_free,
  unallocated_access,
  double_free,
  unknown_free,
  wrong_size,
  overlapping_grant,
  live_block_in_freed_memory,
  dead_stream,
  dead_event,
  call_in_host_function,
  deadlock,
  unmapped_access,
  access_without_right,
  premature_unmap,
  dead_memory_handle,
  early_pool_destroy,
};

/// One side of a finding; stream 0 is the host.
struct party {
  std::uint64_t stream = 0;
  std::uint64_t operation = 0;
  char const* action = "";
};

struct block_name {
  std::uint64_t number = 0; // of the first page, if several pages were joined
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  bool page = false;      // a page of mapped memory, not a block that a resource granted
  std::uint64_t more = 0; // pages that were joined after the first
};

struct finding {
  finding_kind kind;
  party earlier;
  party later;
  block_name block;
  std::string missing;
  std::string text;
};

std::string describe(party const& side);
std::string describe(block_name const& block);

/// Collects findings. Keeps the first 1000 and counts the rest.
class report {
public:
  void add(finding finding);

  /// Adds a finding of two operations without order. Its text is `text_before`, the block and `text_after`. A finding
  /// of the same two operations that names the same block, or the page before it, is extended instead.
  void add_unordered(finding finding, std::string const& text_before, std::string const& text_after);

  /// Prints the findings that the program has not taken by take_findings(), also those from before a reset. Called at
  /// the end of the process. Returns whether there are any.
  bool print_untaken() const;

  /// Names the findings from now on, in what print_untaken() prints: a test, or another part of the program.
  void name(std::string part) { part_ = std::move(part); }
  /// Ends a part of the program: its findings can no longer be taken, and print_untaken() prints them.
  void end_part();

  void clear() noexcept {
    findings_.clear();
    dropped_ = 0;
  }
  [[nodiscard]] std::vector<finding> const& findings() const noexcept { return findings_; }

private:
  std::vector<finding> findings_;
  std::uint64_t dropped_ = 0;
  std::string part_;
  std::vector<std::string> old_texts_; // texts of findings of earlier parts that the program did not take
  std::uint64_t left_count_ = 0;
};

} // namespace simulated
