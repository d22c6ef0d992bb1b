// The partitions of the adviser, each after those that it uses.
// SPDX-License-Identifier: Apache-2.0
export module advise;

export import :options;
export import :candidate;
export import :replays;
export import :limits;
export import :answer;
