// test_intern_tables.cpp - interned strings, stacks and groups, one thread and many.
#include <atomic>
#include <set>
#include <thread>

#include "catch.hpp"
#include "format/encode.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

std::vector<std::vector<i32>> runs(const Rig& rig, u32 group) {
  const auto ranks = rig.view.group_ranks(*rig.view.group(group));
  std::vector<std::vector<i32>> out;
  for (std::size_t i = 0; i + 2 < ranks.size(); i += 3) {
    out.push_back({static_cast<i32>(ranks[i]), static_cast<i32>(ranks[i + 1]),
                   static_cast<i32>(ranks[i + 2])});
  }
  return out;
}

std::vector<i32> expand(const Rig& rig, u32 group) {
  std::vector<i32> all;
  for (const auto& run : runs(rig, group)) {
    for (i32 i = 0; i < run[1]; ++i) {
      all.push_back(run[0] + i * run[2]);
    }
  }
  return all;
}

}  // namespace

TEST_CASE("a string has one id, ids start at 1, 0 is the empty one") {
  Rig rig(64);
  const u32 a = rig.intern("all_reduce");
  const u32 b = rig.intern("broadcast");
  CHECK(a != 0);
  CHECK(b != a);
  CHECK(rig.intern("all_reduce") == a);
  CHECK(rig.view.string(a) == "all_reduce");
  CHECK(rig.view.string(b) == "broadcast");
  CHECK(rig.view.string(0).empty());
  CHECK(rig.view.string(b + 1).empty());
  CHECK(rig.tables->intern("", 0) == 0);
  CHECK(rig.tables->intern(nullptr, 5) == 0);
  CHECK(rig.tables->intern("a\0b", 3) != rig.tables->intern("a", 1));
  CHECK(rig.header().strings_lost == 0);
}

TEST_CASE("long strings are cut at 1024 bytes, not within a UTF-8 character") {
  Rig rig(64);
  const std::string plain(2000, 'a');
  CHECK(rig.view.string(rig.intern(plain.c_str())).size() == 1024);
  CHECK(rig.view.string(rig.intern(std::string(1024, 'b').c_str())).size() == 1024);
  for (int shift = 0; shift < 4; ++shift) {
    std::string text(static_cast<std::size_t>(shift), 'a');
    while (text.size() < 1100) {
      text += "\xf0\x9f\x94\xa5";  // a character of 4 bytes
    }
    const auto kept = rig.view.string(rig.intern(text.c_str()));
    CHECK(kept.size() <= 1024);
    CHECK(kept.size() > 1020);
    CHECK((kept.size() - static_cast<std::size_t>(shift)) % 4 == 0);
    CHECK(text.compare(0, kept.size(), kept) == 0);
  }
}

TEST_CASE("a full string table counts what it turns away and still knows its own") {
  Rig rig(64);
  std::vector<u32> ids;
  for (u32 i = 0; i < kStrings + 100; ++i) {
    ids.push_back(rig.intern(("string " + std::to_string(i)).c_str()));
  }
  CHECK(ids[0] != 0);
  CHECK(ids.back() == 0);
  const u64 lost = rig.header().strings_lost;
  CHECK(lost == 101 + Tables::kReserved);  // id 0 is taken
  CHECK(rig.intern("string 17") == ids[17]);
  CHECK(rig.view.string(ids[5000]) == "string 5000");
  CHECK(rig.header().strings_lost == lost);
}

TEST_CASE("call sites cannot use up the room for the names of groups") {
  Rig rig(64);
  for (u32 i = 0; i < kStrings; ++i) {
    rig.intern(("call site " + std::to_string(i)).c_str());
  }
  const u32 group = rig.group("mesh_tp");
  REQUIRE(group != 0);
  CHECK(rig.view.string(rig.row(group).name) == "mesh_tp");
  CHECK(rig.tables->find_group("mesh_tp") == group);
}

