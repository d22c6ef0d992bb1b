// Finds the live block at a pointer, or reports which misuse the pointer shows.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <optional>
module gpumem:misuse_check.impl;
import :misuse_check;
import :block;
import :chunk_list;
import :misuse;
import :pool_options;
import :pool_parts;
import :shard_list;
import :stream;

namespace gpumem::detail {
namespace {

[[clang::requires_capability(one_shard, all_shards)]] void explain(pool_parts& parts, stream_key const& key,
                                                                   void* pointer, std::optional<std::size_t> bytes,
                                                                   late_misuse& wrong) noexcept {
  auto const refuse = [&](misuse::kind what, std::size_t expected) {
    wrong.set({what, pointer, bytes.value_or(0), expected, key.id(), parts.options.name.c_str()});
  };
  auto const* const parent = parts.chunks.find_containing(pointer);
  auto const* const found = parent ? parent->find_containing(pointer) : nullptr;
  if (!found || found->state() == block_state::hole) return refuse(misuse::kind::foreign_pointer, 0);
  std::size_t const requested = found->requested;
  if (found->state() == block_state::deferred) return refuse(misuse::kind::double_free, requested);
  if (!found->is_live()) return refuse(misuse::kind::double_free, 0);
  refuse(found->pointer() != pointer ? misuse::kind::foreign_pointer : misuse::kind::wrong_size, requested);
}

} // namespace

block* find_or_explain(pool_parts& parts, stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                       late_misuse& wrong) noexcept {
  auto* const found = parts.shards.find_live(pointer).that;
  if (found && found->is_live() && (!bytes || *bytes == found->requested)) return found;
  explain(parts, key, pointer, bytes, wrong);
  return nullptr;
}

} // namespace gpumem::detail
