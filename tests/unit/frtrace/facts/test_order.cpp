// test_order.cpp - which operation usually comes next.
#include "catch.hpp"
#include "facts/order/order.hpp"

using namespace frtrace;

TEST_CASE("usual_next prefers the longest context") {
  const auto steps = [](std::vector<std::uint64_t> keys) {
    std::vector<Step> out;
    for (const auto k : keys) {
      out.push_back({k, 0, static_cast<std::uint32_t>(out.size())});
    }
    return out;
  };
  // a b c, a b c, x b d, a b -> c
  const auto s = steps({1, 2, 3, 1, 2, 3, 9, 2, 4, 1, 2});
  const auto next = usual_next(s, s.size());
  REQUIRE(next);
  CHECK(s[*next].key == 3);
  CHECK_FALSE(usual_next(s, 0));
  CHECK_FALSE(usual_next(steps({1, 2, 3}), 3));
}

TEST_CASE("Python threads that share no group are programs of their own") {
  constexpr std::uint32_t kMain = 1, kBackward = 2, kSaver = 3;
  RankEvidence e;
  e.strings = {"", "/home/u/train.py", "step"};
  e.frames = {{1, 2, 7}};
  e.stacks = {{}, {0}};
  constexpr std::uint32_t line = 1;
  std::vector<Step> steps;
  const auto add = [&](std::uint32_t tid, int group, std::uint32_t stack) {
    Record r;
    r.kind = Kind::kCollective;
    r.tid = tid;
    r.stack = stack;
    steps.push_back({1, group, static_cast<std::uint32_t>(e.records.size())});
    e.records.push_back(r);
  };
  add(kMain, 0, line);
  add(kSaver, 2, line);
  add(kBackward, 1, 0);  // no Python frames: it works for another thread
  add(kMain, 0, line);
  add(kSaver, 2, line);
  using Places = std::vector<std::size_t>;
  CHECK(steps_of_program(e, steps, 3) == Places{0, 2, 3});
  CHECK(steps_of_program(e, steps, 4) == Places{1, 2, 4});
  CHECK(steps_of_program(e, steps, steps.size()) == Places{1, 2, 4});  // the last thread's
  steps[4].group = 0;
  CHECK(steps_of_program(e, steps, 3) == Places{0, 1, 2, 3, 4});
}

TEST_CASE(
    "of two shifts that agree to the end the nearer one is meant: what repeats itself agrees "
    "again") {
  constexpr std::uint64_t kRecv = 1, kSend = 2, kReduce = 3;
  // Each iteration is three receives with a send after each, and one reduction; a send is left out.
  const std::vector<std::uint64_t> issued{kRecv, kSend, kReduce, kRecv,   kSend,  kRecv,
                                          kSend, kRecv, kSend,   kReduce, kRecv,  kSend,
                                          kRecv, kSend, kRecv,   kSend,   kReduce};
  const std::vector<std::uint64_t> due{kSend, kRecv, kSend, kReduce, kRecv, kSend, kRecv};
  std::size_t support = 0;
  CHECK(kind_of(issued, due, support) == Anomaly::kSkipped);
  CHECK(support == 6);
}

TEST_CASE("two operations that changed places are an exchange, whatever lies between them") {
  constexpr std::uint64_t kTokens = 1, kExperts = 2, kNorms = 3, kGradients = 4, kLoss = 5;
  const std::vector<std::uint64_t> due{kTokens, kExperts, kNorms, kGradients, kLoss, kTokens};
  std::size_t support = 0;
  CHECK(kind_of(std::vector<std::uint64_t>{kGradients, kExperts, kNorms, kTokens, kLoss}, due,
                support) == Anomaly::kSwapped);
  CHECK(support == 5);
  // The operation that was due was not issued in the place of the operation issued instead.
  CHECK(kind_of(std::vector<std::uint64_t>{kGradients, kExperts, kNorms, kLoss, kTokens}, due,
                support) != Anomaly::kSwapped);
}
