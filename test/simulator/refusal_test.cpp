// When the simulated device refuses to load, and what it says of programs that it does not serve.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

namespace fs = std::filesystem;

/// Each test runs in a process of its own, since a driver stays loaded.
class refusal : public testing::Test {
protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("gpumem_refusal_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    ::setenv("GPUMEM_SIMULATOR_DEVICE_FILES", folder_.c_str(), 1);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void make_device_files() {
    for (char const* name : {"nvidiactl", "nvidia0"}) std::ofstream(folder_ / name) << "";
  }
  static std::string message_of_load() {
    try {
      simulator::load();
    } catch (simulator::error const& refused) { return refused.what(); }
    return {};
  }
  fs::path folder_;
};

TEST_F(refusal, load_fails_if_another_driver_is_loaded) {
  ASSERT_NE(::dlopen(GPUMEM_TEST_OTHER_DRIVER, RTLD_NOW | RTLD_GLOBAL), nullptr) << ::dlerror();
  EXPECT_NE(message_of_load().find("already loaded"), std::string::npos) << message_of_load();
  EXPECT_FALSE(simulator::loaded());
}

TEST_F(refusal, driver_does_not_start_beside_another_that_has_devices) {
  simulator::load();
  make_device_files();
  ASSERT_NE(::dlopen(GPUMEM_TEST_OTHER_DRIVER_UNDER_OTHER_NAME, RTLD_NOW | RTLD_LOCAL), nullptr) << ::dlerror();
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto const init = reinterpret_cast<CUresult (*)(unsigned)>(::dlsym(driver, "cuInit"));
  testing::internal::CaptureStderr();
  EXPECT_EQ(init(0), CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("beside a real driver"), std::string::npos);
  fs::remove(folder_ / "nvidiactl");
  EXPECT_EQ(init(0), CUDA_SUCCESS);
}

TEST_F(refusal, load_fails_if_the_library_is_missing) {
  ::setenv("GPUMEM_SIMULATOR_LIBRARY", "/nowhere/libsimulator.so", 1);
  EXPECT_NE(message_of_load().find("/nowhere/libsimulator.so"), std::string::npos);
}

TEST_F(refusal, control_before_load_throws) {
  EXPECT_THROW(simulator::step(), simulator::error);
  EXPECT_FALSE(simulator::loaded());
}

TEST_F(refusal, auto_load_does_nothing_if_there_is_a_device) {
  make_device_files();
  EXPECT_TRUE(simulator::available_real_device());
  EXPECT_FALSE(simulator::auto_load());
  fs::remove(folder_ / "nvidia0");
  EXPECT_FALSE(simulator::available_real_device());
  EXPECT_TRUE(simulator::auto_load());
}

TEST_F(refusal, second_load_does_nothing_and_dlopen_finds_the_simulator) {
  simulator::load();
  simulator::load();
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  ASSERT_NE(driver, nullptr);
  EXPECT_NE(::dlsym(driver, "gpumem_simulator_interface"), nullptr);
  EXPECT_NE(::dlsym(driver, "cuGetProcAddress_v2"), nullptr);
  EXPECT_NE(::dlsym(driver, "cuMemPoolCreate"), nullptr);
}

TEST_F(refusal, a_driver_that_is_already_loaded_is_used) {
  simulator::load();
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  Dl_info place{};
  ASSERT_NE(::dladdr(::dlsym(driver, "cuInit"), &place), 0);
  EXPECT_EQ(::dlopen(place.dli_fname, RTLD_NOW | RTLD_NOLOAD), driver);
}

TEST_F(refusal, kernels_are_opaque_work_and_said_to_be) {
  simulator::load();
  driver_functions const cu;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cu.init(0), CUDA_SUCCESS);
  ASSERT_EQ(cu.retain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.set_current(context), CUDA_SUCCESS);
  ASSERT_EQ(cu.load_module(&module, "image"), CUDA_SUCCESS);
  ASSERT_EQ(cu.module_function(&function, module, "kernel"), CUDA_SUCCESS);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(cu.launch(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_SUCCESS);
  std::string const told = testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("kernels do not run here: cuLaunchKernel"), std::string::npos) << told;
  EXPECT_EQ(told.find("kernels"), told.rfind("kernels")) << "said twice: " << told;
}

TEST_F(refusal, private_tables_for_the_runtime_are_refused_with_a_sentence) {
  simulator::load();
  const decltype(&::cuGetExportTable) call = entry{"cuGetExportTable"};
  void const* table = this;
  CUuuid const which{};
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(call(&table, &which), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(table, nullptr);
  std::string const told = testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("NVIDIA's CUDA runtime does not run here"), std::string::npos) << told;
  EXPECT_EQ(told.find('\n'), told.size() - 1) << "said twice: " << told;
}

TEST_F(refusal, invalid_options_are_reported) {
  simulator::options none;
  none.devices = 0;
  EXPECT_THROW(simulator::load(none), simulator::error);
  none = {};
  none.capacity = 0;
  EXPECT_THROW(simulator::load(none), simulator::error);
}

} // namespace
