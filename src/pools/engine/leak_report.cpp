// The list of pools, and the report about their live blocks when the process exits.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdio>
#include <exception>
module gpumem:leak_report.impl;
import :leak_report;
import :block_info;
import :driver;
import :intrusive_list;
import :process;
import :sync;

namespace gpumem::detail {
namespace {

struct listed_pools {
  sync::mutex mutex;
  intrusive_list<leak_report> pools __attribute__((guarded_by(mutex)));
  bool registered __attribute__((guarded_by(mutex))) = false;
};

// Never destroyed: static objects may end their pools after this list would be destroyed.
listed_pools& listed() {
  static auto* const all = new listed_pools;
  return *all;
}

} // namespace

bool reports_leaks() { return is_set_in_environment("GPUMEM_REPORT_LEAKS"); }

leak_report::leak_report(char const* name, reader read, void* pool) : name_{name}, read_{read}, pool_{pool} {
  auto& all = listed();
  sync::lock const held{all.mutex};
  if (!all.registered) at_driver_exit(write_all);
  all.registered = true;
  all.pools.push_back(*this);
}

leak_report::~leak_report() {
  if (forked()) return;
  auto& all = listed();
  sync::lock const held{all.mutex};
  all.pools.remove(*this);
}

void leak_report::write_all() noexcept {
  auto& all = listed();
  sync::lock const held{all.mutex};
  for (auto const* each = all.pools.first(); each; each = each->links_.next) each->write();
}

void leak_report::write() const noexcept try {
  auto const found = read_(pool_);
  if (found.count == 0) return;
  std::fprintf(stderr, "gpumem: %s: blocks never freed: %zu, of %zu bytes in all; the largest:\n", name_, found.count,
               found.bytes);
  for (auto const& one : found.largest) {
    std::fprintf(stderr, "gpumem:   %zu bytes at %p, allocated for stream %llu\n", one.bytes, one.base,
                 static_cast<unsigned long long>(one.stream));
  }
} catch (std::exception const& error) {
  std::fprintf(stderr, "gpumem: %s: live blocks cannot be listed: %s\n", name_, error.what());
}

} // namespace gpumem::detail
