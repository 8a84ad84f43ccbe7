#include <unistd.h>

#include <catch.hpp>
#include <filesystem>
#include <fstream>

#include "../builder.hpp"
#include "input/files.hpp"
#include "input/summary/pool.hpp"
#include "input/summary/shorten.hpp"
#include "input/summary/summary.hpp"

using namespace frtest;

namespace {

constexpr int kSteps = 100;

// Rank 2 never issues the last operation.
reduce::All ranks_of(int world) {
  JobBuilder j(world);
  const int pair = j.group("1", {0, 1}, "pair");
  for (int step = 0; step < kSteps; ++step) {
    for (int r = 0; r < world; ++r) {
      j.issue(r, 0, {}, State::kCompleted).started = j.now();
      if (r < 2) {
        j.issue(r, pair, {.op = "broadcast", .shape = {1, 2, 3}}, State::kCompleted);
      }
      j.advance(0.001);
    }
  }
  for (int r = 0; r < world; ++r) {
    if (r != 2) {
      j.issue(r, 0, {.op = "all_gather", .line = 77});
    }
  }
  j.advance(90);
  j.dump();
  reduce::All all;
  for (int r = 0; r < world; ++r) {
    all.push_back(std::make_unique<RankEvidence>(j.rank(r)));
    reduce::shorten(*all.back());
  }
  return all;
}

std::span<const unsigned char> span_of(const std::string& s) {
  return bytes_of(s);
}

reduce::All decoded(const std::string& bytes, bool all_records = true) {
  std::string why;
  reduce::All all = reduce::decode(span_of(bytes), all_records, why);
  INFO(why);
  CHECK(why.empty());
  return all;
}

std::string merged(std::initializer_list<const std::string*> files) {
  reduce::All all;
  for (const std::string* file : files) {
    for (auto& e : decoded(*file)) {
      reduce::shorten(*e);
      all.push_back(std::move(e));
    }
  }
  return reduce::encode(all);
}

}  // namespace

TEST_CASE("a summary gives back what went into it") {
  reduce::All all = ranks_of(4);
  const std::string bytes = reduce::encode(all);
  CHECK(reduce::is_summary(span_of(bytes)));
  const reduce::All read = decoded(bytes);
  REQUIRE(read.size() == 4);
  for (std::size_t i = 0; i < read.size(); ++i) {
    const auto same = std::find_if(all.begin(), all.end(),
                                   [&](const auto& e) { return e->id.rank == read[i]->id.rank; });
    const RankEvidence &a = **same, &b = *read[i];
    CHECK(b.holes.reduced);
    CHECK(b.file == a.file);
    REQUIRE(a.records.size() == b.records.size());
    for (std::size_t r = 0; r < a.records.size(); ++r) {
      const Record &x = a.records[r], &y = b.records[r];
      CHECK(std::tie(x.ticket, x.seq, x.time, x.started, x.ended, x.group, x.state, x.kind) ==
            std::tie(y.ticket, y.seq, y.time, y.started, y.ended, y.group, y.state, y.kind));
      CHECK(operation_text(a, x) == operation_text(b, y));
      CHECK(user_site(a, x.stack) == user_site(b, y.stack));
      CHECK(x.shape_count == y.shape_count);
    }
  }
  CHECK(read[0]->strings.users() > 1);  // kept once
}

TEST_CASE("old operations of a summary have no times, and older ones are counted") {
  JobBuilder j(1);
  for (int i = 0; i < 3000; ++i) {
    j.issue(0, 0, {}, State::kCompleted);
    j.advance(0.01);
  }
  RankEvidence& e = j.rank(0);
  const Time last = e.records.back().time;
  reduce::shorten(e);
  CHECK(e.records.size() + e.losses.trimmed == 3000);
  CHECK(e.records.size() == 2048);
  const auto timed = std::count_if(e.records.begin(), e.records.end(),
                                   [](const Record& r) { return r.time != 0; });
  CHECK(timed == 512 + 1);  // the first one has its time, too
  CHECK(last == e.records.back().time);
  CHECK(e.records.back().seq == 3000);
}

TEST_CASE("of a large set a summary's older records are not read, and counted") {
  reduce::All all = ranks_of(3);
  const std::size_t of_first = all.front()->records.size();
  const std::string bytes = reduce::encode(all);
  const reduce::All few = decoded(bytes, false);
  REQUIRE(few.size() == 3);
  const RankEvidence& e = few.front()->id.rank == 0 ? *few.front() : *few.back();
  CHECK(e.records.size() < 48);
  CHECK(e.records.size() + e.losses.trimmed == of_first);
}

