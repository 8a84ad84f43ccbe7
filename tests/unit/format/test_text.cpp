// test_text.cpp - formatting without stdio.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>

#include "catch.hpp"
#include "format/text.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("format: what it knows, cut to fit") {
  char out[64];
  CHECK(format(out, sizeof out, "%s.%d.%u.%l%%", "a", -12, 4'000'000'000u, u64{1} << 63) == 37);
  CHECK(std::string(out) == "a.-12.4000000000.9223372036854775808%");
  CHECK(format(out, 4, "%s", "abcdef") == 3);
  CHECK(std::string(out) == "abc");
  format(out, sizeof out, "%d", INT_MIN);
  CHECK(std::string(out) == "-2147483648");
}
