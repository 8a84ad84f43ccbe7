// hangsim: jobs that hang, with known answers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "alter.hpp"
#include "case.hpp"
#include "device.hpp"
#include "scale.hpp"

namespace fs = std::filesystem;
using namespace hangsim;

namespace {

struct Options {
  std::uint64_t seed = 1;
  int count = 1, world = 0, records = 0, jobs = 0;
  std::string cls, kind, format = "both", out;
  std::string half;
  std::uint64_t rename = 0;
  int ring = INT_MAX, faults = INT_MAX;
  std::vector<int> shift;
  bool list = false, below = false;
};

const std::map<std::string, Half> kHalves = {
    {"known", Half::kKnown}, {"held_out", Half::kHeldOut}, {"all", Half::kAll}};

void write(const Options& o, std::uint64_t seed) {
  const bool slow = std::any_of(classes_slow().begin(), classes_slow().end(),
                                [&](const Class& cls) { return o.cls == cls.name; });
  Case c = slow ? make_slow_case(seed, o.cls, o.kind, o.world)
           : o.half.empty()
               ? make_case(seed, o.cls, o.kind, o.world, o.below, o.ring)
               : make_wide_case(seed, o.cls, o.kind, o.world, kHalves.at(o.half), o.faults, o.ring);
  if (o.shift.size() == 2) {
    shift_clock(c, o.shift[0] % (c.job.node(c.job.world - 1) + 1), o.shift[1] * kSecond);
  }
  if (o.rename > 0) {
    rename_all(c, o.rename);
  }
  const fs::path dir = fs::path(o.out) / c.name;
  fs::remove_all(dir);
  fs::create_directories(dir);
  if (c.earlier != nullptr) {
    write_fr(*c.earlier, DeviceView(*c.earlier), dir / "fr", 0, c.earlier->job.world);
    write_torch(*c.earlier, dir / "torch", 0, c.earlier->job.world);
  }
  if (o.format != "torch") {
    write_fr(c, DeviceView(c), dir / "fr", 0, c.job.world);
  }
  if (o.format != "fr" && !c.below) {
    write_torch(c, dir / "torch", 0, c.job.world);
  }
  write_truth(c, dir / "truth.json");
}

int run(const Options& o) {
  std::atomic<int> next{0};
  std::atomic<bool> failed{false};
  std::mutex lock;
  const auto work = [&] {
    for (int i = next++; i < o.count && !failed; i = next++) {
      try {
        write(o, o.seed + static_cast<std::uint64_t>(i));
      } catch (const std::exception& e) {
        const std::scoped_lock guard(lock);
        failed = true;
        fmt::print(stderr, "hangsim: seed {}: {}\n", o.seed + static_cast<std::uint64_t>(i),
                   e.what());
      }
    }
  };
  std::vector<std::jthread> threads;
  for (int t = 1; t < std::min(o.jobs, o.count); ++t) {
    threads.emplace_back(work);
  }
  work();
  threads.clear();
  return failed ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  o.jobs = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  CLI::App app{
      "Simulates distributed training jobs that hang, and writes their dumps with the truth "
      "beside them."};
  app.add_option("--seed", o.seed, "first seed");
  app.add_option("--count", o.count, "cases, one per seed")->check(CLI::PositiveNumber);
  app.add_option("--class", o.cls, "kind of fault, see --list; default: by seed");
  app.add_flag("--below", o.below, "of the faults below the host: devices, network; fr dumps only");
  app.add_option("--half", o.half,
                 "of the widely drawn jobs, which have seeds of their own: known, held_out or all")
      ->check(CLI::IsMember({"known", "held_out", "all"}));
  app.add_option("--faults", o.faults, "with --half: no more than so many of those of the class")
      ->check(CLI::PositiveNumber);
  app.add_option("--rename", o.rename, "ranks, hosts and groups get other names, by this seed");
  app.add_option("--ring", o.ring,
                 "no rank keeps more records; not of classes below the host and slow ones")
      ->check(CLI::PositiveNumber);
  app.add_option("--shift", o.shift, "node and seconds by which its clock is off")->expected(2);
  app.add_option("--job", o.kind, "kind of job, see --list; default: by seed");
  app.add_option("--world", o.world, "ranks; default: by seed, 4 to 32, with --below 2 to 64")
      ->check(CLI::PositiveNumber);
  app.add_option("--records", o.records,
                 "instead of cases one large set for speed: records per rank; rank 5 never comes")
      ->check(CLI::PositiveNumber);
  app.add_option("--format", o.format, "fr, torch or both")
      ->check(CLI::IsMember({"fr", "torch", "both"}));
  app.add_option("-j,--jobs", o.jobs, "threads")->check(CLI::PositiveNumber);
  app.add_option("-o,--out", o.out, "directory to write into");
  app.add_flag("--list", o.list, "names the classes and the jobs");
  CLI11_PARSE(app, argc, argv);
  if (o.list) {
    for (const Class& c : classes()) {
      fmt::print("{:14} {}\n", c.name, c.text);
    }
    fmt::print("\n--below:\n");
    for (const Class& c : classes_below()) {
      fmt::print("{:14} {}\n", c.name, c.text);
    }
    fmt::print("\n--half:\n");
    for (const Class& c : classes_wide()) {
      fmt::print("{:14} {}\n", c.name, c.text);
    }
    fmt::print("\nslow, by --class:\n");
    for (const Class& c : classes_slow()) {
      fmt::print("{:14} {}\n", c.name, c.text);
    }
    fmt::print("\njobs: {}\nknown: {}\nheld_out: {}\n", fmt::join(job_kinds(), " "),
               fmt::join(wide_job_kinds(Half::kKnown), " "),
               fmt::join(wide_job_kinds(Half::kHeldOut), " "));
    return 0;
  }
  if (o.out.empty()) {
    fmt::print(stderr, "hangsim: -o DIR is missing\n");
    return 2;
  }
  try {
    if (o.records > 0) {
      write_scale({o.world > 0 ? o.world : 1024, o.records, o.jobs, o.format, o.out});
      return 0;
    }
    return run(o);
  } catch (const std::exception& e) {
    fmt::print(stderr, "hangsim: {}\n", e.what());
    return 1;
  }
}
