// kill_stress.cpp - processes that record at full speed, stopped and killed at any instant: what
// reads as whole is whole, and what is said to be lost is what is missing.
//
// Every member of an operation follows from its value: the writer's number and how many it has
// issued before. The board, memory that outlives the writers, has the true counts.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <thread>

#include "../unit/catch.hpp"
#include "../unit/support.hpp"
#include "format/hash.hpp"
#include "stress.hpp"

using namespace fr;
using namespace fr::test;

namespace {

constexpr u32 kWriters = 8;
constexpr u32 kShared = kWriters;  // the group of all; writer w's own group is w
constexpr u32 kGroupsOfAll = kWriters + 1;
constexpr u32 kLongShape = 40;  // words, in the blob ring
constexpr u32 kFinished = 61;   // cell of the board: number of writers that have finished
constexpr u32 kEnd = 62;        // the process may end

// The contents of an operation, derived from its value.
struct Expected {
  explicit Expected(u64 of)
      : value(of),
        writer(static_cast<u32>(of >> 32)),
        nth(of & 0xffffffff),
        group(nth % 4 == 0 ? kShared : writer),
        kind(nth % 7 == 0 ? FR_SEND : FR_COLLECTIVE),
        result(nth % 11 == 0 ? FR_REFUSED : FR_OK),
        n_shape(nth % 2 == 0 ? 6 : kLongShape) {}
  u64 word(u32 n) const { return mix(n, value); }

  u64 value;
  u32 writer;
  u64 nth;  // of its writer, from 1
  u32 group;
  u16 kind;
  int result;
  u32 n_shape;
};

void record(const fr_group_t* groups, u64 value) {
  const Expected e(value);
  fr_op op = make_op(groups[e.group], e.kind);
  u32 shape[kLongShape];
  for (u32 i = 0; i < kLongShape; ++i) {
    shape[i] = static_cast<u32>(value + i);
  }
  op.in_numel = value;
  op.out_numel = e.word(7);
  op.timeout_ms = static_cast<u32>(e.word(8));
  op.peer = static_cast<i32>(e.writer);
  op.in_dtype = static_cast<u8>(e.word(9));
  op.reduce_op = static_cast<u8>(e.word(10));
  op.shape = shape;
  op.n_shape = e.n_shape;
  fr_ticket t;
  fr_begin(&op, &t);
  if (e.nth % 3 == 0) {
    fr_started(&t);
  }
  fr_end(&t, e.result, e.result == FR_OK ? nullptr : e.nth % 2 == 0 ? "even" : "odd");
}

// A process with its writers; each issues `limit` operations.
Child start_writers(Scene& scene, u32 n_records, u64 limit) {
  return scene.start(0, {{"FR_BUFFER_SIZE", std::to_string(n_records)}}, [&scene, limit] {
    fr_group_t groups[kGroupsOfAll];
    for (u32 g = 0; g < kGroupsOfAll; ++g) {
      groups[g] = child_group(std::to_string(g).c_str());
    }
    std::vector<std::thread> writers;
    for (u32 w = 0; w < kWriters; ++w) {
      writers.emplace_back([&, w] {
        for (u64 nth = 1; nth <= limit; ++nth) {
          record(groups, static_cast<u64>(w) << 32 | nth);
          scene.board.cell[w].store(nth, std::memory_order_release);
        }
        scene.board.cell[kFinished].fetch_add(1);
      });
    }
    for (auto& writer : writers) {
      writer.join();
    }
    sleep_for_ever();
    return 0;
  });
}

// Counts of the whole and of the damaged contents of a ring.
struct Seen {
  u64 whole = 0;
  u64 mixed = 0;  // members of two operations in one
  u64 being_written = 0;
  u64 shapes = 0;
  u64 shapes_mixed = 0;
  u64 statuses = 0;
  u64 statuses_mixed = 0;
  u64 without_end = 0;  // whole, and not known to have ended
  u64 twice = 0;
  u64 kept[kGroupsOfAll] = {};  // operations
  std::set<u64> values;

