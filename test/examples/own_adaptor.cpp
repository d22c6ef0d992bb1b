// An adaptor of one's own: it counts the blocks that were granted, also to requests that had to wait.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <utility>
import gpumem;

using namespace gpumem;
using namespace gpumem::literals;

template <class Upstream> class granted_state final : public extend::adaptor_state<granted_state<Upstream>, Upstream> {
public:
  explicit granted_state(Upstream upstream) : extend::adaptor_state<granted_state, Upstream>{std::move(upstream)} {}
  void on_granted(extend::stream_key const&, void*, std::size_t) noexcept { ++granted; }
  std::atomic<int> granted{0};
};

template <class Upstream>
class granted_adaptor : public extend::adaptor_base<granted_adaptor<Upstream>, granted_state<Upstream>, Upstream> {
  using base = extend::adaptor_base<granted_adaptor, granted_state<Upstream>, Upstream>;

public:
  explicit granted_adaptor(Upstream upstream) : base{new granted_state<Upstream>{std::move(upstream)}} {}
  int granted() const { return this->shared().granted; }
};

int main() {
  device const card{0};
  stream work{card};
  granted_adaptor counted{pool_resource{card, {.limit = 64_MiB}}};
  auto const first = counted.acquire(work, 48_MiB).wait();
  auto const soon = std::chrono::steady_clock::now() + std::chrono::milliseconds{20};
  auto const second = counted.acquire(work, 32_MiB).wait_until(soon); // waits at the pool, through the adaptor
  std::printf("granted %d, then: %s; ", counted.granted(), to_string(second.error().reason));
  std::printf("%s live\n", format_bytes(counted.statistics().live).c_str());
}
