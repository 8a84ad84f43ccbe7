// test_file_name.cpp - names of dumps and rings: formatted and parsed alike.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>

#include "catch.hpp"
#include "format/file_name.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("names: formatted and parsed alike") {
  struct {
    const char* job;
    i32 attempt, rank;
    u64 number;
    const char* ending;
  } cases[] = {{"job", 0, 0, 1, "fr"},
               {"a-b_c", 3, 1023, 17, "fr"},
               {"815", 12, -1, 4242, "ring"},
               {"x", 0, 7, 999'999'999'999ull, "fr"},
               {"j", 0, 0, 0, "ring"}};
  for (const auto& c : cases) {
    char name[256];
    format_name(name, sizeof name, c.job, c.attempt, c.rank, c.number, c.ending);
    CAPTURE(name);
    NameParts parts;
    REQUIRE(parse_name(name, parts));
    CHECK(std::string(parts.job) == c.job);
    CHECK(parts.attempt == c.attempt);
    CHECK(parts.rank == c.rank);
    CHECK(parts.number == c.number);
    CHECK(parts.is_fr == (std::string(c.ending) == "fr"));
  }
  char name[256];
  format_name(name, sizeof name, "job", 0, 2, 5, "fr");
  CHECK(std::string(name) == "job.a0.r2.5.fr");
  format_name(name, sizeof name, "job", 0, 2, 5, "fr", 4711);
  CHECK(std::string(name) == "job.a0.r2.p4711.5.fr");
  NameParts twin;
  REQUIRE(parse_name(name, twin));
  CHECK(twin.rank == 2);
  CHECK(twin.pid == 4711);
  CHECK(twin.number == 5);
  CHECK_FALSE(parse_name("job.a0.r2.p.5.fr", twin));
  format_name(name, sizeof name, "job", 0, -1, 5, "fr");
  CHECK(std::string(name) == "job.a0.rx.5.fr");
}

TEST_CASE("names: a dump's from the header of a ring") {
  Header h{};
  std::memset(h.job, 'j', sizeof h.job);  // without an end: another process wrote it
  h.attempt = 3;
  h.rank = 12;
  char name[kNameBytes];
  format_dump_name(name, sizeof name, h, 7, NameParts::Beside::kDead, true);
  CHECK(std::string(name) == std::string(sizeof h.job - 1, 'j') + ".a3.r12.7.dead.fr");
  std::snprintf(h.job, sizeof h.job, "job");
  h.rank = -1;
  format_dump_name(name, sizeof name, h, 7, NameParts::Beside::kNone, false);
  CHECK(std::string(name) == "job.a3.rx.7.ring");
}

TEST_CASE("names that are not ours") {
  NameParts parts;
  for (const char* name :
       {"", ".", "job", "job.fr", ".a0.r0.1.fr", "job.a0.r0.fr", "job.a0.r0.1.txt",
        "job.a0.r0.1.fr.tmp", "job.ax.r0.1.fr", "job.a0.r.1.fr", "job.a0.r0..fr", "job.a0.r0.1",
        "job.a0.rx1.1.fr", ".job.a0.r0.1.fr.77.tmp", "job.a0.r0.99999999999999999999999.fr",
        "job.b0.r0.1.fr"}) {
    CAPTURE(name);
    CHECK_FALSE(parse_name(name, parts));
  }
  CHECK_FALSE(parse_name((std::string(300, 'j') + ".a0.r0.1.fr").c_str(), parts));
}