TEST_CASE("groups that find no row, and groups that are looked for, use up no names") {
  Rig rig(64);
  for (u32 i = 1; i < kGroups; ++i) {
    REQUIRE(rig.group("g") == i);
  }
  const u32 before = rig.header().n_strings;
  CHECK(rig.group("one more") == 0);
  CHECK(rig.tables->find_group("another") == 0);
  CHECK(rig.tables->find_group("g") == kGroups - 1);
  CHECK(rig.header().n_strings == before);
}

TEST_CASE("full string bytes are counted too") {
  Rig rig(64);
  u32 refused = 0;
  for (u32 i = 0; i < 400; ++i) {
    std::string text(1024, 'x');
    text.replace(0, 8, std::to_string(10'000'000 + i));
    refused += rig.intern(text.c_str()) == 0 ? 1 : 0;
  }
  CHECK(refused == 400 - (kStringBytes - Tables::kReservedBytes) / 1024);
  CHECK(rig.header().strings_lost == refused);
}

TEST_CASE("threads that intern the same strings agree") {
  Rig rig(64);
  constexpr u32 kEach = 500;
  std::vector<std::vector<u32>> ids(4, std::vector<u32>(kEach));
  std::vector<std::thread> threads;
  for (auto& mine : ids) {
    threads.emplace_back([&rig, &mine] {
      for (u32 i = 0; i < kEach; ++i) {
        mine[i] = rig.intern(("s" + std::to_string(i)).c_str());
      }
    });
  }
  for (auto& t : threads) {
    t.join();
  }
  CHECK(ids[1] == ids[0]);
  CHECK(ids[2] == ids[0]);
  CHECK(ids[3] == ids[0]);
  CHECK(std::set<u32>(ids[0].begin(), ids[0].end()).size() == kEach);
  CHECK(rig.header().n_strings == kEach + 1);
}

// ---------------------------------------------------------------- stacks

TEST_CASE("equal stacks share one id, frames are shared between stacks") {
  Rig rig(64);
  const u32 file = rig.intern("train.py");
  const u32 f = rig.intern("step");
  const u32 m = rig.intern("main");
  const fr_frame one[2] = {{file, f, 57}, {file, m, 90}};
  const fr_frame two[2] = {{file, f, 58}, {file, m, 90}};
  const u32 a = rig.tables->stack(one, 2);
  const u32 b = rig.tables->stack(two, 2);
  CHECK(a != 0);
  CHECK(b != a);
  CHECK(rig.tables->stack(one, 2) == a);
  CHECK(rig.tables->stack(one, 1) != a);
  CHECK(rig.view.n_frames() == 4);  // row 0, two steps, one main
  const auto ids = rig.view.stack(a);
  REQUIRE(ids.size() == 2);
  CHECK(rig.view.frame(ids[0]).line == 57);
  CHECK(rig.view.frame(ids[1]).func == m);
  CHECK(rig.tables->stack(nullptr, 3) == 0);
  CHECK(rig.tables->stack(one, 0) == 0);
  CHECK(rig.view.stack(0).empty());
}

TEST_CASE("deep stacks keep the innermost 32 frames") {
  Rig rig(64);
  std::vector<fr_frame> frames;
  for (u32 i = 0; i < 50; ++i) {
    frames.push_back({1, 2, i + 1});
  }
  const auto ids = rig.view.stack(rig.tables->stack(frames.data(), 50));
  REQUIRE(ids.size() == FR_MAX_FRAMES);
  CHECK(rig.view.frame(ids[0]).line == 1);
  CHECK(rig.view.frame(ids[31]).line == 32);
}

TEST_CASE("a full stack table is counted, id 0 says not captured") {
  Rig rig(64);
  u32 refused = 0;
  for (u32 i = 0; i < kStacks + 50; ++i) {
    const fr_frame f = {1, 2, i + 1};
    refused += rig.tables->stack(&f, 1) == 0 ? 1 : 0;
  }
  CHECK(refused == 51);
  CHECK(rig.header().stacks_lost == 51);
}

