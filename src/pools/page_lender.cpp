// Loans of pages to one borrower.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <optional>
module gpumem:page_lender.impl;
import :page_lender;
import :error;
import :pool_resource;
import :pool_shard;
import :range_search;
import :services;
import :stream;
import :virtual_pages;
import :waiter;

namespace gpumem::detail {

expected<void*, failure> lending_state::lend_at(std::optional<std::size_t> offset, stream_key const& key,
                                                std::size_t bytes, std::size_t alignment, std::size_t page) noexcept {
  auto const unit = range_.pages.granularity();
  if (bytes == 0 || bytes % unit != 0 || offset.value_or(0) % unit != 0 || alignment > unit)
    return unexpected<failure>{failure{outcome::invalid_argument, 0, bytes}};
  loan_terms const terms{&range_, offset, page};
  auto const lent = pool_->engine().lend(key, terms, bytes);
  if (lent) add_live();
  return lent;
}

void lending_state::deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t) noexcept {
  pool_->engine().deallocate(key, pointer, bytes);
  drop_live();
}

bool lending_state::admit(waiter& item) noexcept {
  return pool_->admit_with(item, [&] {
    return item.allocate_parts(
        [&](request_part const& one) {
          return lend_at(std::nullopt, one.stream.queueing_as(queueing::admitted), one.bytes, one.alignment);
        },
        [&](request_part const& one) {
          pool_->engine().return_part(one.stream, one.pointer);
          drop_live();
        });
  });
}

expected<void*, failure> page_lender::try_allocate_at(stream_ref stream, std::size_t offset,
                                                      std::size_t bytes) noexcept {
  auto const key = try_identify(stream, services(), bytes);
  if (!key) return unexpected<failure>{key.error()};
  return state_->lend_at(offset, *key, bytes, default_alignment);
}

} // namespace gpumem::detail
