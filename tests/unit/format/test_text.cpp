// test_text.cpp - formatting without stdio.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstring>

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

TEST_CASE("format_line: one line that a terminal may get, cut to fit") {
  const auto line = [](const char* text, std::size_t size = 64) {
    char out[64];
    const std::size_t n = format_line(out, size, text, std::strlen(text));
    CHECK(std::strlen(out) == n);
    return std::string(out);
  };
  CHECK(line("a\n\tb\x1b[1m\xc2\x9b"
             "1\xe2\x80\xae gr\xc3\xbc\xc3\x9f"
             "e") ==
        "a  b\\x1b[1m\\xc2\\x9b1\\xe2\\x80\\xae gr\xc3\xbc\xc3\x9f"
        "e");
  CHECK(line("ab\x1b", 5) == "ab");
  CHECK(line("ab\x1b", 7) == "ab\\x1b");
  CHECK(line("a\xc3\xbc", 3) == "a");
}