  void add(const Seen& other) {
    whole += other.whole;
    mixed += other.mixed;
    being_written += other.being_written;
    shapes += other.shapes;
    shapes_mixed += other.shapes_mixed;
    statuses += other.statuses;
    statuses_mixed += other.statuses_mixed;
    twice += other.twice;
  }
  bool is_right() const { return mixed + shapes_mixed + statuses_mixed + twice == 0; }
};

// row_of: of each group.
void look_at(const RecordCopy& r, const View& view, const u32* row_of, Seen& seen) {
  const Payload& p = r.payload;
  const Expected e(p.in_numel);
  ++seen.whole;
  if (e.writer >= kWriters || p.group != row_of[e.group] || p.kind != e.kind ||
      p.out_numel != e.word(7) || p.timeout_ms != static_cast<u32>(e.word(8)) ||
      p.peer != static_cast<i32>(e.writer) || p.in_dtype != static_cast<u8>(e.word(9)) ||
      p.reduce_op != static_cast<u8>(e.word(10)) || p.n_shape != e.n_shape) {
    ++seen.mixed;
    return;
  }
  ++seen.kept[e.group];
  seen.twice += seen.values.insert(e.value).second ? 0 : 1;
  if (r.shape != nullptr) {
    ++seen.shapes;
    bool good = r.n_shape == e.n_shape;
    for (u32 i = 0; i < r.n_shape && good; ++i) {
      good = r.shape[i] == static_cast<u32>(e.value + i);
    }
    seen.shapes_mixed += good ? 0 : 1;
  } else {
    seen.shapes_mixed += e.n_shape == kLongShape ? 0 : 1;  // words in the record cannot be lost
  }
  const bool has_ended =
      r.has_status && (r.state == State::kCompleted || r.state == State::kFailed);
  seen.without_end += has_ended ? 0 : 1;
  if (!r.has_status) {
    return;
  }
  ++seen.statuses;
  const char* error = e.result == FR_OK ? "" : e.nth % 2 == 0 ? "even" : "odd";
  const bool in_order = (r.started_ticks == 0 || r.started_ticks >= p.ticks) &&
                        (r.ended_ticks == 0 || r.ended_ticks >= p.ticks);
  const bool good = !has_ended || ((r.state == State::kFailed) == (e.result != FR_OK) &&
                                   view.string(r.error) == error && r.end_tid == p.tid);
  seen.statuses_mixed += good && in_order ? 0 : 1;
}

// The row of each group, by its name; false where one is not there.
bool find_rows(const View& view, u32 (&row_of)[kGroupsOfAll]) {
  u32 found = 0;
  for (u32 id = 1; id < view.n_groups(); ++id) {
    const std::string_view name = view.string(view.group(id)->name);
    if (name.size() == 1 && name[0] >= '0' && name[0] < static_cast<char>('0' + kGroupsOfAll)) {
      row_of[name[0] - '0'] = id;
      ++found;
    }
  }
  return found == kGroupsOfAll;
}

Seen read_ring(const View& view) {
  Seen seen;
  u32 row_of[kGroupsOfAll] = {};
  if (!find_rows(view, row_of)) {
    seen.mixed = 1;
    return seen;
  }
  RecordCopy r;
  for (u32 slot = 0; slot < view.n_slots(); ++slot) {
    const Slot found = view.read(slot, r);
    seen.being_written += found == Slot::kTorn ? 1 : 0;
    if (found == Slot::kWhole && r.payload.kind <= FR_RECV) {
      look_at(r, view, row_of, seen);
    }
  }
  return seen;
}

// Operations that the writers say they have issued, by group.
struct True {
  explicit True(const Board& board) {
    for (u32 w = 0; w < kWriters; ++w) {
      nth[w] = board.cell[w].load(std::memory_order_acquire);
      of_group[w] = nth[w] - nth[w] / 4;
      of_group[kShared] += nth[w] / 4;
    }
  }
  u64 nth[kWriters];
  u64 of_group[kGroupsOfAll] = {};
};

// Does the ring, in which nothing moves, say what is true? Each writer may be in the middle of one
// operation, `open`, or have ended.
bool is_accounted(const View& view, const Seen& seen, const True& truth, bool open) {
  const Header& h = view.header();
  u32 row_of[kGroupsOfAll] = {};
  bool good = find_rows(view, row_of);
  u64 recorded = 0;
  for (u32 id = 0; id < view.n_groups(); ++id) {
    recorded += view.group(id)->issued.load() >> kIndexShift;
  }
  const u64 share = view.n_slots() / (2 * view.n_groups());
  const u64 quota = share < kQuietQuota ? share : kQuietQuota;
  for (u32 g = 0; g < kGroupsOfAll && good; ++g) {
    const GroupRow& row = *view.group(row_of[g]);
    const u64 issued = (row.issued.load() & kSeqMask) + row.p2p_issued.load();
    const u64 slack = !open ? 0 : g == kShared ? kWriters : 1;
    // an operation between its two counters is seen by one of them
    good = issued >= truth.of_group[g] && issued <= truth.of_group[g] + slack &&
           seen.kept[g] <= issued &&
           seen.kept[g] + slack + row.dropped.load() >= (issued < quota ? issued : quota);
  }
  for (const u64 value : seen.values) {
    const Expected e(value);
    good = good && e.nth <= truth.nth[e.writer] + (open ? 1 : 0);
  }
  // Every ticket is a record's or was passed over. A writer in the middle is short of one counter.
  const u64 tickets = h.head.load();
  const u64 counted = recorded + h.skipped.load();
  const u64 apart = tickets > counted ? tickets - counted : counted - tickets;
  return good && apart <= (open ? kWriters : 0) && seen.being_written <= (open ? kWriters : 0) &&
         (open || seen.without_end <= h.status_lost.load());
}

// The dump that another process made of a dead process's ring agrees with the ring.
bool is_same(const Dump& dump, const Seen& seen) {
  std::map<std::string, std::size_t> at;
  const Node fields = dump["records"]["fields"];
  for (std::size_t f = 0; f < fields.size(); ++f) {
    at[fields[f].text()] = f;
  }
  const Node rows = dump["records"]["rows"];
  u64 same = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Node row = rows[i];
    if (row.is_nil()) {
      continue;
    }
    const std::string kind = row[at["kind"]].text();
    if (kind != "collective" && kind != "send") {
      continue;
    }
    const Expected e(row[at["in_numel"]].natural());
    same += seen.values.count(e.value) == 1 && row[at["out_numel"]].natural() == e.word(7) &&
                    (kind == "send") == (e.kind == FR_SEND)
                ? 1
                : 0;
  }
  bool good = same == seen.values.size() && dump["losses"]["torn"].natural() == seen.being_written;
  const auto cell = [&](std::size_t g, const char* name) {
    return dump.cell("groups", g, name).natural();
  };
  for (std::size_t g = 1; g < dump.rows("groups"); ++g) {
    const std::string name = dump.string(dump.cell("groups", g, "name"));
    const u64 issued = cell(g, "enqueued") + cell(g, "p2p_enqueued") + cell(g, "lifecycle");
    const u64 here = seen.kept[name[0] - '0'];
    const u64 lost = cell(g, "overwritten") + cell(g, "dropped");
    // the record of the group's creation is kept or overwritten, too
    good = good && (here + lost == issued || here + 1 + lost == issued);
  }
  return good;
}