TEST_CASE("full frames and full stack words are counted") {
  Rig rig(64);
  u32 refused = 0;
  for (u32 s = 0; s < 1000; ++s) {  // 32,000 frames
    fr_frame frames[32];
    for (u32 i = 0; i < 32; ++i) {
      frames[i] = {1, 2, s * 32 + i + 1};
    }
    refused += rig.tables->stack(frames, 32) == 0 ? 1 : 0;
  }
  CHECK(refused == 1000 - (kFrames - 1) / 32);
  CHECK(rig.header().stacks_lost == refused);
  CHECK(rig.header().n_frames <= kFrames);

  Rig other(64);
  refused = 0;
  for (u32 s = 0; s < 3000; ++s) {  // few frames, many words
    fr_frame frames[32];
    for (u32 i = 0; i < 32; ++i) {
      frames[i] = {1, 2, (s >> (i % 12) & 1) + 2 * i + 1};
    }
    frames[31].line = 1000 + s;
    refused += other.tables->stack(frames, 32) == 0 ? 1 : 0;
  }
  CHECK(refused == 3000 - kStackWords / 32);
  CHECK(other.header().n_stack_words <= kStackWords);
}

// ---------------------------------------------------------------- groups

TEST_CASE("groups: contiguous and strided ranks are one run") {
  Rig rig(64);
  CHECK(runs(rig, rig.group("dp", {0, 1, 2, 3})) == std::vector<std::vector<i32>>{{0, 4, 1}});
  CHECK(runs(rig, rig.group("tp", {3, 11, 19})) == std::vector<std::vector<i32>>{{3, 3, 8}});
  CHECK(runs(rig, rig.group("one", {5})) == std::vector<std::vector<i32>>{{5, 1, 1}});
  CHECK(runs(rig, rig.group("down", {3, 2, 1})) == std::vector<std::vector<i32>>{{3, 3, -1}});
}

TEST_CASE("groups: irregular ranks are read back in order") {
  Rig rig(64);
  for (const std::vector<i32>& ranks :
       {std::vector<i32>{0, 1, 5, 6, 7, 20}, {9, 3, 4, 100, 2}, {7, 7, 7}, {0, 2, 4, 1, 3, 5}}) {
    CHECK(expand(rig, rig.group("g", ranks)) == ranks);
  }
}

TEST_CASE("groups: ranks that do not fit are not captured, later groups are") {
  Rig rig(64);
  std::vector<i32> ranks;
  for (i32 i = 0; i < 8000; ++i) {
    ranks.push_back(i * i % 7919);  // hardly a run
  }
  const u32 big = rig.group("big", ranks);
  CHECK(big != 0);
  CHECK(runs(rig, big).empty());
  CHECK(rig.view.group(big)->n_ranks == 8000);
  CHECK(expand(rig, rig.group("small", {4, 5})) == std::vector<i32>{4, 5});
}

TEST_CASE("groups: unknown ranks") {
  Rig rig(64);
  fr_group_info info{};
  info.struct_bytes = sizeof info;
  info.name = "manual";
  info.own_rank = -1;
  const u32 g = rig.tables->add_group(info, 5);
  CHECK(rig.view.group(g)->n_ranks == 0);
  CHECK(rig.view.group(g)->own_rank == -1);
  CHECK(rig.view.group_ranks(*rig.view.group(g)).empty());
  CHECK(rig.view.string(rig.view.group(g)->desc).empty());
  CHECK(rig.view.group(g)->created_ticks == 5);
}

TEST_CASE("groups: a name registered again is a new instance with its own count") {
  Rig rig(64);
  const u32 first = rig.group("0");
  rig.collective(first);
  CHECK(rig.tables->find_group("0") == first);
  rig.hot.groups[first].destroyed_ticks.store(1);
  CHECK(rig.tables->find_group("0") == 0);
  const u32 second = rig.group("0");
  CHECK(second != first);
  CHECK(rig.view.group(first)->instance == 1);
  CHECK(rig.view.group(second)->instance == 2);
  CHECK(rig.collective(second).seq == 1);
  CHECK(rig.tables->find_group("0") == second);
  CHECK(rig.tables->find_group("never seen") == 0);
}

