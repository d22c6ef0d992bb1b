// The reader of pickles: all protocols, and texts that are cut short, wrong or ask to run something.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>

import gpumem;
import gpumem.snapshot;

namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;
using gpumem::extend::pickle_value;
using gpumem::extend::read_pickle;

std::string refusal(std::string_view text) {
  try {
    static_cast<void>(read_pickle(text));
  } catch (std::invalid_argument const& error) { return error.what(); }
  return "was read";
}

// Python's pickle.dumps writes these for {"a": [1, -2, 300, 70000, 2**40, 1.5, None, True, ("x", b"y")], 7: {}}.
constexpr auto protocol_0 = "(dp0\nVa\np1\n(lp2\nI1\naI-2\naI300\naI70000\naL1099511627776L\naF1.5\naNaI01\na(Vx\np3\n"
                            "Vy\np4\ntp5\nasI7\n(dp6\ns."sv;
constexpr auto protocol_4 = "\x80\x04\x95\x3e\0\0\0\0\0\0\0}\x94(\x8c\x01"
                            "a\x94]\x94(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11"
                            "\x01\0\x8a\x06\0\0\0\0\0\x01G?\xf8\0\0\0\0\0\0N\x88\x8c\x01x\x94"
                            "C\x01y\x94\x86\x94"
                            "eK\x07"
                            "}\x94u."sv;

TEST(pickle, has_truth_values_in_old_protocols) {
  EXPECT_FALSE(read_pickle("I00\n.").as<bool>());
  EXPECT_EQ(read_pickle("I0\n.").as<std::int64_t>(), 0);
  EXPECT_EQ(read_pickle("I1\n.").as<std::int64_t>(), 1);
}

TEST(pickle, reads_each_protocol) {
  for (auto const text : {protocol_0, protocol_4}) {
    auto const all = read_pickle(text);
    auto const& list = all["a"].as<pickle_value::list>();
    ASSERT_EQ(list.size(), 9u);
    EXPECT_EQ(list[0].as<std::int64_t>(), 1);
    EXPECT_EQ(list[1].as<std::int64_t>(), -2);
    EXPECT_EQ(list[2].as<std::int64_t>(), 300);
    EXPECT_EQ(list[3].as<std::int64_t>(), 70000);
    EXPECT_EQ(list[4].as<std::int64_t>(), std::int64_t{1} << 40);
    EXPECT_EQ(list[5].as<double>(), 1.5);
    EXPECT_TRUE(std::holds_alternative<std::monostate>(list[6].value));
    EXPECT_TRUE(list[7].as<bool>());
    EXPECT_EQ(list[8].as<pickle_value::list>()[0].as<std::string>(), "x");
    EXPECT_EQ(list[8].as<pickle_value::list>()[1].as<std::string>(), "y");
    EXPECT_TRUE(all["7"].as<pickle_value::dictionary>().empty());
    EXPECT_THROW(static_cast<void>(all["b"]), std::invalid_argument);
    EXPECT_THROW(static_cast<void>(all["a"].as<double>()), std::invalid_argument);
  }
}

TEST(pickle, refuses_to_run_and_says_where) {
  EXPECT_EQ(refusal("cos\nsystem\n(Vls\ntR."),
            "gpumem: the pickle names something to import or to run, which is refused, at byte 0");
  EXPECT_EQ(refusal("\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R."sv),
            "gpumem: the pickle names something to import or to run, which is refused, at byte 14");
}

TEST(pickle, malformed_texts_are_refused) {
  EXPECT_EQ(refusal(""), "gpumem: the pickle is cut short, at byte 0");
  EXPECT_EQ(refusal("."), "gpumem: the pickle has no single value, at byte 1");
  EXPECT_EQ(refusal("\x80\x09N."sv), "gpumem: the pickle has an unknown protocol, at byte 2");
  EXPECT_EQ(refusal("hello"), "gpumem: the pickle refers to a value that was not stored, at byte 2");
  EXPECT_EQ(refusal("]K\x01u."), "gpumem: the pickle has no mark, at byte 4");
  EXPECT_EQ(refusal("}(K\x01u."), "gpumem: the pickle has a key without a value, at byte 5");
  EXPECT_EQ(refusal("}]Ns."), "gpumem: the pickle has a key that is neither a text nor an integer, at byte 5");
  EXPECT_EQ(refusal("h\x05."), "gpumem: the pickle refers to a value that was not stored, at byte 2");
  EXPECT_EQ(refusal("a."), "gpumem: the pickle takes a value that is not there, at byte 1");
  EXPECT_EQ(refusal("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x01."sv),
            "gpumem: the pickle has an integer of more than 64 bits, at byte 11");
}

