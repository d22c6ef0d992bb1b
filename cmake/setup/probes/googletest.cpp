// GoogleTest and GoogleMock.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

TEST(probe, matches) { EXPECT_THAT(1 + 1, testing::Eq(2)); }
