// test_bounded.cpp - a look at a file that may never answer, made by a child.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <msgpack.hpp>
#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "live/lock_files.hpp"
#include "model/hints.hpp"
#include "system/bounded.hpp"
#include "thread_stacks.hpp"

using namespace frtest;
using namespace std::chrono_literals;

TEST_CASE("a file that does not answer holds nobody up") {
  std::vector<std::string> heard;
  const auto hear = [&](std::string_view text) { heard.emplace_back(text); };
  CHECK(in_child(
      [](const Say& say) {
        say("one");
        say("");
        say(std::string(100'000, 'x'));
      },
      hear));
  REQUIRE(heard.size() == 3);
  CHECK(heard[1].empty());
  CHECK(heard[2].size() == 100'000);
  heard.clear();
  CHECK_FALSE(in_child(
      [](const Say& say) {
        say("before");
        ::pause();
      },
      hear, std::chrono::milliseconds(100)));
  CHECK(heard == std::vector<std::string>{"before"});
  CHECK_FALSE(given_up_on("/proc/self"));
  give_up_on("/proc/1/no such file");
  CHECK(given_up_on("/proc/self"));
  CHECK_FALSE(given_up_on("/"));
}

TEST_CASE("a program that does not end is given up") {
  const Output said = output_of({"sh", "-c", "echo out; echo err >&2; exit 3"}, 10s);
  CHECK((said.ended && said.status == 3));
  CHECK(said.text == "out\nerr\n");
  const Output hangs = output_of({"sh", "-c", "echo begun; exec sleep 60"}, 200ms);
  CHECK_FALSE(hangs.ended);
  CHECK(output_of({"no such program"}, 10s).status == 127);
}
