// Text of findings, and the output at exit of findings that were not taken.
// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <cstdio>
#include <utility>

namespace simulated {

namespace {

constexpr std::size_t kept_in_full = 1000;

std::string hexadecimal(std::uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

} // namespace

std::string describe(const party& side) {
  const std::string step = " " + std::to_string(side.operation);
  if (side.stream == 0) return std::string(side.action) + " by the host";
  return side.action + step + " of stream " + std::to_string(side.stream);
}

std::string describe(const block_name& block) {
  return "block " + std::to_string(block.number) + " (" + std::to_string(block.bytes) + " bytes at " +
         hexadecimal(block.address) + ")";
}

bool report::last_word() const {
  if (findings_.empty()) return false;
  std::fprintf(stderr, "gpumem simulator: the program fails, since findings were not taken: %zu\n",
               findings_.size() + dropped_);
  for (const finding& found : findings_) std::fprintf(stderr, "  %s\n", found.text.c_str());
  return true;
}

void report::add(finding found) {
  if (findings_.size() < kept_in_full)
    findings_.push_back(std::move(found));
  else
    ++dropped_;
}

} // namespace simulated