TEST_CASE("groups: a full table is counted") {
  Rig rig(64);
  for (u32 i = 1; i < kGroups; ++i) {
    REQUIRE(rig.group("g") == i);
  }
  CHECK(rig.group("g") == 0);
  CHECK(rig.header().groups_lost == 1);
  CHECK(rig.view.n_groups() == kGroups);
  CHECK(rig.view.group(kGroups) == nullptr);
}

TEST_CASE("identity is filled in once, never changed") {
  Rig rig(64);
  rig.header().rank.store(-1);
  rig.header().local_rank.store(-1);
  rig.header().world_size.store(0);
  CHECK_FALSE(rig.tables->set_identity(-1, -1, -1));
  CHECK(rig.tables->set_identity(3, 8, 1));
  CHECK_FALSE(rig.tables->set_identity(4, 9, 2));
  CHECK(rig.header().rank == 3);
  CHECK(rig.header().world_size == 8);
  CHECK(rig.header().local_rank == 1);
}

TEST_CASE("layers: set, changed, at most six") {
  Rig rig(64);
  rig.tables->set_layer("torch", "adapter");
  rig.tables->set_layer("torch", "fallback");
  CHECK(rig.header().n_layers == 1);
  CHECK(std::string(rig.header().layers[0].text) == "fallback");
  for (int i = 0; i < 10; ++i) {
    rig.tables->set_layer(("layer " + std::to_string(i)).c_str(), std::string(500, 't').c_str());
  }
  CHECK(rig.header().n_layers == 6);
}

TEST_CASE("layers: a text that is replaced meanwhile reads whole or not at all") {
  Rig rig(64);
  const std::string one(150, 'a');
  const std::string other = "a" + std::string(160, 'b');
  rig.tables->set_layer("nccl", one.c_str());
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; !stop.load(); ++i) {
      rig.tables->set_layer("nccl", (i % 2 == 0 ? other : one).c_str());
    }
  });
  u32 mixed = 0;
  for (int i = 0; i < 20'000; ++i) {
    char to[sizeof(Header::Layer::text)];
    const std::string_view text = layer_text(rig.header().layers[0], to);
    mixed += text.empty() || text == one || text == other ? 0 : 1;
  }
  stop = true;
  writer.join();
  CHECK(mixed == 0);
}

// ---------------------------------------------------------------- rows used again

namespace {

// Does the same as fr_group_destroyed.
void destroy(Rig& rig, u32 group) {
  rig.row(group).destroyed_ticks.store(ticks_now(rig.hot.clock));
}

u32 group_of_rows(Rig& rig, int i) {
  return rig.group(("temporary " + std::to_string(i)).c_str(), {i % 7, i % 7 + 1});
}

}  // namespace

TEST_CASE("tables: a job makes groups without end, none is lost") {
  constexpr int kMade = fr::test::kSanitized ? 10'000 : 100'000;
  Rig rig(64);
  const u32 lasting = rig.group("lasting", {0, 1, 2, 3});
  rig.collective(lasting);
  for (int i = 0; i < kMade; ++i) {
    const u32 g = group_of_rows(rig, i);
    REQUIRE(g != 0);
    REQUIRE(rig.view.string(rig.row(g).name) == "temporary " + std::to_string(i));
    REQUIRE(rig.tables->find_group(("temporary " + std::to_string(i)).c_str()) == g);
    REQUIRE(expand(rig, g) == std::vector<i32>{i % 7, i % 7 + 1});
    destroy(rig, g);
  }
  CHECK(rig.header().groups_lost == 0);
  CHECK(rig.header().strings_lost == 0);
  CHECK(rig.header().groups_forgotten == kMade - (kGroups - 2));
  CHECK(rig.view.string(rig.row(lasting).name) == "lasting");
  CHECK((rig.row(lasting).issued.load() & kSeqMask) == 1);
  CHECK(rig.tables->find_group("lasting") == lasting);
  CHECK(rig.tables->find_group(("temporary " + std::to_string(kMade - 1)).c_str()) ==
        0);  // destroyed
}

