// Random programs over buffers of all kinds of memory, on several streams and devices, compared with plain vectors.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

import gpumem;

namespace {

using gpumem::extend::any_memory;
using gpumem::buffer;
using gpumem::cuda_resource;
using gpumem::extend::make_any_memory;
using gpumem::stream;
namespace simulator = gpumem::simulator;

// A buffer and its expected contents; no value where no work has written.
struct pair_of_both {
  buffer real;
  std::vector<std::optional<unsigned char>> model;
};

class program {
public:
  explicit program(std::uint64_t seed) : chance_{seed} {
    for (int i = 0; i < 6; ++i) make(pairs_.emplace_back());
  }

  void step() {
    auto& one = any(pairs_);
    switch (pick(14)) {
    case 0: make(one); break;
    case 1:
    case 2: resize(one, pick(3) ? pick(600) : pick(70'000)); break;
    case 3: one.real.reserve(pick(2000)); break;
    case 4: one.real.shrink_to_fit(); break;
    case 5: put(one); break;
    case 6: take(one); break;
    case 7: fill(one); break;
    case 8: copy(any(pairs_), one); break;
    case 9: assign(any(pairs_), one); break;
    case 10: copy_of(any(pairs_), one); break;
    case 11: move(any(pairs_), one); break;
    case 12: one.real.set_stream(any(streams_)); break;
    case 13: use(one); break;
    }
    EXPECT_EQ(one.real.size(), one.model.size());
    EXPECT_GE(one.real.capacity(), one.real.size());
  }

  void finish() {
    for (auto& one : pairs_) compare(one);
    pairs_.clear();
    for (auto& each : streams_) each.synchronize();
  }

private:
  std::size_t pick(std::size_t below) { return std::uniform_int_distribution<std::size_t>{0, below - 1}(chance_); }
  template <class Container> typename Container::value_type& any(Container& all) { return all[pick(all.size())]; }

  void make(pair_of_both& one) {
    auto const size = pick(4) ? pick(1000) : 0;
    one.real = buffer{any(streams_), any(memories_), size, std::size_t{1} << pick(13)};
    one.model.assign(size, std::nullopt);
  }
  void resize(pair_of_both& one, std::size_t size) {
    one.real.resize(size);
    one.model.resize(size); // the contents beyond the former size are undefined
  }
  std::pair<std::size_t, std::size_t> part(std::size_t size) {
    auto const offset = pick(size + 1);
    return {offset, pick(size - offset + 1)};
  }
  void put(pair_of_both& one) {
    auto const [offset, count] = part(one.model.size());
    std::vector<unsigned char> source(count);
    for (auto& byte : source) byte = static_cast<unsigned char>(pick(256));
    one.real.copy_from(source.data(), count, offset);
    std::ranges::copy(source, one.model.begin() + static_cast<std::ptrdiff_t>(offset));
    std::ranges::fill(source, static_cast<unsigned char>(0)); // pageable memory: it was read or copied during the call
  }
  void take(pair_of_both& one) {
    auto const [offset, count] = part(one.model.size());
    std::vector<unsigned char> target(count);
    if (pick(2)) {
      one.real.read(target.data(), count, offset);
    } else {
      one.real.read_on(any(streams_), target.data(), count, offset);
    }
    expect(one, target, offset);
  }
  void compare(pair_of_both& one) {
    std::vector<unsigned char> target(one.real.size());
    one.real.copy_to(target.data(), target.size());
    one.real.synchronize();
    expect(one, target, 0);
  }
  static void expect(pair_of_both& one, std::vector<unsigned char> const& found, std::size_t offset) {
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (auto const byte = one.model[offset + i]) ASSERT_EQ(found[i], *byte) << "byte " << offset + i;
    }
  }
  void fill(pair_of_both& one) {
    auto const [offset, count] = part(one.model.size());
    auto const byte = static_cast<unsigned char>(pick(256));
    one.real.fill(std::byte{byte}, count, offset);
    std::fill_n(one.model.begin() + static_cast<std::ptrdiff_t>(offset), count, byte);
  }
  void copy(pair_of_both& to, pair_of_both& from) {
    auto const [from_offset, most] = part(from.model.size());
    auto const [offset, count] = part(to.model.size());
    auto const bytes = std::min(most, count);
    if (&to == &from && bytes > (offset > from_offset ? offset - from_offset : from_offset - offset)) return;
    to.real.copy_from(from.real, bytes, offset, from_offset);
    std::copy_n(from.model.begin() + static_cast<std::ptrdiff_t>(from_offset), bytes,
                to.model.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  void assign(pair_of_both& to, pair_of_both& from) {
    to.real.assign(from.real);
    to.model = from.model;
  }
  void copy_of(pair_of_both& to, pair_of_both& from) {
    to.real =
        pick(2) ? buffer::copy_of(any(streams_), from.real) : buffer::copy_of(any(streams_), any(memories_), from.real);
    to.model = from.model;
  }
  void move(pair_of_both& to, pair_of_both& from) {
    if (&to == &from) return;
    to.real = std::move(from.real);
    to.model = std::move(from.model);
    make(from);
  }
  // Enqueues work on another stream, under a guard, that adds one to each byte.
  void use(pair_of_both& one) {
    auto& on = any(streams_);
    auto const guard = one.real.use_on(on);
    auto const bytes = one.real.as<unsigned char>();
    if (bytes.empty()) return;
    simulator::work(on, {simulator::write(bytes.data(), bytes.size())}, {}, [bytes] {
      for (auto& byte : bytes) ++byte;
    });
    for (auto& byte : one.model) {
      if (byte) byte = static_cast<unsigned char>(*byte + 1);
    }
  }

  std::mt19937_64 chance_;
  gpumem::device first_{0}, second_{1};
  std::deque<stream> streams_ = [this] {
    std::deque<stream> made;
    for (auto const& where : {first_, first_, second_}) made.emplace_back(where);
    return made;
  }();
  std::vector<any_memory> memories_{
      make_any_memory(cuda_resource{first_}),
      make_any_memory(cuda_resource{second_}),
      make_any_memory(gpumem::host_resource{}),
      make_any_memory(simulator::checked{gpumem::pool_resource{cuda_resource{first_}}}),
      make_any_memory(simulator::checked{gpumem::pool_resource{cuda_resource{second_}}}),
      make_any_memory(gpumem::statistics_adaptor{gpumem::pool_resource{cuda_resource{first_}}}),
      make_any_memory(simulator::checked{gpumem::pool_resource{gpumem::host_resource{}}}),
  };
  std::deque<pair_of_both> pairs_;
};

class buffer_property : public simulated, public testing::WithParamInterface<int> {};

TEST_P(buffer_property, random_operations_keep_the_contents_of_a_model) {
  for (std::uint64_t seed = 1; seed <= 25 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto const number = static_cast<std::uint64_t>(GetParam()) * 1000 + seed;
    simulator::seed(number);
    program random{number};
    for (int i = 0; i < 200 && !HasFailure(); ++i) random.step();
    random.finish();
    for (auto const& found : simulator::take_findings()) ADD_FAILURE() << found.text;
  }
}

INSTANTIATE_TEST_SUITE_P(random_programs, buffer_property, testing::Range(0, 8));

} // namespace
