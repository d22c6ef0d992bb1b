// A queue from one thread and its stream to another: the first allocates blocks, the second frees them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace bench {

/// One producer, one consumer. Blocks are handed over in batches, each with an event that orders the consumer's stream
/// after the producer's, as real programs do.
class producer_consumer {
public:
  static constexpr std::size_t batch = 64;

  struct block {
    void* pointer = nullptr;
    std::size_t bytes = 0;
  };

  explicit producer_consumer(gpumem::device where) {
    for (std::size_t i = 0; i < batches; ++i) handed_.emplace_back(where);
  }

  /// Adds a block; the last block of a batch publishes the batch. Throws cuda_error.
  void push(block const& one, gpumem::stream const& from) {
    auto const at = made_++;
    while (at - popped_.load(std::memory_order_acquire) >= capacity) std::this_thread::yield();
    ring_[at % capacity] = one;
    if (made_ % batch != 0) return;
    event_of(at).record(from);
    pushed_.store(made_, std::memory_order_release);
  }
  /// Waits for a block and returns it. Throws cuda_error.
  block pop(gpumem::stream const& to) {
    auto const at = popped_.load(std::memory_order_relaxed);
    while (pushed_.load(std::memory_order_acquire) <= at) std::this_thread::yield();
    if (at % batch == 0) event_of(at).make_wait(to);
    auto const one = ring_[at % capacity];
    popped_.store(at + 1, std::memory_order_release);
    return one;
  }

private:
  static constexpr std::size_t batches = 8;
  static constexpr std::size_t capacity = batches * batch;
  gpumem::event& event_of(std::size_t at) { return handed_[at / batch % batches]; }

  std::vector<gpumem::event> handed_;
  std::array<block, capacity> ring_{};
  std::size_t made_ = 0; // used by the producer only
  alignas(64) std::atomic<std::size_t> pushed_{0};
  alignas(64) std::atomic<std::size_t> popped_{0};
};

} // namespace bench
