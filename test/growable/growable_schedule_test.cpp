// Random programs of two buffers and a pool at one limit, on three streams and three threads, under schedules. A model
// says which memory each buffer has, and the device checks what was written there. Each run replays from its seed.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
import gpumem.growable;

namespace {

namespace simulator = gpumem::simulator;
using gpumem::growable_buffer;
using gpumem::outcome;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;
constexpr std::size_t MiB = std::size_t{1} << 20, unit = 2 * MiB, units = 40, limit = 96 * MiB;
constexpr int operations = 40;

// The threads of one run share this. One thread runs at a time.
struct run_state {
  std::uint64_t seed;
  std::array<gpumem::stream, 3>& streams;
  std::map<std::string, std::uint64_t>& paths; // how often the runs took each path
  std::uint64_t wrong_values = 0;              // that the device has read
  std::string wrong = {};
};

// Makes work on `later` wait for all work on `earlier`: by an event that the library knows, or by one that it does not.
void order(gpumem::stream& earlier, gpumem::stream& later, bool known) {
  gpumem::event done{gpumem::device{0}};
  if (known) {
    done.record(earlier);
    later.wait(done);
    return;
  }
  CUevent raw = nullptr;
  auto const& driver = gpumem::driver_api::driver();
  driver.event_create(&raw, CU_EVENT_DISABLE_TIMING);
  driver.event_record(raw, earlier.get());
  driver.stream_wait_event(later.get(), raw, 0);
  driver.event_destroy(raw);
}

// A buffer, and what a correct buffer would have. The first word of each unit of memory tells when it was mapped.
class modelled_buffer {
public:
  modelled_buffer(run_state& all, pool& from, std::uint64_t seed)
      : all_{all}, random_{seed}, on_{seed % 3},
        page_{std::array<std::size_t, 4>{unit, 4 * unit, 16 * unit, 0}[seed / 3 % 4]},
        buffer_{from, stream(), {.reserve = units * unit, .page = page_}} {}

  void step() {
    if (random_() % 4 == 0) change_stream();
    switch (random_() % 8) {
    case 0:
    case 1: grow(random_() % 2); break;
    case 2: shrink(); break;
    case 3:
    case 4: discard(); break;
    case 5: restore(random_() % 2); break;
    case 6: give_up_and_restore_elsewhere(); break;
    default: touch(); break;
    }
    check();
  }

private:
  enum class unit_state : std::uint8_t { none, mapped, discarded };

  gpumem::stream& stream() { return all_.streams[on_]; }
  void count(std::string const& path) { ++all_.paths[path]; }
  std::uint64_t* word(std::size_t at) const {
    return reinterpret_cast<std::uint64_t*>(static_cast<std::byte*>(buffer_.data()) + at * unit);
  }
  std::size_t size_in_units() const { return (buffer_.bytes() + unit - 1) / unit; }

