// process_dump_store.cpp - where dumps go and which are kept.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "catch.hpp"
#include "support.hpp"
#include "watch/ranks.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("dumps kept: the first and the last ones") {
  Scene scene;
  Child child = scene.start(0, {{"FR_KEEP_DUMPS", "3"}}, [] {
    child_group();
    for (int i = 0; i < 7; ++i) {
      fr_dump("x", nullptr, 0);
    }
    return 0;
  });
  CHECK(child.wait().status == 0);
  CHECK(scene.dumps() ==
        std::vector<std::string>{"job.a0.r0.1.fr", "job.a0.r0.6.fr", "job.a0.r0.7.fr"});
}

TEST_CASE("dumps kept: a dump just written is there, whatever FR_KEEP_DUMPS") {
  for (const char* keep : {"1", "2", "0"}) {
    Scene scene;
    Child child = scene.start(0, {{"FR_KEEP_DUMPS", keep}}, [] {
      child_group();
      for (int i = 0; i < 4; ++i) {
        char path[4096];
        if (fr_dump("x", path, sizeof path) != 1 || !exists(path)) {
          return i + 1;
        }
      }
      return 0;
    });
    CAPTURE(keep);
    CHECK(child.wait().status == 0);
    CHECK(exists(scene.dump_path(0, 1)));
  }
}

TEST_CASE("dumps kept: those of other ranks, attempts and jobs stay") {
  Scene scene;
  mkdir(scene.dump_dir.c_str(), 0700);
  const std::vector<std::string> foreign = {"job.a0.r1.1.fr", "job.a1.r0.1.fr", "other.a0.r0.1.fr",
                                            "notes.txt"};
  for (const auto& name : foreign) {
    write_file(scene.dump_dir + "/" + name, "x");
  }
  Child child = scene.start(0, {{"FR_KEEP_DUMPS", "2"}}, [] {
    child_group();
    for (int i = 0; i < 6; ++i) {
      fr_dump("x", nullptr, 0);
    }
    return 0;
  });
  CHECK(child.wait().status == 0);
  for (const auto& name : foreign) {
    CHECK(read_file(scene.dump_dir + "/" + name) == "x");
  }
  CHECK(scene.dumps().size() == 3 + 2);
}

TEST_CASE("an unwritable dump directory: said once, the temporary directory is used") {
  Scene scene;
  Child child = scene.start(0, {{"FR_DUMP_DIR", "/proc/fr-none"}}, [] {
    child_group();
    char path[4096];
    const bool good =
        fr_dump("a", path, sizeof path) == 1 && exists(path) && fr_dump("b", nullptr, 0) == 1;
    return good ? 0 : 1;
  });
  CHECK(child.wait().status == 0);
  const std::string dir = scene.tmp + "/fr-dumps-" + std::to_string(geteuid()) + "/job";
  CHECK(list_ending(dir, ".fr").size() == 2);
  const std::string log = scene.log(0);
  CHECK(log.find("cannot write dumps to /proc/fr-none") != std::string::npos);
  CHECK(log.find("cannot write dumps", log.find("cannot write dumps") + 1) == std::string::npos);
}

TEST_CASE("a dump directory that vanishes is made again") {
  Scene scene;
  Child child = scene.start(0, {}, [&] {
    child_group();
    fr_dump("a", nullptr, 0);
    unlink(scene.dump_path(0, 1).c_str());
    rmdir(scene.dump_dir.c_str());
    return fr_dump("b", nullptr, 0) == 1 ? 0 : 1;
  });
  CHECK(child.wait().status == 0);
  CHECK(scene.dumps().size() == 1);
}

TEST_CASE("no directory at all can be written: said, the process is unharmed, the ring stays") {
  Scene scene;
  Child child = scene.start(0, {{"FR_DUMP_DIR", "/proc/fr-none"}, {"TMPDIR", "/proc/fr-none"}}, [] {
    child_begin(child_group());
    return fr_dump("a", nullptr, 0) == 0 ? 0 : 1;
  });
  CHECK(child.wait().status == 0);
  CHECK(scene.rings().size() == 1);
  CHECK(scene.log(0).find("cannot write dumps") != std::string::npos);
}

TEST_CASE("without FR_SHM_DIR the ring is anonymous, which the log, status and dump say") {
  Scene scene;
  Child child = scene.start(0, {{"FR_SHM_DIR", "/proc/fr-none"}}, [] {
    child_begin(child_group());
    char json[65536];
    fr_status(json, sizeof json);
    return std::string(json).find("\"memory\": \"anonymous\"") != std::string::npos ? 0 : 1;
  });
  CHECK(child.wait().status == 0);
  CHECK(scene.log(0).find("anonymous memory") != std::string::npos);
  REQUIRE(scene.dumps().size() == 1);
  CHECK(Dump::load(scene.dump_path(0, 1))["identity"]["memory"].text() == "anonymous");
}
