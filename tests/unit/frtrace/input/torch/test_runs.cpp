// Which of a directory's PyTorch dumps are of one run.
#include <memory>
#include <vector>

#include "catch.hpp"
#include "input/torch/naming.hpp"

using namespace frtrace;

namespace {

// n all_reduces, one a second, each late by up to `jitter`.
std::unique_ptr<RankEvidence> rank_file(int n, Time begin, Time jitter) {
  auto e = std::make_unique<RankEvidence>();
  e->strings = {"", "0", "all_reduce"};
  e->groups.resize(2);
  e->groups[1].name = 1;
  for (int i = 0; i < n; ++i) {
    Record r;
    r.kind = Kind::kCollective;
    r.state = State::kCompleted;
    r.group = 1;
    r.op = 2;
    r.seq = static_cast<std::uint64_t>(i) + 1;
    r.time = begin + static_cast<Time>(i) * kSecond + jitter * static_cast<Time>(i % 3);
    e->records.push_back(r);
  }
  return e;
}

std::vector<std::uint64_t> runs(const std::vector<std::unique_ptr<RankEvidence>>& files,
                                std::size_t of_newest) {
  TorchSet all;
  std::vector<std::uint64_t> out;
  for (const auto& e : files) {
    all.push_back(e.get());
  }
  CHECK(newest_run(all).size() == of_newest);
  for (const auto& e : files) {
    out.push_back(e->id.run);
  }
  return out;
}

}  // namespace

TEST_CASE("files that an earlier run left are told by their times") {
  constexpr Time kNow = 10'000 * kSecond, kHour = 3600 * kSecond;
  std::vector<std::unique_ptr<RankEvidence>> files;
  files.push_back(rank_file(20, kNow, kSecond / 100));
  files.push_back(rank_file(20, kNow - kHour, kSecond / 10));
  files.push_back(rank_file(18, kNow + kSecond / 20, kSecond / 100));
  files.push_back(rank_file(0, 0, 0));  // its time is not known
  CHECK(runs(files, 3) == std::vector<std::uint64_t>{2, 1, 2, 2});
  CHECK(files[0]->holes.run_by_clock);
}

TEST_CASE("a clock that is off makes no other run") {
  constexpr Time kNow = 10'000 * kSecond, kHour = 3600 * kSecond;
  std::vector<std::unique_ptr<RankEvidence>> files;
  files.push_back(rank_file(20, kNow, kSecond / 100));
  files.push_back(rank_file(18, kNow - kHour, 0));
  CHECK(runs(files, 2) == std::vector<std::uint64_t>{0, 0});
}

TEST_CASE("half of the files are of an earlier run only if they stand elsewhere") {
  constexpr Time kNow = 10'000 * kSecond, kHour = 3600 * kSecond;
  std::vector<std::unique_ptr<RankEvidence>> files;
  files.push_back(rank_file(2, kNow, 0));
  files.push_back(rank_file(2, kNow - kHour, 0));
  CHECK(runs(files, 2) == std::vector<std::uint64_t>{0, 0});
  files[1] = rank_file(3, kNow - kHour, 0);
  CHECK(runs(files, 1) == std::vector<std::uint64_t>{2, 1});
  files[1] = rank_file(2, kNow - kHour, 0);
  files.push_back(rank_file(2, kNow, 0));  // it is one of three now
  files[0]->id.run = 0;
  CHECK(runs(files, 2) == std::vector<std::uint64_t>{2, 1, 2});
}

TEST_CASE("how far a cut file goes tells nothing of its run") {
  constexpr Time kNow = 10'000 * kSecond, kHour = 3600 * kSecond;
  std::vector<std::unique_ptr<RankEvidence>> files;
  files.push_back(rank_file(4, kNow, 0));
  files.push_back(rank_file(4, kNow - kHour, 0));
  files.push_back(rank_file(2, kNow - kHour, 0));
  CHECK(runs(files, 1) == std::vector<std::uint64_t>{2, 1, 1});
  files[2]->holes.truncated = true;
  for (const auto& e : files) {
    e->id.run = 0;
  }
  CHECK(runs(files, 3) == std::vector<std::uint64_t>{0, 0, 0});
}

TEST_CASE("ranks that wait for each other's message are of one run") {
  constexpr Time kNow = 10'000 * kSecond, kHour = 3600 * kSecond;
  std::vector<std::unique_ptr<RankEvidence>> files;
  for (const int rank : {0, 1}) {
    files.push_back(rank_file(0, 0, 0));
    RankEvidence& e = *files.back();
    e.groups[1].own_rank = rank;
    LaneEvidence lane;
    lane.group = 1;
    lane.peer = 1 - rank;
    lane.send = rank == 0;
    lane.enqueued = 2;
    lane.completed = 1;
    e.lanes.push_back(lane);
    Record r;
    r.kind = rank == 0 ? Kind::kSend : Kind::kRecv;
    r.group = 1;
    r.time = kNow + rank * kHour;
    e.records.push_back(r);
  }
  CHECK(runs(files, 2) == std::vector<std::uint64_t>{0, 0});
  files[0]->lanes[0].completed = 2;
  CHECK(runs(files, 1) == std::vector<std::uint64_t>{1, 2});
}

TEST_CASE("files of one moment are of one run") {
  constexpr Time kNow = 10'000 * kSecond;
  std::vector<std::unique_ptr<RankEvidence>> files;
  files.push_back(rank_file(20, kNow, kSecond));
  files.push_back(rank_file(2, kNow + 40 * kSecond, 0));
  CHECK(runs(files, 2) == std::vector<std::uint64_t>{0, 0});
}