  void change_stream() {
    auto const next = (on_ + 1 + random_() % 2) % 3;
    order(stream(), all_.streams[next], random_() % 2);
    on_ = next;
    count("another stream");
  }
  // The memory is new for the buffer, so what is there does not matter.
  void stamp(std::size_t at) {
    units_[at] = unit_state::mapped;
    values_[at] = ++last_value_;
    simulator::work(stream(), {simulator::write(word(at), unit)}, {},
                    [to = word(at), value = last_value_] { *to = value; });
  }
  void touch() {
    for (std::size_t at = 0; at < units; ++at) {
      if (units_[at] != unit_state::mapped || random_() % 3) continue;
      simulator::work(stream(), {simulator::write(word(at), unit)}, {},
                      [from = word(at), value = values_[at], &wrong = all_.wrong_values] { wrong += *from != value; });
      count("checked");
    }
  }
  void grow(bool waits) {
    auto const bytes = random_() % (units * unit) + 1;
    auto const before = buffer_.bytes(), mapped = buffer_.mapped_bytes();
    auto const created = gpumem::driver_api::driver_calls("cuMemCreate");
    auto const got =
        waits ? buffer_.grow_to(stream(), bytes).wait_until(gpumem::detail::sync::now() + std::chrono::milliseconds{1})
              : buffer_.try_grow_to(stream(), bytes);
    if (!got) {
      expect(buffer_.bytes() == before && buffer_.mapped_bytes() == mapped, "a growth that failed changed the buffer");
      expect(got.error().reason == outcome::exhausted || got.error().reason == outcome::deadline,
             gpumem::to_string(got.error().reason));
      return count(waits ? "deadline of a growth" : "refused growth");
    }
    expect(buffer_.bytes() == std::max(before, bytes), "a growth made another size");
    auto const fresh = (buffer_.mapped_bytes() - mapped) / unit;
    if (fresh == 0) return count("growth inside mapped pages");
    bool const kept = created == gpumem::driver_api::driver_calls("cuMemCreate");
    count(waits ? "growth in the line" : kept ? "growth into pages that were still mapped" : "growth");
    for (std::size_t i = 0; i < fresh; ++i) stamp(end_++);
  }
  void shrink() {
    auto const bytes = buffer_.bytes() - random_() % (buffer_.bytes() / 2 + 1);
    buffer_.shrink_to(stream(), bytes);
    auto const step = page_ ? page_ : unit, last = std::min((bytes + step - 1) / step * step / unit, units);
    auto end = (bytes + unit - 1) / unit; // the page stays up to what is discarded in it
    while (end < last && units_[end] == unit_state::mapped) ++end;
    while (end_ > end) units_[--end_] = unit_state::none;
    count("shrunk");
  }
  // Returns a random run of units below the size that all have this state; empty if the first one has not.
  std::pair<std::size_t, std::size_t> run_of(unit_state state) {
    auto const end = size_in_units();
    if (end == 0) return {};
    auto const first = random_() % end;
    auto last = first;
    for (auto const most = std::min(end, first + 1 + random_() % 12); last < most && units_[last] == state;) ++last;
    return {first, last - first};
  }
  void discard() {
    auto const [first, count_of_units] = run_of(unit_state::mapped);
    if (count_of_units == 0) return;
    buffer_.discard(stream(), first * unit, count_of_units * unit);
    for (std::size_t i = 0; i < count_of_units; ++i) units_[first + i] = unit_state::discarded;
    count("discarded");
  }
  void restore(bool waits) {
    auto const [first, count_of_units] = run_of(unit_state::discarded);
    if (count_of_units == 0) return;
    auto const created = gpumem::driver_api::driver_calls("cuMemCreate");
    auto const offset = first * unit, bytes = count_of_units * unit;
    auto const got = waits ? buffer_.restore(stream(), offset, bytes)
                                 .wait_until(gpumem::detail::sync::now() + std::chrono::milliseconds{1})
                           : buffer_.try_restore(stream(), offset, bytes);
    if (!got) return count("refused restoration");
    bool const kept = created == gpumem::driver_api::driver_calls("cuMemCreate");
    count(kept ? "restored in pages that were still mapped" : "restored");
    for (std::size_t i = 0; i < count_of_units; ++i) stamp(first + i);
  }
  // Two streams that are not ordered give back a half each. One of them, or the third stream, gets both back: the
  // library orders it.
  void give_up_and_restore_elsewhere() {
    auto const [first, count_of_units] = run_of(unit_state::mapped);
    if (count_of_units < 2) return;
    auto const home = on_, other = (on_ + 1) % 3;
    order(stream(), all_.streams[other], true);
    auto const half = count_of_units / 2;
    give_up(first, half);
    on_ = other;
    give_up(first + half, count_of_units - half);
    auto const last = random_() % 2 ? other : (on_ + 1) % 3;
    on_ = last;
    if (buffer_.try_restore(stream(), first * unit, count_of_units * unit)) {
      for (std::size_t i = 0; i < count_of_units; ++i) stamp(first + i);
      count(last == other ? "restored after another stream" : "restored after two other streams");
    }
    for (auto const each : {home, other}) order(all_.streams[each], stream(), true);
    for (auto const each : {home, other}) order(stream(), all_.streams[each], true);
  }
  void give_up(std::size_t first, std::size_t count_of_units) {
    for (std::size_t at = first; at < first + count_of_units; ++at) stamp(at);
    buffer_.discard(stream(), first * unit, count_of_units * unit);
    for (std::size_t at = first; at < first + count_of_units; ++at) units_[at] = unit_state::discarded;
  }
  void check() {
    auto const mapped = static_cast<std::size_t>(std::ranges::count(units_, unit_state::mapped));
    expect(buffer_.mapped_bytes() == mapped * unit, "the buffer has other pages than its model");
  }
  void expect(bool right, std::string const& otherwise) {
    if (!right && all_.wrong.empty()) all_.wrong = otherwise;
  }

