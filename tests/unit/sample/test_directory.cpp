// test_directory.cpp - walking and making directories without allocation.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>

#include "catch.hpp"
#include "sample/directory.hpp"
#include "support.hpp"
#include "watch/durable_write.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("each_entry visits every name once, many of them too") {
  TempDir tmp;
  std::vector<std::string> expected;
  for (int i = 0; i < 1'000; ++i) {
    expected.push_back("file-with-a-rather-long-name-" + std::to_string(i));
    write_file(tmp.path() + "/" + expected.back(), "");
  }
  std::sort(expected.begin(), expected.end());
  std::vector<std::string> seen;
  CHECK(each_entry(
      tmp.path().c_str(),
      [](const char* name, void* c) {
        static_cast<std::vector<std::string>*>(c)->emplace_back(name);
      },
      &seen));
  std::sort(seen.begin(), seen.end());
  CHECK(seen == expected);
  CHECK_FALSE(each_entry("/nowhere", [](const char*, void*) {}, nullptr));
}

TEST_CASE("make_directories: nested, present, impossible") {
  TempDir tmp;
  const std::string deep = tmp.path() + "/x//y/z/";
  CHECK(make_directories(deep.c_str()));
  CHECK(exists(tmp.path() + "/x/y/z"));
  CHECK(make_directories(deep.c_str()));
  CHECK_FALSE(make_directories("/proc/fr-none"));
  CHECK_FALSE(make_directories(std::string(2 * PATH_MAX, 'x').c_str()));
}
