// The version of the headers and interfaces. A release changes it here and in the project's CMakeLists.txt; a build in
// which the two differ fails.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#define GPUMEM_VERSION_MAJOR 0
#define GPUMEM_VERSION_MINOR 2
#define GPUMEM_VERSION_PATCH 0

/// The version as one number that can be compared: 1.2.3 is 10203.
#define GPUMEM_VERSION (GPUMEM_VERSION_MAJOR * 10000 + GPUMEM_VERSION_MINOR * 100 + GPUMEM_VERSION_PATCH)