TEST_CASE("ranks of many summaries have one table, and say what they said") {
  const std::uint64_t budget = GENERATE(std::uint64_t{1}, std::uint64_t{1} << 20);
  const reduce::All all = ranks_of(6);
  const std::string dir =
      std::filesystem::temp_directory_path() / ("fr-summaries-" + std::to_string(::getpid()));
  std::filesystem::create_directories(dir);
  for (std::size_t node = 0; node < 3; ++node) {
    reduce::All of_node;
    for (std::size_t i = 2 * node; i < 2 * node + 2; ++i) {
      RankEvidence& e = *of_node.emplace_back(std::make_unique<RankEvidence>(*all[i]));
      e.strings.emplace_back("node " + std::to_string(node));
      e.groups[1].backend = static_cast<Id>(e.strings.size() - 1);
      e.threads.frames = {{true, "load", "data.py", 7 + static_cast<std::uint32_t>(node), 0}};
      ThreadStack& thread = e.threads.threads.emplace_back();
      thread.tid = 1;
      thread.stack = {0};
      e.device.comms.resize(2);
      e.device.comms[1].name = e.groups[1].backend;
      e.peers.resize(2);
      e.peers[0].rank = static_cast<Rank>(i ^ 1);  // of this node
      e.peers[1].rank = 99;
      e.peers[0].state = e.peers[1].state = PeerState::kLive;
    }
    std::ofstream(dir + "/" + std::to_string(node) + reduce::kEnding, std::ios::binary)
        << reduce::encode(of_node);
  }
  LoadOptions options;
  options.budget_records = budget;
  const LoadResult read = load_paths({dir}, options);
  std::filesystem::remove_all(dir);
  REQUIRE(read.evidence.size() == 6);
  for (const auto& e : read.evidence) {
    const auto rank = static_cast<std::size_t>(e->id.rank);
    const RankEvidence& a = *all[rank];
    if (budget != 1) {  // else some are read again, whole
      CHECK(&*e->strings == &*read.evidence.front()->strings);
    }
    CHECK(e->records.size() + e->losses.trimmed == a.records.size());
    CHECK(e->text(e->groups[1].backend) == "node " + std::to_string(rank / 2));
    CHECK(e->text(e->device.comms[1].name) == "node " + std::to_string(rank / 2));
    CHECK(where_text(e->threads, e->threads.threads[0]) ==
          "load() at data.py:" + std::to_string(7 + rank / 2));
    for (const Record& y : e->records) {
      const auto x = std::find_if(a.records.begin(), a.records.end(),
                                  [&](const Record& r) { return r.ticket == y.ticket; });
      REQUIRE(x != a.records.end());
      CHECK(operation_text(a, *x) == operation_text(*e, y));
      CHECK(user_site(a, x->stack) == user_site(*e, y.stack));
      CHECK(x->shape_count == y.shape_count);
    }
    // A peer's sign of life is not needed where evidence of that peer exists.
    CHECK(e->peers.size() == (budget == 1 && e->losses.trimmed != 0 ? 1 : 2));
    CHECK(e->peers.back().rank == 99);
  }
}

TEST_CASE("ranks of one table say what they said, and keep frames that get their names later") {
  const reduce::All all = ranks_of(3);
  reduce::All pooled;
  for (const auto& one : all) {
    RankEvidence& e = *pooled.emplace_back(std::make_unique<RankEvidence>(*one));
    e.threads.frames = {{true, "load", "data.py", 7, 0}, {false, "", "/lib/libx.so", 0, 16}};
    ThreadStack& thread = e.threads.threads.emplace_back();
    thread.tid = 1;
    thread.stack = {1, 0};
  }
  pooled[2]->threads.modules = {{"/lib/libx.so", "ab"}};
  reduce::Pool pool;
  CHECK(pool.take({pooled[0].get()}) > 0);
  CHECK(pool.take({pooled[1].get()}) == 0);  // it has nothing else
  pool.take({pooled[2].get()});
  pool.hand_out();
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const RankEvidence &a = *all[rank], &e = *pooled[rank];
    CHECK(&*e.strings == &*pooled[0]->strings);
    CHECK((&*e.threads.frames == &*pooled[0]->threads.frames) == (rank != 2));
    CHECK(where_text(e.threads, e.threads.threads[0]).starts_with("load() at data.py:7"));
    for (std::size_t i = 0; i < a.records.size(); ++i) {
      CHECK(operation_text(a, a.records[i]) == operation_text(e, e.records[i]));
      CHECK(user_site(a, a.records[i].stack) == user_site(e, e.records[i].stack));
    }
  }
  CHECK(pooled[2]->threads.frames.size() == 2);
  CHECK(pooled[2]->threads.threads[0].stack == std::vector<std::uint32_t>{1, 0});
}

TEST_CASE("summaries merge in any order to the same bytes") {
  reduce::All parts[3], all = ranks_of(7);
  for (std::size_t i = 0; i < all.size(); ++i) {
    parts[i % 3].push_back(std::move(all[i]));
  }
  all = ranks_of(7);
  const std::string whole = reduce::encode(all);
  const std::string a = reduce::encode(parts[0]), b = reduce::encode(parts[1]),
                    c = reduce::encode(parts[2]);
  const std::string ab = merged({&a, &b}), bc = merged({&b, &c});
  CHECK(merged({&ab, &c}) == whole);
  CHECK(merged({&a, &bc}) == whole);
  CHECK(merged({&c, &b, &a}) == whole);
  CHECK(merged({&whole, &b}) == whole);  // evidence that is there twice counts once
}

TEST_CASE("ranks of one class cost little") {
  reduce::All few = ranks_of(8), many = ranks_of(64);
  const std::size_t of_few = reduce::encode(few).size(), of_many = reduce::encode(many).size();
  CHECK(of_few < 4096);
  CHECK(of_many - of_few < (64 - 8) * 160);
}

TEST_CASE("a damaged summary is refused, or read in part, and no more") {
  reduce::All all = ranks_of(3);
  const std::string sound = reduce::encode(all);
  std::string why;
  for (std::size_t n = 0; n < sound.size(); n += 1 + n / 16) {
    CHECK(reduce::decode(span_of(sound.substr(0, n)), true, why).empty());
    CHECK_FALSE(why.empty());
  }
  for (std::size_t i = 0; i < sound.size(); i += 1 + i / 64) {
    std::string damaged = sound;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x55);
    (void)reduce::decode(span_of(damaged), true, why);
  }
}