TEST_CASE("tables: a row used again begins at nothing, and old records are not its own") {
  Rig rig(4096);
  const u32 first = rig.group("first");
  const fr_ticket old = rig.collective(first);
  end(rig.hot, old, State::kCompleted, 0);
  fr_op send = make_op(first, FR_SEND);
  send.peer = 1;
  end(rig.hot, rig.begin(send), State::kCompleted, 0);
  destroy(rig, first);
  for (u32 i = 2; i < kGroups; ++i) {
    REQUIRE(group_of_rows(rig, static_cast<int>(i)) == i);
  }
  const u32 again = rig.group("again", {4, 9, 12});
  REQUIRE(again == first);
  CHECK((rig.row(again).issued.load() & kSeqMask) == 0);
  CHECK(rig.row(again).completed_seq == 0);
  CHECK(rig.row(again).p2p_issued == 0);
  CHECK(rig.row(again).destroyed_ticks == 0);
  CHECK(expand(rig, again) == std::vector<i32>{4, 9, 12});
  const fr_ticket mine = rig.collective(again);
  CHECK(mine.seq == 1);
  CHECK(rig.read(mine).payload.group == again);
  CHECK(rig.read(old).payload.group == 0);  // of a group that is forgotten
  fr_op receive = make_op(again, FR_SEND);
  receive.peer = 1;
  CHECK(rig.begin(receive).seq == 1);
}

TEST_CASE("tables: a group with an operation in flight keeps its row") {
  Rig rig(4096);
  for (u32 i = 1; i < kGroups; ++i) {
    const u32 g = group_of_rows(rig, static_cast<int>(i));
    rig.collective(g);
    destroy(rig, g);
  }
  CHECK(rig.group("one more") == 0);
  CHECK(rig.header().groups_lost == 1);
  CHECK(rig.header().groups_forgotten == 0);
}

TEST_CASE("tables: groups of one name are counted across rows used again") {
  Rig rig(64);
  for (u32 i = 1; i <= 3 * kGroups; ++i) {
    const u32 g = rig.group("same");
    REQUIRE(g != 0);
    REQUIRE(rig.row(g).instance == i);
    destroy(rig, g);
  }
  CHECK(rig.header().strings_lost == 0);
}

TEST_CASE("tables: the last group of a name counts, in whatever order rows are used again") {
  Rig rig(64);
  const u32 first = rig.group("same");
  const u32 second = rig.group("same");
  REQUIRE(rig.row(second).instance == 2);
  destroy(rig, second);
  destroy(rig, first);
  for (u32 i = 0; i < 3 * kGroups; ++i) {
    destroy(rig, group_of_rows(rig, static_cast<int>(i)));  // both rows are used again
  }
  CHECK(rig.row(rig.group("same")).instance == 3);
}

TEST_CASE("tables: the dump names groups in rows used again") {
  Rig rig(64);
  for (int i = 0; i < 600; ++i) {
    destroy(rig, group_of_rows(rig, i));
  }
  const u32 g = rig.group("living");
  DumpEncoder encoder;
  REQUIRE(encoder.init(rig.header().n_records));
  const DumpEncoder::Bytes bytes = encoder.encode(rig.view, {});
  REQUIRE(bytes.data != nullptr);
  const Dump d(std::string(static_cast<const char*>(bytes.data), bytes.size));
  CHECK(d.string(d.cell("groups", g, "name")) == "living");
  CHECK(d.string(d.cell("groups", g - 1, "name")) == "temporary 599");
  CHECK(d["losses"]["groups_forgotten"].integer() == 601 - (kGroups - 1));
}
