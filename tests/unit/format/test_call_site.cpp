// test_call_site.cpp - the frame of the user's code, and an operation in one line.
#include <cstdlib>
#include <random>

#include "catch.hpp"
#include "format/call_site.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("the user's frame is the first outside torch and fr") {
  Rig rig(64);
  const auto frame = [&](const char* file, u32 line) {
    return fr_frame{rig.intern(file), rig.intern("f"), line};
  };
  const fr_frame frames[] = {frame("/usr/lib/python3/dist-packages/torch/distributed/c10d.py", 1),
                             frame("/venv/lib/python3.11/site-packages/fr/__init__.py", 2),
                             frame("<frozen runpy>", 3), frame("/home/u/train.py", 4),
                             frame("/home/u/main.py", 5)};
  CHECK(user_site(rig.view, rig.tables->stack(frames, 5)).line == 4);
  CHECK(user_site(rig.view, rig.tables->stack(frames, 3)).line == 1);  // only libraries: innermost
  CHECK(user_site(rig.view, 0).file.empty());
}

TEST_CASE("what hangs is described in one line, cut to fit") {
  Rig rig(64);
  const u32 g = rig.group("0");
  const fr_frame f = {rig.intern("/home/u/train.py"), rig.intern("step"), 91};
  fr_op op = make_op(g, FR_COLLECTIVE, rig.intern("all_reduce"));
  op.stack = rig.tables->stack(&f, 1);
  const RecordCopy r = rig.read(rig.begin(op));
  char text[200];
  describe(rig.view, r, text, sizeof text);
  CHECK(std::string(text) == "all_reduce #1 of desc at train.py:91 (step)");
  for (std::size_t n = 1; n < 50; ++n) {
    std::vector<char> small(n, 'x');
    describe(rig.view, r, small.data(), n);
    CHECK(std::string(small.data()) == std::string(text).substr(0, n - 1));
  }
  RecordCopy oldest;
  rig.begin(op);
  REQUIRE(oldest_in_flight(rig.view, g, oldest));
  CHECK(oldest.payload.seq == 1);
  REQUIRE(last_operation(rig.view, oldest));
  CHECK(oldest.payload.seq == 2);
}