struct Tally {
  const char* what;
  u64 tried = 0, survived = 0, right = 0;
  void add(bool survives, bool is_right) {
    ++tried;
    survived += survives ? 1 : 0;
    right += survives && is_right ? 1 : 0;
  }
  bool print() const {
    std::printf("%-42s tried %6llu  survived %6llu  right %6llu\n", what,
                static_cast<unsigned long long>(tried), static_cast<unsigned long long>(survived),
                static_cast<unsigned long long>(right));
    return tried != 0 && survived == tried && right == tried;
  }
};

struct Tallies {
  Tally live{"rings read while they are written"};
  Tally stopped{"SIGSTOP: the ring against true counts"};
  Tally killed{"SIGKILL: the ring against true counts"};
  Tally dumped{"SIGKILL: the next attempt's dump"};
  Tally ended{"writers that ended: against true counts"};
  Seen all;
};

void stop_and_read(const Child& child, const Scene& scene, const View& view, Tallies& to) {
  child.kill(SIGSTOP);
  int status = 0;
  const bool stopped =
      waitpid(child.pid(), &status, WUNTRACED) == child.pid() && WIFSTOPPED(status);
  const Seen seen = read_ring(view);
  to.stopped.add(stopped, seen.is_right() && is_accounted(view, seen, True(scene.board), true));
  to.all.add(seen);
  child.kill(SIGCONT);
}

