// Contexts of the simulated device, and the faults that tests can request from it.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

namespace {

using namespace std::chrono_literals;

class context : public simulated_device {};

TEST_F(context, missing_context_is_error_201_for_default_streams_only) {
  CUstream const s = new_stream();
  CUevent const e = new_event();
  std::thread([&] {
    unsigned long long id = 0;
    CUstream made = nullptr;
    CUdeviceptr memory = 0;
    EXPECT_EQ(cu().stream_id(s, &id), CUDA_SUCCESS);
    EXPECT_EQ(cu().event_record(e, s), CUDA_SUCCESS);
    EXPECT_EQ(cu().stream_id(nullptr, &id), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cu().stream_create(&made, 0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cu().allocate(&memory, 64), CUDA_ERROR_INVALID_CONTEXT);
    CUcontext none = context_;
    EXPECT_EQ(cu().get_current(&none), CUDA_SUCCESS);
    EXPECT_EQ(none, nullptr);
  }).join();
}

TEST_F(context, stack_pushes_and_pops) {
  EXPECT_EQ(cu().push_current(context_), CUDA_SUCCESS);
  CUcontext popped = nullptr;
  EXPECT_EQ(cu().pop_current(&popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, context_);
  CUdevice device = -1;
  EXPECT_EQ(cu().context_device(&device), CUDA_SUCCESS);
  EXPECT_EQ(device, 0);
}

TEST_F(context, reset_of_the_device_kills_streams_events_and_memory) {
  CUstream const s = new_stream();
  CUevent const e = new_event();
  char* memory = new_memory(64);
  unsigned long long before = 0;
  unsigned long long after = 0;
  cu().context_id(context_, &before);
  EXPECT_EQ(cu().reset(0), CUDA_SUCCESS);
  EXPECT_EQ(cu().context_synchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cu().stream_query(s), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu().event_query(e), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(simulator::take_findings().size(), 2u);
  CUcontext again = nullptr;
  ASSERT_EQ(cu().retain(&again, 0), CUDA_SUCCESS);
  cu().context_id(again, &after);
  EXPECT_NE(before, after);
  EXPECT_EQ(cu().free(address(memory)), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(context, handles_from_before_a_reset_name_no_later_object) {
  CUstream const s = new_stream();
  CUevent const e = new_event();
  EXPECT_EQ(cu().reset(0), CUDA_SUCCESS);
  CUcontext again = nullptr;
  ASSERT_EQ(cu().retain(&again, 0), CUDA_SUCCESS);
  EXPECT_NE(new_stream(), s);
  EXPECT_NE(new_event(), e);
  EXPECT_EQ(cu().stream_query(s), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu().event_query(e), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(simulator::take_findings().size(), 2u);
}

TEST_F(context, reset_of_the_device_ends_waits_with_an_error) {
  simulator::options patient = stepped_by_hand();
  patient.stall_timeout = 1min;
  simulator::reset(patient);
  CUstream const s = new_stream();
  CUevent const e = new_event();
  simulator::never_complete(e);
  cu().event_record(e, s);
  char const* calls[] = {"cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize"};
  CUresult results[3] = {};
  std::thread waiting[3];
  for (int i = 0; i < 3; ++i) {
    waiting[i] = std::thread([&, i] {
      cu().set_current(context_);
      results[i] = i == 0   ? cu().event_synchronize(e)
                   : i == 1 ? cu().stream_synchronize(s)
                            : cu().context_synchronize();
    });
    while (!simulator::report().driver_calls.contains(calls[i])) std::this_thread::yield();
  }
  EXPECT_EQ(cu().reset(0), CUDA_SUCCESS);
  for (std::thread& each : waiting) each.join();
  for (CUresult const result : results) EXPECT_EQ(result, CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

TEST_F(context, reset_of_the_device_ends_its_captures) {
  CUstream const s = new_stream();
  EXPECT_EQ(cu().begin_capture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(cu().reset(0), CUDA_SUCCESS);
  CUcontext again = nullptr;
  ASSERT_EQ(cu().retain(&again, 0), CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  EXPECT_EQ(cu().allocate(&memory, 64), CUDA_SUCCESS) << "no capture is active";
}

TEST_F(context, forked_child_has_no_context) {
  CUstream const s = new_stream();
  pid_t const child = ::fork();
  if (child == 0) {
    bool refused = cu().stream_query(s) == CUDA_ERROR_NOT_INITIALIZED;
    try {
      simulator::run_until_idle();
      refused = false;
    } catch (simulator::error const&) {}
    ::_exit(refused && !simulator::loaded() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(context, last_release_destroys_the_context) {
  unsigned flags = 0;
  int active = 0;
  cu().context_state(0, &flags, &active);
  EXPECT_EQ(active, 1);
  CUcontext again = nullptr;
  cu().retain(&again, 0);
  cu().release(0);
  cu().context_state(0, &flags, &active);
  EXPECT_EQ(active, 1);
}

TEST_F(context, synchronize_waits_for_every_stream) {
  int ran = 0;
  for (int i = 0; i < 3; ++i) simulator::work(new_stream(), {}, 1us, [&] { ++ran; });
  EXPECT_EQ(cu().context_synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(ran, 3);
}

TEST_F(context, unknown_devices_are_refused) {
  CUcontext none = nullptr;
  EXPECT_EQ(cu().retain(&none, 1), CUDA_ERROR_INVALID_DEVICE);
  int count = 0;
  EXPECT_EQ(cu().device_count(&count), CUDA_SUCCESS);
  EXPECT_EQ(count, 1);
}

class fault : public simulated_device {};

TEST_F(fault, nth_allocation_is_out_of_memory) {
  simulator::fail_allocation(2);
  CUdeviceptr memory = 0;
  EXPECT_EQ(cu().allocate(&memory, 64), CUDA_SUCCESS);
  EXPECT_EQ(cu().allocate(&memory, 64), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cu().allocate(&memory, 64), CUDA_SUCCESS);
}

TEST_F(fault, nth_call_of_a_name_fails_with_the_given_error) {
  simulator::fail_call("cuStreamQuery", 2, CUDA_ERROR_ILLEGAL_ADDRESS);
  CUstream const s = new_stream();
  EXPECT_EQ(cu().stream_query(s), CUDA_SUCCESS);
  EXPECT_EQ(cu().stream_query(s), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cu().stream_query(s), CUDA_SUCCESS);
}

TEST_F(fault, sticky_error_stays_until_the_device_is_reset) {
  CUstream const s = new_stream();
  simulator::sticky_error(CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr memory = 0;
  EXPECT_EQ(cu().stream_query(s), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cu().allocate(&memory, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cu().reset(0), CUDA_SUCCESS);
  CUcontext again = nullptr;
  EXPECT_EQ(cu().retain(&again, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu().allocate(&memory, 64), CUDA_SUCCESS);
}

TEST_F(fault, event_that_never_completes_is_reported_as_a_deadlock) {
  CUstream const s = new_stream();
  CUevent const e = new_event();
  simulator::never_complete(e);
  cu().event_record(e, s);
  EXPECT_EQ(simulator::run_until_idle(), 1u);
  EXPECT_EQ(cu().event_query(e), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cu().event_synchronize(e), CUDA_ERROR_TIMEOUT);
  simulator::finding const found = only_finding();
  EXPECT_EQ(found.kind, simulator::finding_kind::deadlock);
  EXPECT_NE(found.text.find("never_complete()"), std::string::npos) << found.text;
}

TEST_F(fault, calls_are_counted_by_name) {
  simulator::clear_driver_calls();
  CUstream const s = new_stream();
  cu().stream_query(s);
  cu().stream_query(s);
  auto const calls = simulator::report().driver_calls;
  EXPECT_EQ(calls.at("cuStreamQuery"), 2u);
  EXPECT_EQ(calls.at("cuStreamCreate"), 1u);
  EXPECT_FALSE(calls.contains("cuMemAlloc"));
}

TEST_F(fault, unsimulated_function_names_itself) {
  const decltype(&::cuMemPoolExportPointer) missing = entry{"cuMemPoolExportPointer"};
  testing::internal::CaptureStderr();
  EXPECT_EQ(missing(nullptr, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("cuMemPoolExportPointer"), std::string::npos);
  void* none = nullptr;
  EXPECT_EQ(entry::look_up()("cuNoSuchFunction", &none, CUDA_VERSION, 0, nullptr), CUDA_ERROR_NOT_FOUND);
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  entry::look_up()("cuCtxRecordEvent", &none, 12000, 0, &status);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

TEST_F(fault, errors_have_names_and_texts) {
  const decltype(&::cuGetErrorName) name_of = entry{"cuGetErrorName"};
  const decltype(&::cuGetErrorString) words_of = entry{"cuGetErrorString"};
  char const* text = nullptr;
  EXPECT_EQ(name_of(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(words_of(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "out of memory");
  EXPECT_EQ(name_of(static_cast<CUresult>(998), &text), CUDA_ERROR_INVALID_VALUE);
}

} // namespace
