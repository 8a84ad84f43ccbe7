// node_summaries DUMPS RANKS OUT - summaries of a large job's nodes, as `frtrace reduce` writes them:
// a file per node of 8 ranks. DUMPS are those of 16 ranks by `hangsim --records N`: node 0, which has
// the guilty rank, and node 1, which all other nodes play over again, each rank with times of its own.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <random>

#include "input/files.hpp"
#include "input/summary/shorten.hpp"
#include "input/summary/summary.hpp"

namespace {

using namespace frtrace;

constexpr int kOfNode = 8;

std::uint32_t add_string(RankEvidence& e, std::string text) {
  e.strings.push_back(std::move(text));
  return static_cast<std::uint32_t>(e.strings.size() - 1);
}

// The clocks of nodes differ, and no two ranks issue at the same nanosecond.
void shift_times(RankEvidence& e, Time by, std::mt19937_64& random) {
  const auto move = [&](Time& t, Time more) { t += t == 0 ? 0 : by + more; };
  std::uniform_int_distribution<Time> some(0, 7'000);
  for (Record& r : e.records) {
    const Time late = some(random);
    move(r.time, late), move(r.started, late), move(r.ended, late + some(random));
  }
  for (GroupEvidence& g : e.groups) {
    const Time late = some(random);
    for (Time* t : {&g.created, &g.enqueued_time, &g.started_time, &g.completed_time}) {
      move(*t, late);
    }
  }
  move(e.written, some(random) * 1000), move(e.id.start, some(random) * 1'000'000);
}

std::unique_ptr<RankEvidence> played_again(const RankEvidence& of, int node, int ranks,
                                           std::mt19937_64& random, Time clock) {
  auto e = std::make_unique<RankEvidence>(of);
  const int local = of.id.rank % kOfNode, rank = node * kOfNode + local;
  e->file = fmt::format("fr-dumps/scale.a0.r{}.1.fr", rank);
  e->id.rank = rank;
  e->id.world_size = ranks;
  e->id.host = fmt::format("node{:05}", node);
  e->id.boot_id = fmt::format("boot-{}", node);
  e->id.pid += 3000 + static_cast<int>(random() % 1000) * kOfNode;
  e->groups[1].n_ranks = ranks;
  e->groups[1].own_rank = rank;
  e->groups[1].ranks = {{0, static_cast<std::uint32_t>(ranks), 1}};
  e->groups[2].name = add_string(*e, std::to_string(1 + node));
  e->groups[2].ranks = {{node * kOfNode, kOfNode, 1}};
  for (PeerEvidence& p : e->peers) {
    p.rank = node * kOfNode + p.rank % kOfNode;
  }
  shift_times(*e, clock, random);
  return e;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    return 2;
  }
  LoadOptions options;
  options.all_records = true;
  const LoadResult input = load_paths({argv[1]}, options);
  std::vector<const RankEvidence*> pattern(2 * kOfNode);
  for (const auto& e : input.evidence) {
    pattern.at(static_cast<std::size_t>(e->id.rank)) = e.get();
  }
  const int ranks = std::atoi(argv[2]);
  std::mt19937_64 random(1);
  for (int node = 0; node * kOfNode < ranks; ++node) {
    const Time clock = static_cast<Time>(random() % 2'000'000);
    reduce::All all;
    for (int i = 0; i < kOfNode; ++i) {
      const std::size_t from = static_cast<std::size_t>(node == 0 ? i : kOfNode + i);
      all.push_back(played_again(*pattern.at(from), node, ranks, random, clock));
      reduce::shorten(*all.back());
    }
    std::ofstream(fmt::format("{}/node{:05}{}", argv[3], node, reduce::kEnding), std::ios::binary)
        << reduce::encode(all);
  }
}