// A list that holds itself, lists that hold the list before twice, which are 2 to the 40 values, and a text in many
// places.
TEST(pickle, shared_values_stay_shared) {
  EXPECT_NE(refusal("]q\0h\0a."sv).find("without end"), std::string::npos);
  // one text of a megabyte, many times in a list
  auto const text = std::string(std::size_t{1} << 20, 'x');
  std::string many = "]T";
  for (int i = 0; i < 4; ++i) many += static_cast<char>(text.size() >> (8 * i));
  many += text + "q\1a"s;
  for (int i = 0; i < 100'000; ++i) many += "h\1a";
  auto const whole = read_pickle(many + ".");
  EXPECT_EQ(&whole.as<pickle_value::list>()[0].as<std::string>(), &whole.as<pickle_value::list>()[1].as<std::string>());
  std::string doubled = "]q"s + '\0';
  for (int i = 0; i < 40; ++i)
    doubled += "0]q"s + static_cast<char>(i + 1) + "(h" + static_cast<char>(i) + "h" + static_cast<char>(i) + "e";
  auto const pair = read_pickle(doubled + ".");
  auto const& halves = pair.as<pickle_value::list>();
  ASSERT_EQ(halves.size(), 2u);
  EXPECT_EQ(&halves[0].as<pickle_value::list>(), &halves[1].as<pickle_value::list>());
}

// A key of a megabyte in a hundred thousand dictionaries.
TEST(pickle, shared_keys_have_a_bound) {
  auto const many = [](int count) {
    auto text = "T\0\0\x10\0"s + std::string(std::size_t{1} << 20, 'x') + "q\0"s + "0(";
    for (int i = 0; i < count; ++i) text += "}h\0Ns"s;
    return text + "l.";
  };
  EXPECT_EQ(read_pickle(many(16)).as<pickle_value::list>().size(), 16u);
  EXPECT_NE(refusal(many(100'000)).find("keys without end"), std::string::npos);
}

TEST(pickle, label_of_a_block_is_a_frame_outside_pytorch) {
  auto const text_of = [](std::string const& name) {
    return "(dVsegments\n(l(dVaddress\nI4096\nsVstream\nI0\nsVdevice\nI0\nsVblocks\n(l(dVsize\nI512\nsVrequested_size\n"
           "I500\nsVstate\nVactive_allocated\nsVframes\n(l(dVname\nVforward\nsVfilename\nV/lib/torch/nn.py\nsVline\n"
           "I1\nsa(dVname\nV" +
           name + "\nsVfilename\nV/home/train.py\nsVline\nI20\nsasasas.";
  };
  EXPECT_EQ(gpumem::snapshot_of_pickle(text_of("layer")).labels[1], "train.py:20 layer");
  EXPECT_EQ(gpumem::snapshot_of_pickle(text_of(std::string(2'000, 'x'))).labels[1],
            "train.py:20 " + std::string(500, 'x'));
}

TEST(pickle, frames_of_a_shared_stack_are_looked_at_once) {
  auto const text_of = [](std::string const& file) {
    std::string text = "(l(dVframes\n(l(dVname\nVf\nsVfilename\nV" + file + "\nsVline\nI7\nsp2\na";
    for (int i = 1; i < 300; ++i) text += "g2\na";
    text += "sp1\na";
    for (int i = 1; i < 200; ++i) text += "g1\na";
    return text + ".";
  };
  auto const label_of_all = [&](std::string const& file, std::size_t frames) {
    auto const blocks = read_pickle(text_of(file));
    gpumem::detail::pickle_labels labels;
    std::string last;
    for (auto const& each : blocks.as<pickle_value::list>()) last = labels.label_of(each);
    EXPECT_EQ(labels.frames_seen(), frames);
    return last;
  };
  EXPECT_EQ(label_of_all("kernel.cpp", 300), "kernel.cpp:7 f");
  EXPECT_EQ(label_of_all("/home/train.py", 1), "train.py:7 f");
  // Only the end of a path is looked at: many frames may share one.
  EXPECT_EQ(label_of_all("/torch/" + std::string(500, 'a') + "/x.py", 1), "x.py:7 f");
  EXPECT_EQ(label_of_all(std::string(600, 'a') + ".py", 1), std::string(497, 'a') + ".py:7 f");
}

// A segment of a thousand places that are one block, in a thousand places.
TEST(pickle, snapshot_of_shared_blocks_ends) {
  std::string text =
      "}X\x08\0\0\0segments](}X\x06\0\0\0blocks](}(X\x04\0\0\0sizeK\x01X\x05\0\0\0stateX\x08\0\0\0inactiveuq\0"s;
  for (int i = 0; i < 1'000; ++i) text += "h\0"s;
  text += "esX\x07\0\0\0addressK\0sX\x06\0\0\0streamK\0sX\x06\0\0\0deviceK\0sq\1"s;
  for (int i = 0; i < 1'000; ++i) text += "h\1";
  EXPECT_THROW(static_cast<void>(gpumem::snapshot_of_pickle(text + "es.")), std::invalid_argument);
  try {
    static_cast<void>(gpumem::snapshot_of_pickle(text + "es."));
  } catch (std::invalid_argument const& error) {
    EXPECT_STREQ(error.what(), "gpumem: a snapshot has blocks without end");
  }
}

TEST(pickle, cut_and_changed_snapshots_are_read_or_refused) {
  gpumem::memory_snapshot seen;
  seen.device = 0;
  for (std::uintptr_t i = 0; i < 20; ++i)
    seen.blocks.push_back({.base = reinterpret_cast<void*>(i << 20), .bytes = 1 << 20, .begins_region = i % 5 == 0});
  std::ostringstream written;
  gpumem::write_pickle(seen, written);
  auto const text = written.str();
  EXPECT_EQ(gpumem::snapshot_of_pickle(text).blocks.size(), 20u);
  for (std::size_t end = 0; end < text.size(); ++end)
    EXPECT_THROW(static_cast<void>(gpumem::snapshot_of_pickle(std::string_view{text}.substr(0, end))),
                 std::invalid_argument);
  std::mt19937 random{1};
  for (int i = 0; i < 20'000; ++i) {
    auto changed = text;
    changed[random() % changed.size()] = static_cast<char>(random());
    try {
      static_cast<void>(gpumem::snapshot_of_pickle(changed));
    } catch (std::invalid_argument const&) {} // any other end of the program is a fault
  }
}

} // namespace
