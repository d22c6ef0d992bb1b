// Small programs of two threads, two streams and four operations. Include it after pool_fixture.hpp: it includes
// nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

using made_scene = std::unique_ptr<pool_fixture>;

// `prepare` runs on one thread; the two threads may free the blocks in `kept`.
struct program {
  char const* name;
  unsigned most_preemptions;
  made_scene (*prepare)();
  void (*first)(pool_fixture&);
  void (*second)(pool_fixture&);
};

// With five preemptions the runs take many minutes; without a bound, centuries.
inline constexpr unsigned few = 3, every = ~0u;

// The limit is the size of one block.
inline constexpr program one_block{
    "one block for both", few,
    [] { return std::make_unique<pool_fixture>(1 * MiB, gpumem::pool_options{.limit = 1 * MiB}); },
    [](pool_fixture& s) { s.free(s.a(), s.allocate(s.a(), 1 * MiB)); },
    [](pool_fixture& s) { s.free(s.b(), s.allocate(s.b(), 1 * MiB)); }};

// One thread allocates a block; the other frees it on another stream and allocates it again.
inline constexpr program handed_over{"a block handed over", few,
                                     [] {
                                       auto made = std::make_unique<pool_fixture>(
                                           4 * MiB, gpumem::pool_options{.limit = 2 * MiB});
                                       made->kept = {made->allocate(pool_fixture::a(), 1 * MiB)};
                                       made->order(pool_fixture::a(), pool_fixture::b());
                                       return made;
                                     },
                                     [](pool_fixture& s) {
                                       s.allocate(s.a(), 1 * MiB);
                                       s.allocate(s.a(), 1 * MiB);
                                     },
                                     [](pool_fixture& s) {
                                       s.free(s.b(), s.kept[0]);
                                       s.allocate(s.b(), 512 * KiB);
                                     }};

// Both streams have freed memory, and each thread asks for more than its stream has.
inline constexpr program crossed{
    "steals across streams", few,
    [] {
      auto made = std::make_unique<pool_fixture>(2 * MiB, gpumem::pool_options{.limit = 2 * MiB});
      made->kept = {made->allocate(pool_fixture::a(), 1 * MiB), made->allocate(pool_fixture::b(), 1 * MiB)};
      return made;
    },
    [](pool_fixture& s) {
      s.free(s.a(), s.kept[0]);
      s.allocate(s.a(), 1 * MiB);
    },
    [](pool_fixture& s) {
      s.free(s.b(), s.kept[1]);
      s.allocate(s.b(), 1 * MiB);
    }};

// Two threads free neighbouring blocks on two streams, far from the limit, where frees record no event. Every
// interleaving is run.
inline constexpr program freed_beside{"frees side by side", every,
                                      [] {
                                        auto made = std::make_unique<pool_fixture>(
                                            2 * MiB, gpumem::pool_options{.limit = 8 * MiB});
                                        for (int i = 0; i < 4; ++i) {
                                          made->kept.push_back(made->allocate(pool_fixture::a(), 4 * KiB));
                                        }
                                        made->order(pool_fixture::a(), pool_fixture::b());
                                        return made;
                                      },
                                      [](pool_fixture& s) {
                                        s.free(s.a(), s.kept[0]);
                                        s.free(s.b(), s.kept[2]);
                                      },
                                      [](pool_fixture& s) {
                                        s.free(s.b(), s.kept[1]);
                                        s.free(s.a(), s.kept[3]);
                                      }};

// Chunks are returned to the upstream while a request needs them.
inline constexpr program trimmed{"a trim beside requests", few,
                                 [] {
                                   auto made =
                                       std::make_unique<pool_fixture>(4 * MiB, gpumem::pool_options{.limit = 4 * MiB});
                                   made->free(pool_fixture::a(), made->allocate(pool_fixture::a(), 1 * MiB));
                                   return made;
                                 },
                                 [](pool_fixture& s) { s.free(s.a(), s.allocate(s.a(), 1 * MiB)); },
                                 [](pool_fixture& s) {
                                   s.trim();
                                   s.allocate(s.b(), 1 * MiB);
                                 }};

// Each trim ends a round, so that the shards become spare between the requests of their threads.
inline constexpr program joined{"shards that are joined", few - 1,
                                [] {
                                  auto made = std::make_unique<pool_fixture>(
                                      2 * MiB, gpumem::pool_options{.limit = 2 * MiB, .shard_per_thread = true});
                                  made->free(pool_fixture::a(), made->allocate(pool_fixture::a(), 1 * MiB));
                                  return made;
                                },
                                [](pool_fixture& s) {
                                  s.free(s.a(), s.allocate(s.a(), 1 * MiB));
                                  s.allocate(s.a(), 4 * KiB);
                                },
                                [](pool_fixture& s) {
                                  s.trim();
                                  s.trim();
                                  s.free(s.b(), s.allocate(s.b(), 1 * MiB));
                                }};

// The pool can grow once, and the growth has room for two requests.
inline constexpr program grown{
    "growth at the limit", few,
    [] { return std::make_unique<pool_fixture>(2 * MiB, gpumem::pool_options{.limit = 2 * MiB}); },
    [](pool_fixture& s) {
      s.allocate(s.a(), 1 * MiB);
      s.allocate(s.a(), 512 * KiB);
    },
    [](pool_fixture& s) { s.free(s.b(), s.allocate(s.b(), 1 * MiB)); }};

