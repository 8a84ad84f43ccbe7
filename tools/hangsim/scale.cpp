// scale.cpp - one large set, to measure speed.
#include "scale.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "case.hpp"
#include "device.hpp"

namespace hangsim {

namespace {

constexpr int kTensor = 8, kGuilty = 5, kSites = 40, kMoreFrames = 8;

Op all_reduce(Job& job, int group, int n) {
  Op op;
  op.what = What::kCollective;
  op.group = group;
  op.name = "all_reduce";
  op.reduce = "SUM";
  op.in = op.out = {{1024 * (1 + n % 7)}};
  op.site = job.site("train.py", 20 + n % kSites, "forward");
  op.host = 15 * kUs;
  op.step = n / kSites;
  return op;
}

std::vector<int> ranks_from(int first, int n) {
  std::vector<int> out;
  for (int i = 0; i < n; ++i) {
    out.push_back(first + i);
  }
  return out;
}

// Three reductions of the tensor group, one of all, and so on; the last one is of all.
Job small_job(int records) {
  Job job;
  job.kind = "scale";
  job.backend = "nccl";
  job.world = kTensor;
  job.ranks_per_node = kTensor;
  job.groups = {{"0", "default_pg", ranks_from(0, kTensor)}, {"1", "tp", ranks_from(0, kTensor)}};
  for (int r = 0; r < kTensor; ++r) {
    Program program;
    for (int n = 0; n < records; ++n) {
      const bool last = n + 1 == records;
      if (last && r == kGuilty) {
        Op hang;
        hang.what = What::kHang;
        program.push_back(hang);
      }
      program.push_back(all_reduce(job, last || n % 4 == 3 ? 0 : 1, n));
    }
    Op sync;
    sync.what = What::kSync;
    program.push_back(sync);
    job.programs.push_back(std::move(program));
  }
  return job;
}

}  // namespace

void write_scale(const Scale& s) {
  if (s.world % kTensor != 0 || s.world < 2 * kTensor) {
    throw std::invalid_argument("--world must be a multiple of 8, 16 at least");
  }
  Case all;
  all.cls = "missing";
  all.name = "scale";
  all.job = small_job(s.records);
  all.run = simulate(all.job, 1);
  all.fault = "host is elsewhere instead of the last all_reduce of default_pg";
  all.job.world = s.world;
  all.job.groups[0].ranks = ranks_from(0, s.world);
  const std::size_t world = static_cast<std::size_t>(s.world);
  all.plays.resize(world);
  for (int r = 0; r < s.world; ++r) {
    const bool innocent = r % kTensor == kGuilty && r != kGuilty;
    all.plays[static_cast<std::size_t>(r)] = innocent ? 0 : r % kTensor;
  }
  for (Evidence* e : {&all.fr, &all.torch}) {
    e->ring = s.records;
    e->more_frames = kMoreFrames;
    e->clock.assign(world, 0);
    e->at.assign(world, all.run.last_event + (e == &all.fr ? 60 : 600) * kSecond);
  }
  all.fr_truth.answer = all.torch_truth.answer = {"missing", {kGuilty}};
  all.fr_truth.faulty = all.torch_truth.faulty = {kGuilty};

  const std::filesystem::path out(s.out);
  std::filesystem::create_directories(out);
  write_truth(all, out / "truth.json");
  std::atomic<int> next{0};
  const auto work = [&] {
    Case mine = all;              // its operations stay those of `all`
    const DeviceView view(mine);  // to it, one tensor group is like the other
    for (int first = next.fetch_add(kTensor); first < s.world; first = next.fetch_add(kTensor)) {
      mine.job.groups[1] = {std::to_string(1 + first / kTensor), "tp", ranks_from(first, kTensor)};
      if (s.format != "torch") {
        write_fr(mine, view, out / "fr", first, first + kTensor);
      }
      if (s.format != "fr") {
        write_torch(mine, out / "torch", first, first + kTensor);
      }
    }
  };
  std::vector<std::jthread> threads;
  for (int t = 1; t < s.jobs; ++t) {
    threads.emplace_back(work);
  }
  work();
}

}  // namespace hangsim
