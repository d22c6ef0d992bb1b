// A fixture for tests of requests that wait for a limit, be it of a pool or of an adaptor: what both have to do.
// Include it after waiting_fixture.hpp: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

// Each `subject` has a limit of 100 MiB and no live block.
class limited_waits : public waiting_fixture {
protected:
  using outcome = gpumem::outcome;

  template <class Subject> void expect_order_by_priority(Subject subject) {
    auto block = subject.acquire(a, 100 * MiB).wait();
    request low{*this, subject, a, 60 * MiB, {.priority = -1}}, first{*this, subject, a, 60 * MiB},
        second{*this, subject, b, 60 * MiB}, high{*this, subject, b, 60 * MiB, {.priority = 7}};
    block.reset();
    for (auto* next : {&high, &first, &second, &low}) {
      EXPECT_FALSE(next->ended());
      run_all();
      ASSERT_EQ(next->ended(), outcome::granted);
      next->block().reset();
    }
  }

  // The subject has `most` as its max_overtakes.
  template <class Subject> void expect_overtakes(unsigned most, Subject subject) {
    auto block = subject.acquire(a, 60 * MiB).wait();
    request first{*this, subject, a, 60 * MiB};
    for (unsigned i = 0; i < most; ++i) {
      request next{*this, subject, b, 30 * MiB};
      run_all();
      EXPECT_EQ(next.ended(), outcome::granted) << i << " of " << most;
    }
    EXPECT_FALSE(can_have(subject, b, 30 * MiB));
    request late{*this, subject, b, 30 * MiB};
    run_all();
    EXPECT_FALSE(late.ended()) << most;
    block.reset();
    run_all();
    EXPECT_EQ(first.ended(), outcome::granted);
    EXPECT_EQ(late.ended(), outcome::granted);
  }

  // The subject has 3 as its max_overtakes.
  template <class Subject> void expect_plain_overtakes(Subject subject) {
    auto block = subject.acquire(a, 60 * MiB).wait();
    EXPECT_TRUE(can_have(subject, b, 4 * MiB));
    request first{*this, subject, a, 60 * MiB};
    EXPECT_FALSE(can_have(subject, b, 60 * MiB)) << "there is no room, so this does not count";
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(can_have(subject, b, 4 * MiB)) << i;
    run_all();
    EXPECT_FALSE(can_have(subject, b, 4 * MiB));
    block.reset();
    EXPECT_FALSE(can_have(subject, b, 60 * MiB)) << "took what is set aside for the first";
    EXPECT_TRUE(can_have(subject, b, 30 * MiB));
    run_all();
    EXPECT_EQ(first.ended(), outcome::granted);
  }

  template <class Subject> void expect_turns_only_where_they_fit(Subject subject) {
    auto block = subject.acquire(a, 100 * MiB).wait();
    request first{*this, subject, a, 60 * MiB}, second{*this, subject, a, 60 * MiB};
    block.reset();
    EXPECT_TRUE(executor.run_one());
    EXPECT_FALSE(executor.run_one()) << "the second got its turn in vain";
    EXPECT_EQ(first.ended(), outcome::granted);
    EXPECT_FALSE(second.ended());
    first.block().reset();
    EXPECT_TRUE(executor.run_one());
    EXPECT_EQ(second.ended(), outcome::granted);
  }

  // Leaves the limit at 90 MiB.
  template <class Subject> void expect_grant_when_the_limit_is_raised(Subject subject) {
    auto block = subject.acquire(a, 60 * MiB).wait();
    request second{*this, subject, b, 60 * MiB};
    subject.set_limit(120 * MiB);
    run_all();
    EXPECT_EQ(second.ended(), outcome::granted);
    request third{*this, subject, b, 100 * MiB};
    subject.set_limit(90 * MiB);
    run_all();
    EXPECT_EQ(third.ended(), outcome::too_large);
  }

  // The subject has 0 as its max_overtakes.
  template <class Subject> void expect_end_when_the_limit_is_lowered(Subject subject) {
    auto block = subject.acquire(a, 60 * MiB).wait();
    request first{*this, subject, a, 50 * MiB}, second{*this, subject, b, 90 * MiB}, third{*this, subject, b, 50 * MiB};
    subject.set_limit(70 * MiB);
    run_all();
    EXPECT_EQ(second.ended(), outcome::too_large);
    EXPECT_FALSE(first.ended());
    block.reset();
    run_all();
    EXPECT_EQ(first.ended(), outcome::granted);
    EXPECT_FALSE(third.ended());
  }

  template <class Subject> void expect_stop_is_too_late_in_a_turn(Subject subject) {
    auto block = subject.acquire(a, 60 * MiB).wait(), other = subject.acquire(a, 40 * MiB).wait();
    std::stop_source source;
    request third{*this, subject, b, 60 * MiB, source.get_token()};
    block.reset();
    source.request_stop();
    run_all();
    EXPECT_EQ(third.ended(), outcome::granted);
  }

  template <class Subject> void expect_turn_is_passed_on(Subject subject) {
    auto block = subject.acquire(a, 60 * MiB).wait();
    request last{*this, subject, b, 60 * MiB, {}, false};
    {
      request first{*this, subject, b, 60 * MiB}, second{*this, subject, b, 60 * MiB};
      last.begin();
      second.destroy();
      block.reset();
    }
    EXPECT_FALSE(last.ended());
    EXPECT_TRUE(executor.run_one());
    EXPECT_EQ(last.ended(), outcome::granted);
    EXPECT_FALSE(executor.run_one());
  }

  template <class Subject> void expect_end_at_the_deadline(Subject subject) {
    auto block = subject.acquire(a, 60 * MiB).wait();
    auto const soon = gpumem::detail::sync::now() + std::chrono::milliseconds{2};
    EXPECT_EQ(subject.acquire(b, 60 * MiB).wait_until(soon).error().reason, outcome::deadline);
    EXPECT_GE(gpumem::detail::sync::now(), soon);
    EXPECT_TRUE(subject.acquire(b, 30 * MiB).try_now()) << "something still waits";
    block.reset();
    EXPECT_TRUE(subject.acquire(b, 60 * MiB).wait_until(soon + std::chrono::hours{1}));
  }
};

} // namespace gpumem_test
