// A tool that checks memory, such as compute-sanitizer, as far as NVTX's memory interface goes: it keeps the heaps and
// regions, and is as strict as the tool. A program that links memory_tool.cpp has it from its start.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace test {

class memory_tool {
public:
  static memory_tool& instance();

  /// Forgets the counts and the faults, and accepts heaps again.
  void reset();
  void refuse_heaps(bool refuse);

  /// Returns bytes by address.
  std::map<std::uintptr_t, std::size_t> heaps() const;
  std::map<std::uintptr_t, std::size_t> regions() const;
  /// Returns the bytes of the region at the address; 0 if there is none.
  std::size_t region(void const* at) const;
  /// Returns how often a heap, or a region, was to be registered.
  std::size_t heap_calls() const;
  std::size_t region_calls() const;
  /// Returns what the real tool would count as errors.
  std::vector<std::string> faults() const;

  // The functions of the interface.
  void* add_heap(std::uintptr_t base, std::size_t bytes);
  void remove_heap(void* handle);
  void add_region(void* heap, std::uintptr_t at, std::size_t bytes);
  void remove_region(std::uintptr_t at);
  void fault(std::string what);

private:
  struct held_heap {
    std::size_t bytes;
    void* handle;
  };
  struct held_region {
    std::size_t bytes;
    void* heap;
  };
  std::string wrong_with(std::uintptr_t base, std::size_t bytes) const;

  mutable std::mutex mutex_;
  std::map<std::uintptr_t, held_heap> heaps_;
  std::map<std::uintptr_t, held_region> regions_;
  std::vector<std::string> faults_;
  std::uintptr_t handles_made_ = 0;
  std::size_t heap_calls_ = 0;
  std::size_t region_calls_ = 0;
  bool refuses_ = false;
};

} // namespace test
