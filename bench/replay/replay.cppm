// The partitions of the replay tool, each after those that it uses.
// SPDX-License-Identifier: Apache-2.0
export module replay;

export import :options;
export import :replay_session;
export import :plan;
export import :result;
export import :pass;
export import :work;
export import :measure;
export import :resources;
