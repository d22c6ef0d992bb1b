// The partitions of the report, each after those that it uses.
// SPDX-License-Identifier: Apache-2.0
export module report;

export import :options;
export import :events;
export import :range_set;
import :event_list;
import :snapshots;
export import :summary;
export import :text;
export import :changes;
export import :page;
export import :svg;
