// Makes the text of findings. At exit, prints the findings that the program has not taken.
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

bool same(party const& a, party const& b) { return a.stream == b.stream && a.operation == b.operation; }

/// Extends `range`, that of a finding, by `block`, if `block` is the page after the range. Returns true also if the
/// range holds the block already, and false if the block is elsewhere.
bool join(block_name& range, block_name const& block) {
  if (range.number == block.number) return true;
  if (!range.page || !block.page) return false;
  std::uint64_t const offset = block.address - range.address;
  if (offset < range.bytes) return true;
  if (offset != range.bytes) return false;
  range.bytes += block.bytes;
  ++range.more;
  return true;
}

} // namespace

std::string describe(party const& side) {
  std::string const step = " " + std::to_string(side.operation);
  if (side.stream == 0) return std::string(side.action) + " by the host";
  return side.action + step + " of stream " + std::to_string(side.stream);
}

std::string describe(block_name const& block) {
  std::string const more = block.more == 0 ? "" : " and " + std::to_string(block.more) + " more";
  return "block " + std::to_string(block.number) + more + " (" + std::to_string(block.bytes) + " bytes at " +
         hexadecimal(block.address) + ")";
}

bool report::print_untaken() const {
  if (findings_.empty() && old_texts_.empty()) return false;
  std::fprintf(stderr, "gpumem simulator: the program fails, since findings were not taken: %zu\n",
               findings_.size() + dropped_ + left_count_);
  for (std::string const& text : old_texts_) std::fprintf(stderr, "  %s\n", text.c_str());
  std::string const where = part_.empty() || findings_.empty() ? "" : "in " + part_ + ": ";
  for (finding const& found : findings_) std::fprintf(stderr, "  %s%s\n", where.c_str(), found.text.c_str());
  return true;
}

void report::end_part() {
  left_count_ += findings_.size() + dropped_;
  for (finding const& found : findings_)
    if (old_texts_.size() < kept_in_full)
      old_texts_.push_back("in " + (part_.empty() ? "part 1" : part_) + ": " + found.text);
  clear();
}

void report::add(finding finding) {
  if (findings_.size() < kept_in_full)
    findings_.push_back(std::move(finding));
  else
    ++dropped_;
}

/// Extends an earlier finding of the same two operations, if it names this block or the page before it; otherwise adds
/// the finding. Searches backwards only through the findings of the same later operation, since they stand together.
void report::add_unordered(finding finding, std::string const& text_before, std::string const& text_after) {
  for (auto old = findings_.rbegin(); old != findings_.rend() && same(old->later, finding.later); ++old) {
    if (old->kind != finding.kind || !same(old->earlier, finding.earlier) || !join(old->block, finding.block)) continue;
    old->text = text_before;
    old->text += describe(old->block);
    old->text += text_after;
    return;
  }
  finding.text = text_before + describe(finding.block) + text_after;
  add(std::move(finding));
}

} // namespace simulated
