// The version of the interfaces, of the headers and of the library.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/version.h>
#include <gtest/gtest.h>

import gpumem;

TEST(version, interfaces_headers_and_library_agree) {
  static_assert(gpumem::version_major == GPUMEM_VERSION_MAJOR);
  static_assert(gpumem::version_minor == GPUMEM_VERSION_MINOR);
  static_assert(gpumem::version_patch == GPUMEM_VERSION_PATCH);
  EXPECT_EQ(gpumem::version(), GPUMEM_VERSION);
}