// Pages are released while the other stream's work on them is pending, and while the other thread maps pages.
inline constexpr program paged{"pages that give way", few,
                               [] {
                                 auto made = std::make_unique<pool_fixture>(gpumem::pool_options{.limit = 4 * MiB});
                                 made->kept = {made->allocate(pool_fixture::a(), 2 * MiB)};
                                 return made;
                               },
                               [](pool_fixture& s) {
                                 s.free(s.a(), s.kept[0]);
                                 s.trim();
                               },
                               [](pool_fixture& s) { s.free(s.b(), s.allocate(s.b(), 3 * MiB)); }};

// Two pages of one shard move to another one, while a thread reads the shards one after the other.
inline constexpr program moved{"statistics beside a move of pages", few - 1,
                               [] {
                                 auto made = std::make_unique<pool_fixture>(
                                     gpumem::pool_options{.limit = 8 * MiB, .shard_per_thread = true});
                                 void* blocks[3];
                                 for (auto& each : blocks) each = made->allocate(pool_fixture::a(), 2 * MiB);
                                 made->free(pool_fixture::a(), blocks[0]);
                                 made->free(pool_fixture::a(), blocks[2]);
                                 fixed().synchronize(); // so that the pages move without a wait
                                 return made;
                               },
                               [](pool_fixture& s) {
                                 s.allocate(s.a(), 4 * KiB); // its shard is there
                                 s.allocate(s.a(), 4 * MiB);
                               },
                               [](pool_fixture& s) { s.read_statistics(); }};

// Five streams free neighbouring blocks; a range keeps the uses of only four streams separately.
inline constexpr program many_streams{
    "more streams than a range keeps uses of", few - 1,
    [] {
      auto made = std::make_unique<pool_fixture>(16 * MiB, gpumem::pool_options{.limit = 16 * MiB});
      made->allocate(pool_fixture::a(), 16 * MiB - 5 * 128 * KiB); // so that the pool stays under memory pressure
      for (int i = 0; i < 5; ++i) made->kept.push_back(made->allocate(pool_fixture::a(), 128 * KiB));
      made->allocate(pool_fixture::a(), 1 * MiB);
      for (int i = 1; i < 6; ++i) made->order(pool_fixture::a(), fixed().all[i]);
      for (int i = 2; i < 5; ++i) {
        made->work(fixed().all[i], made->kept[i], 128 * KiB);
        made->free(fixed().all[i], made->kept[i]);
      }
      return made;
    },
    [](pool_fixture& s) {
      s.free(s.a(), s.kept[0]);
      s.free(fixed().all[5], s.kept[1]);
    },
    [](pool_fixture& s) { s.free(s.b(), s.allocate(s.b(), 5 * 128 * KiB)); }};

// The last handle is dropped while blocks are freed. Frees before that may be cached, frees after it may not.
inline constexpr program closed{"the end of a pool beside frees", few,
                                [] {
                                  auto made = std::make_unique<pool_fixture>(4 * MiB, gpumem::pool_options{});
                                  made->kept = {made->allocate(pool_fixture::a(), 8 * KiB)};
                                  return made;
                                },
                                [](pool_fixture& s) {
                                  auto* const p = s.allocate(s.a(), 4 * KiB);
                                  s.drop_handle();
                                  s.free(s.a(), p);
                                },
                                [](pool_fixture& s) {
                                  s.free(s.a(), s.kept[0]);
                                  s.drop_handle();
                                }};

// One thread tells the pool an order of a stream while another thread requests memory on that stream.
inline constexpr program told{"an order told beside a request", few,
                              [] {
                                auto made =
                                    std::make_unique<pool_fixture>(1 * MiB, gpumem::pool_options{.limit = 1 * MiB});
                                made->kept = {made->allocate(pool_fixture::a(), 1 * MiB)};
                                return made;
                              },
                              [](pool_fixture& s) {
                                s.free(s.a(), s.kept[0]);
                                s.order(s.a(), s.b());
                              },
                              [](pool_fixture& s) { s.free(s.b(), s.allocate(s.b(), 1 * MiB)); }};

// The pool records an event on one of gpumem's own streams while the other thread captures that stream.
inline constexpr program captured{
    "a capture beside a request", few,
    [] {
      auto made = std::make_unique<pool_fixture>(1 * MiB, gpumem::pool_options{.limit = 1 * MiB});
      made->free(pool_fixture::a(), made->allocate(pool_fixture::a(), 1 * MiB));
      return made;
    },
    [](pool_fixture& s) { s.capture(s.a()); }, [](pool_fixture& s) { s.free(s.b(), s.allocate(s.b(), 1 * MiB)); }};

// The third large block that a thread caches evicts the first, which lies between the other two. A request must find it
// on its way to the shard.
inline constexpr program made_way{"a kept block that makes way", few - 1,
                                  [] {
                                    auto made = std::make_unique<pool_fixture>(
                                        4 * MiB, gpumem::pool_options{.initial_size = 4 * MiB, .limit = 4 * MiB});
                                    for (int i = 0; i < 3; ++i)
                                      made->kept.push_back(made->allocate(pool_fixture::a(), 1 * MiB));
                                    return made;
                                  },
                                  [](pool_fixture& s) {
                                    s.allocate(s.a(), 4 * KiB); // from here on the thread caches its frees
                                    for (int i : {1, 0, 2}) {
                                      s.free(s.a(), s.kept[i]);
                                      s.kept[i] = nullptr;
                                    }
                                  },
                                  [](pool_fixture& s) {
                                    bool const there = !s.kept[0] && !s.kept[1];
                                    if (!s.allocate(s.a(), 2 * MiB) && there)
                                      s.fail("a request missed memory that was freed before");
                                  }};

inline constexpr program const* programs[] = {&one_block, &freed_beside, &handed_over,  &crossed, &trimmed,
                                              &grown,     &paged,        &many_streams, &closed,  &told,
                                              &captured,  &made_way,     &joined,       &moved};

} // namespace gpumem_test
