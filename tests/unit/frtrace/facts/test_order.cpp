// test_order.cpp - which operation usually comes next.
#include "catch.hpp"
#include "facts/order.hpp"

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
