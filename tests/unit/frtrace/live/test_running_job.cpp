// test_running_job.cpp - a running job by its rings, and as lines of a terminal.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "catch.hpp"
#include "live/running_job.hpp"
#include "live/screen.hpp"
#include "region.hpp"
#include "report/lines.hpp"

using namespace frtest;
using namespace frtrace;

namespace {

constexpr Time kNow = static_cast<Time>(Region::kUnix) + kSecond;

// A directory of rings of one job.
class Rings {
 public:
  ~Rings() { std::filesystem::remove_all(dir_); }

  void put(int rank, int issued, std::int64_t step = INT64_MIN, int attempt = 0) const {
    Region r(issued);
    fr::Header& h = r.header();
    std::snprintf(h.job, sizeof h.job, "a");
    h.pid = 100 + rank + 1000 * attempt;
    h.rank = rank;
    h.attempt = attempt;
    h.local_world_size = 4;
    h.world_size = 8;
    h.step = step;
    r.group().enqueued_ticks = 1000 + 1'000'000 * static_cast<fr::u64>(issued);
    const auto bytes = r.bytes();
    std::ofstream(folder_ + "/" + std::to_string(h.pid) + ".ring", std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  const std::string& dir() const { return dir_; }

 private:
  static std::string make_dir() {
    std::string name = "/tmp/fr-live-XXXXXX";
    return ::mkdtemp(name.data());
  }
  std::string make_folder() const {
    std::string name = dir_ + "/fr-" + std::to_string(::geteuid());
    std::filesystem::create_directory(name);
    return name;
  }
  const std::string dir_ = make_dir(), folder_ = make_folder();
};

std::string text_of(const JobNow& now, std::size_t width, std::size_t height = 0) {
  ScreenStyle style;
  style.width = width;
  style.height = height;
  style.node = "n0";
  style.time = "12:00:00";
  std::string out;
  for (const std::string& line : screen_lines(now, "MISSING    rank 3 never issued it\n", style)) {
    CHECK(columns(line) <= width);
    out += line + "\n";
  }
  return out;
}

}  // namespace

TEST_CASE("live: the front of a group, who is behind, and since when nothing moves") {
  const Rings rings;
  for (const int rank : {0, 1, 2}) {
    rings.put(rank, 7, 12);
  }
  rings.put(3, 5, 11);
  RunningJob job(rings.dir(), "a", 10 * kSecond);
  const JobNow early = job.look(kNow);
  CHECK_FALSE(early.stuck);
  CHECK(early.behind.empty());  // in a job that moves, some rank is always behind
  const JobNow now = job.look(kNow + 30 * kSecond);
  CHECK((now.ranks == 4 && now.alive == 4 && now.expected == 4 && now.world == 8));
  REQUIRE(now.groups.size() == 1);
  const GroupNow& g = now.groups[0];
  CHECK((g.label == "default_pg" && g.groups == 1 && g.ranks == 4 && g.in_flight == 4));
  CHECK((g.front == 7 && g.at == "all_reduce #7"));
  CHECK((g.lag == 2 && g.behind == std::vector<Rank>{3}));
  CHECK(now.stuck);
  REQUIRE(now.behind.size() == 1);
  CHECK((now.behind[0].rank == 3 && now.behind[0].lag == 2 && now.behind[0].step == 11));
  CHECK((now.first_step == 11 && now.last_step == 12 && now.steps_per_min == 0.0));
  const std::string text = text_of(now, 120);
  CHECK(text.find("a on n0: 4 of 4 ranks, 8 in all") == 0);
  CHECK(text.find("steps 11 to 12, 0 a minute") != std::string::npos);
  CHECK(text.find("rank 3 by 2") != std::string::npos);
  CHECK(text.find("rank 3 (pid 103), 2 behind in default_pg, at step 11") != std::string::npos);
  CHECK(text.find("MISSING    rank 3") != std::string::npos);
  text_of(now, 40, 8);  // fits
}

TEST_CASE("live: rates are of what was issued since the last look") {
  const Rings rings;
  rings.put(0, 7, 12);
  RunningJob job(rings.dir(), "a", 10 * kSecond);
  CHECK_FALSE(job.look(kNow).groups.at(0).per_s);
  rings.put(0, 27, 14);  // the same process: its ring is mapped, and rewritten in place
  const JobNow now = job.look(kNow + 10 * kSecond);
  CHECK(now.groups.at(0).per_s == Approx(2.0));
  CHECK(now.steps_per_min == Approx(12.0));
}

TEST_CASE(
    "live: of a job that was started again the last attempt counts, and the dead are told first") {
  const Rings rings;
  rings.put(0, 7);
  rings.put(0, 3, INT64_MIN, 1);
  rings.put(1, 3, INT64_MIN, 1);
  RunningJob job(rings.dir(), "a", 10 * kSecond);
  const JobNow now = job.look(kNow);
  CHECK((now.ranks == 2 && now.attempt == 1 && now.groups.at(0).front == 3));
  const JobNow dead = job.look(kNow + 100 * kSecond);
  CHECK((dead.alive == 0 && dead.behind.size() == 2 && !dead.behind[0].alive));
  CHECK(jobs_here(rings.dir(), kNow) == std::map<std::string, std::size_t>{{"a", 3}});
  CHECK(text_of(dead, 100).find("rank 0 (pid 1100) is dead") != std::string::npos);
}
