// live_screen [RANKS] - how long `frtrace live` takes from the rings of a node, and from the lines of
// nodes, to the lines of a terminal. The rings are small ones made by hand, two groups of operations
// in each; every other one has moved between two looks.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "frtrace/region.hpp"
#include "live/job_lines.hpp"
#include "live/running_job.hpp"
#include "live/screen.hpp"

namespace {

using namespace frtrace;

constexpr Time kNow = static_cast<Time>(frtest::Region::kUnix) + kSecond;
constexpr int kLooks = 20, kOfNode = 8;

void put(const std::string& folder, int rank, int world, int issued) {
  frtest::Region r(issued);
  fr::Header& h = r.header();
  std::snprintf(h.job, sizeof h.job, "a");
  h.pid = 100'000 + rank;
  h.rank = rank;
  h.world_size = h.local_world_size = world;
  h.step = issued;
  const auto bytes = r.bytes();
  const std::string path = fmt::format("{}/{}.ring", folder, h.pid);
  // Over what a reader may have mapped.
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  if (!file) {
    file.open(path, std::ios::binary | std::ios::out);
  }
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

double ms_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

template <class Look>
void measure(const char* what, int ranks, const std::string& folder, Look&& look) {
  ScreenStyle style;
  style.height = 50;
  look();  // the first one maps the rings
  double worst = 0, all = 0;
  std::size_t lines = 0;
  for (int k = 1; k <= kLooks; ++k) {
    for (int rank = 0; rank < ranks; rank += 2) {
      put(folder, rank, ranks, 5 + k % 2);
    }
    const auto begin = std::chrono::steady_clock::now();
    lines += screen_lines(look(), "nothing stands still", style).size();
    const double ms = ms_since(begin);
    worst = std::max(worst, ms);
    all += ms;
  }
  fmt::print("live, {} ranks {}: {:.1f} ms a screen, {:.1f} at most ({} lines)\n", ranks, what,
             all / kLooks, worst, lines / kLooks);
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 1024;
  char name[] = "/dev/shm/fr-bench-XXXXXX";
  const std::string dir = ::mkdtemp(name);
  const std::string folder = fmt::format("{}/fr-{}", dir, ::geteuid());
  std::filesystem::create_directory(folder);
  for (int rank = 0; rank < ranks; ++rank) {
    put(folder, rank, ranks, 5);
  }
  Time now = kNow;
  RunningJob here(dir, "a", kSecond);
  measure("by their rings", ranks, folder, [&] { return here.look(now += kSecond); });
  // All nodes' lines from one: what 128 would send, a rank's change in a line's time.
  JobLines merged(kSecond);
  int changed = 0;
  measure(fmt::format("by lines of {} nodes", ranks / kOfNode).c_str(), ranks, folder, [&] {
    now += kSecond;
    ++changed;
    for (int rank = 0; rank < ranks; ++rank) {
      merged.add(fmt::format("n{}", rank / kOfNode),
                 fmt::format(R"({{"frtrace":"lines/1","job":"a","attempt":0,"groups":{{"0":)"
                             R"({{"name":"0","desc":"default_pg","instance":1,"n_ranks":{}}}}},)"
                             R"("ranks":{{"{}":{{"pid":1,"alive":true,"step":{},"groups":)"
                             R"({{"0":[{},1,1,{}.5,1.5,0,0]}}}}}}}})",
                             ranks, rank, changed, changed, now / kSecond));
    }
    return merged.look(now);
  });
  std::filesystem::remove_all(dir);
}