// Checks the ring that a process left, and the dump that the next attempt makes from it.
void read_remains(Scene& scene, bool open, Tally& of_ring, Tallies& to) {
  REQUIRE(scene.rings().size() == 1);
  const RingFile ring(scene.ring_dir() + "/" + scene.rings()[0]);
  const View& view = ring.view();
  if (!view.ok()) {
    of_ring.add(false, false);
    return;
  }
  const Seen seen = read_ring(view);
  const True truth(scene.board);
  const bool good = seen.is_right() && is_accounted(view, seen, truth, open);
  if (!good) {
    std::printf("wrong: %s, ring of %u\n", of_ring.what, view.n_slots());
  }
  of_ring.add(true, good);
  to.all.add(seen);
  scene.board.cell[kEnd] = 0;
  Child next = scene.start(0, {{"TORCHELASTIC_RESTART_COUNT", "1"}}, [&scene] {
    child_group("next");
    while (scene.board.cell[kEnd] == 0) {
      usleep(1000);
    }
    return 0;
  });
  const std::string path = scene.dump_path(0, 1);
  const bool survives = eventually([&] { return exists(path); });
  to.dumped.add(survives, survives && is_same(Dump::load(path), seen));
  scene.board.cell[kEnd] = 1;
  next.wait();
}

}  // namespace

TEST_CASE("stress: writers stopped and killed at random leave whole records and true counts") {
  std::mt19937 random(stress_seed());
  const double until = seconds_now() + stress_seconds();
  Tallies to;
  for (u64 round = 0; seconds_now() < until || round < 4; ++round) {
    Scene scene;
    const u32 n_records = 64u << random() % 9;
    const bool to_the_end = round % 4 == 3;
    Child child = start_writers(scene, n_records, to_the_end ? 2'000 + random() % 4'000 : ~0u);
    REQUIRE(scene.reached(0, 1));
    REQUIRE(scene.rings().size() == 1);
    const RingFile ring(scene.ring_dir() + "/" + scene.rings()[0]);
    REQUIRE(ring.view().ok());
    for (u32 i = random() % 3; i > 0 && !to_the_end; --i) {
      usleep(random() % 20'000);
      stop_and_read(child, scene, ring.view(), to);
      for (u32 pass = 0; pass <= 8192 / n_records; ++pass) {
        const Seen seen = read_ring(ring.view());
        to.live.add(true, seen.is_right());
        to.all.add(seen);
      }
    }
    if (to_the_end) {
      REQUIRE(scene.reached(kFinished, kWriters));
    } else {
      usleep(random() % 30'000);
    }
    child.kill(SIGKILL);
    CHECK(child.wait().signal == SIGKILL);
    read_remains(scene, !to_the_end, to_the_end ? to.ended : to.killed, to);
  }
  bool good = true;
  for (const Tally* tally : {&to.live, &to.stopped, &to.killed, &to.dumped, &to.ended}) {
    good = tally->print() && good;
  }
  const auto n = [](u64 x) { return static_cast<unsigned long long>(x); };
  std::printf("records %llu, torn or mixed %llu, twice %llu, said to be being written %llu\n",
              n(to.all.whole), n(to.all.mixed), n(to.all.twice), n(to.all.being_written));
  std::printf("shapes %llu, mixed %llu; statuses %llu, mixed %llu\n", n(to.all.shapes),
              n(to.all.shapes_mixed), n(to.all.statuses), n(to.all.statuses_mixed));
  CHECK(good);
  CHECK(to.all.is_right());
}
