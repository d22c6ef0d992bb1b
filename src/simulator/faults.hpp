// Injected failures: the n-th allocation fails, the n-th call of a function fails, or all calls fail.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "driver_api.hpp"

namespace simulated {

class faults {
public:
  void fail_allocation(std::uint64_t nth) { allocations_left_ = nth; }
  void fail_call(std::string name, std::uint64_t nth, CUresult result) {
    if (nth != 0) calls_.push_back({std::move(name), nth, result});
  }
  void stick(CUresult result) noexcept { sticky_ = result; }
  [[nodiscard]] CUresult sticky() const noexcept { return sticky_; }
  void clear() { *this = faults{}; }

  /// Counts a call. Returns the error with which it must fail, or success. The failure that was asked for first decides.
  CUresult at_call(std::string_view name) {
    CUresult result = CUDA_SUCCESS;
    std::erase_if(calls_, [&](call_fault& fault) {
      if (fault.name != name || --fault.calls_left != 0) return false;
      if (result == CUDA_SUCCESS) result = fault.result;
      return true;
    });
    return result;
  }

  /// Counts an allocation. Returns whether it must fail.
  bool at_allocation() noexcept {
    if (allocations_left_ == 0) return false;
    --allocations_left_;
    return allocations_left_ == 0;
  }

private:
  struct call_fault {
    std::string name;
    std::uint64_t calls_left;
    CUresult result;
  };
  std::uint64_t allocations_left_ = 0;
  std::vector<call_fault> calls_;
  CUresult sticky_ = CUDA_SUCCESS;
};

} // namespace simulated
