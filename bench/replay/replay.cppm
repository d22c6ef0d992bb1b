// The partitions of the replay tool, each after those that it uses.
// SPDX-License-Identifier: Apache-2.0
export module replay;

export import :options;
export import :progress;
export import :trace_file;
export import :plan;
export import :result;
export import :table;
export import :json;
export import :device;
export import :streams;
export import :thread_team;
export import :pass;
export import :pace;
export import :replay_session;
export import :work;
export import :gpu_stopwatch;
export import :preallocated;
export import :growth_timer;
export import :live_counter;
export import :measure;
export import :accounted_resource;
export import :resources;
