// The object that holds a pool's upstream, whose type it knows.
// SPDX-License-Identifier: Apache-2.0
module;
#include <memory>
#include <utility>
export module gpumem:held_upstream;
import :device;
import :page_store;
import :pool_options;
import :pool_upstream;
import :services;
import :std;

namespace gpumem::detail {

/// Holds a pool's upstream, a resource of this type.
export template <class Upstream> class held_upstream : public pool_upstream {
public:
  explicit held_upstream(Upstream upstream) : value{std::move(upstream)} { attach(services_of_upstream(value)); }
  /// Gets pages of the device instead of chunks of `instead`.
  held_upstream(Upstream instead, gpumem::device where, virtual_pages_options pages)
      : held_upstream{std::move(instead)} {
    use_pages(where, std::move(pages));
  }
  Upstream value;
};

/// Returns an upstream of pages if the device has virtual memory and the options allow pages; otherwise one of chunks.
export std::unique_ptr<pool_upstream> held_pages(gpumem::device where, pool_options const& options,
                                                 virtual_pages_options pages);

} // namespace gpumem::detail
