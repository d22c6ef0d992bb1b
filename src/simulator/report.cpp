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

/// Extends the range `named` of a finding by `block`, if `block` is the page after the range. Returns true also if the
/// range holds the block already, and false if the block is elsewhere.
bool join(block_name& named, block_name const& block) {
  if (named.number == block.number) return true;
  if (!named.page || !block.page) return false;
  std::uint64_t const offset = block.address - named.address;
  if (offset < named.bytes) return true;
  if (offset != named.bytes) return false;
  named.bytes += block.bytes;
  ++named.more;
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

bool report::last_word() const {
  if (findings_.empty() && left_.empty()) return false;
  std::fprintf(stderr, "gpumem simulator: the program fails, since findings were not taken: %zu\n",
               findings_.size() + dropped_ + left_count_);
  for (std::string const& text : left_) std::fprintf(stderr, "  %s\n", text.c_str());
  std::string const where = part_.empty() || findings_.empty() ? "" : "in " + part_ + ": ";
  for (finding const& found : findings_) std::fprintf(stderr, "  %s%s\n", where.c_str(), found.text.c_str());
  return true;
}

void report::leave() {
  left_count_ += findings_.size() + dropped_;
  for (finding const& found : findings_)
    if (left_.size() < kept_in_full) left_.push_back("in " + (part_.empty() ? "part 1" : part_) + ": " + found.text);
  clear();
}

void report::add(finding found) {
  if (findings_.size() < kept_in_full)
    findings_.push_back(std::move(found));
  else
    ++dropped_;
}

/// Extends an earlier finding of the same two operations, if it names this block or the page before it; otherwise adds
/// the finding. Searches backwards only through the findings of the same later operation, since they stand together.
void report::add_unordered(finding found, std::string const& before, std::string const& after) {
  for (auto old = findings_.rbegin(); old != findings_.rend() && same(old->later, found.later); ++old) {
    if (old->kind != found.kind || !same(old->earlier, found.earlier) || !join(old->block, found.block)) continue;
    old->text = before;
    old->text += describe(old->block);
    old->text += after;
    return;
  }
  found.text = before + describe(found.block) + after;
  add(std::move(found));
}

} // namespace simulated