  run_state& all_;
  std::mt19937_64 random_;
  std::size_t on_;
  std::size_t page_;
  growable_buffer buffer_;
  std::size_t end_ = 0; // units that were lent and not given back from the end
  std::array<unit_state, units> units_{};
  std::array<std::uint64_t, units> values_{};
  std::uint64_t last_value_ = 0;
};

// Allocates and frees blocks of the pool itself, and gives its free memory back.
void use_pool(run_state& all, pool& from, std::uint64_t seed) {
  std::mt19937_64 random{seed};
  std::vector<std::pair<void*, std::size_t>> blocks;
  auto& on = all.streams[seed % 3];
  auto const end_one = [&] {
    std::swap(blocks[random() % blocks.size()], blocks.back());
    from.deallocate(on, blocks.back().first, blocks.back().second);
    blocks.pop_back();
  };
  for (int i = 0; i < operations; ++i) {
    if (random() % 8 == 0) {
      if (from.trim() > 0) ++all.paths["trimmed"];
    } else if (blocks.size() < 4 && random() % 3) {
      auto const bytes = random() % (12 * MiB) + 1;
      auto const got = from.try_allocate(on, bytes);
      if (!got) continue;
      ++all.paths["allocated"];
      simulator::work(on, {simulator::write(*got, bytes)}, {},
                      [to = static_cast<unsigned char*>(*got)] { *to = 0xff; });
      blocks.emplace_back(*got, bytes);
    } else if (!blocks.empty()) {
      end_one();
    }
  }
  while (!blocks.empty()) end_one();
}

TEST(growable_schedule, buffers_and_pool_share_a_limit) {
  gpumem::device const where{0};
  gpumem::device_guard const current{where};
  std::array<gpumem::stream, 3> streams{gpumem::stream{where}, gpumem::stream{where}, gpumem::stream{where}};
  std::map<std::string, std::uint64_t> paths;
  test::schedule_seeds const seeds{150};
  seeds.each([&](std::uint64_t seed) {
    run_state all{seed, streams, paths};
    auto const how =
        std::array{gpumem::reuse_policy::wait, gpumem::reuse_policy::wait, gpumem::reuse_policy::completed}[seed % 3];
    gpumem::pool_options options{.limit = limit, .cross_stream = how};
    options.effort = seed % 2 ? 1 : .05;
    options.shard_per_thread = seed % 5 == 0;
    {
      pool from{where, options};
      {
        std::array<std::unique_ptr<modelled_buffer>, 2> buffers;
        for (std::size_t i = 0; i < 2; ++i) buffers[i] = std::make_unique<modelled_buffer>(all, from, 2 * seed + i);
        std::vector<std::function<void()>> bodies;
        for (std::size_t i = 0; i < 2; ++i) {
          bodies.emplace_back([&, i] {
            gpumem::device_guard const here{where};
            for (int n = 0; n < operations; ++n) buffers[i]->step();
          });
        }
        bodies.emplace_back([&] {
          gpumem::device_guard const here{where};
          use_pool(all, from, seed);
        });
        gpumem::detail::schedule::run(seed, std::move(bodies), 1 + seed % 4);
      }
      auto& engine = static_cast<gpumem::detail::pool_state*>(from.services().state)->engine();
      ASSERT_TRUE(engine.is_consistent()) << "GPUMEM_SEED=" << seed;
      ASSERT_LE(from.statistics().peak_reserved, limit) << "GPUMEM_SEED=" << seed;
      ASSERT_EQ(from.statistics().lent, 0u) << "GPUMEM_SEED=" << seed;
      for (auto& each : streams) each.synchronize();
      simulator::run_until_idle();
      static_cast<void>(from.synchronize(std::chrono::seconds{1}));
      from.trim();
      ASSERT_EQ(from.statistics().reserved, 0u) << "GPUMEM_SEED=" << seed;
    }
    ASSERT_EQ(all.wrong, "") << "GPUMEM_SEED=" << seed;
    ASSERT_EQ(all.wrong_values, 0u) << "GPUMEM_SEED=" << seed;
    for (auto const& found : simulator::take_findings()) FAIL() << found.text << " GPUMEM_SEED=" << seed;
  });
  for (auto const& [path, times] : paths)
    std::printf("%8llu %s\n", static_cast<unsigned long long>(times), path.c_str());
  if (seeds.alone() || seeds.count() < 100) return;
  EXPECT_EQ(paths.size(), 17u) << "a path was never taken";
}

} // namespace
