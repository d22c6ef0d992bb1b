// The table of contents of the library: every public partition, from the ground up.
// SPDX-License-Identifier: Apache-2.0
export module gpumem;

export import :trace;
