// test_dump.cpp - one file of PyTorch's recorder, of every version, whole, cut and damaged.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "dumps.hpp"
#include "input/pickle.hpp"

using namespace frtest;

TEST_CASE("torch: 2.10, all of an entry") {
  json d = dump({entry(0, 1), entry(1, 2), entry(2, 3, "started"), entry(3, 4, "scheduled")});
  status(d, "0", 4, 3, 2);
  const auto e = load(d);
  CHECK(e->format == "torch 2.10 pickle");
  REQUIRE(e->records.size() == 4);
  REQUIRE(e->groups.size() == 2);
  const GroupEvidence& g = e->groups[1];
  CHECK(e->text(g.name) == "0");
  CHECK(e->text(g.desc) == "default_pg");
  CHECK(e->text(g.backend) == "nccl");
  CHECK(expand(g.ranks) == std::vector<Rank>{0, 1, 2, 3});
  CHECK(g.enqueued == 4);
  CHECK(g.started == 3);
  CHECK(g.completed == 2);
  CHECK(g.kept == 4);
  CHECK(g.overwritten == 0);
  CHECK(e->id.world_size == 4);
  const Record& r = e->records[2];
  CHECK(e->text(r.op) == "all_reduce");
  CHECK(r.kind == Kind::kCollective);
  CHECK(r.state == State::kStarted);
  CHECK(r.seq == 3);
  CHECK(r.time == kBase + 2'000'000);
  CHECK(r.started == r.time + 1000);
  CHECK(r.ended == 0);
  CHECK(r.in_numel == 32);
  CHECK(r.timeout_ms == 600000);
  CHECK(e->text(r.in_dtype) == "Float");
  CHECK(operation_text(*e, r) == "all_reduce [8,4] Float");
  CHECK(site_text(user_site(*e, r.stack)) == "/home/u/train.py:12 step");
  CHECK(e->records[3].state == State::kEnqueued);
  CHECK(e->stacks.size() == 4);  // none, and three sites
  CHECK(e->frames.size() == 4);
  CHECK_FALSE(e->holes.only_active);
  CHECK_FALSE(e->holes.no_stacks);
  CHECK_FALSE(e->holes.no_status);
}

TEST_CASE("torch: of a scatter NCCL's entries have input and output exchanged") {
  json root = entry(0, 1);
  root["profiling_name"] = "nccl:scatter";
  json other = root;
  root["input_sizes"] = {{4}};
  root["input_dtypes"] = {"Float"};
  root["output_sizes"] = {{4}, {4}, {4}};
  root["output_dtypes"] = {"Float", "Float", "Float"};
  other["input_sizes"] = {{4}};
  other["input_dtypes"] = {"Float"};
  other["output_sizes"] = json::array({{0}});
  other["output_dtypes"] = {"UNKNOWN_SCALAR"};
  const auto of_root = load(dump({root})), of_other = load(dump({other}));
  CHECK(of_root->records.at(0).in_numel == 12);
  CHECK(of_root->records.at(0).out_numel == 4);
  CHECK(of_other->records.at(0).out_numel == 4);
  CHECK(of_other->text(of_other->records.at(0).out_dtype) == "Float");
  CHECK(signature_hash(*of_root, of_root->records.at(0), true) ==
        signature_hash(*of_other, of_other->records.at(0), true));
}

TEST_CASE("torch: JSON is the same without frames") {
  json d = dump({entry(0, 1), entry(1, 2, "started")});
  for (json& e : d["entries"]) {
    e.erase("frames");
    e["time_discovered_completed_ns"] =
        e["time_discovered_completed_ns"].is_null() ? json(0) : e["time_discovered_completed_ns"];
  }
  d["pg_status"]["0"] = {{"last_enqueued_collective", "2"},
                         {"last_started_collective", "2"},
                         {"last_completed_collective", "1"}};
  const auto e = load_json(d);
  CHECK(e->format == "torch 2.10 json");
  REQUIRE(e->records.size() == 2);
  CHECK(e->groups[1].enqueued == 2);
  CHECK(e->groups[1].completed == 1);
  CHECK(e->records[1].state == State::kStarted);
  CHECK(e->holes.no_stacks);
  // "entries" is absent when there are none.
  d.erase("entries");
  CHECK(load_json(d)->groups[1].enqueued == 2);
}

TEST_CASE("torch: two groups of one name in a process are told apart by what they are for") {
  // pg_config has one entry per name, that of the group made last.
  json d = dump(json::array());
  d["pg_config"] = {{"5af7", {{"name", "5af7"}, {"desc", "norms"}, {"ranks", "[0, 1, 2, 3]"}}}};
  for (int i = 0; i < 6; ++i) {
    json e = entry(i, i / 2 + 1);
    e["process_group"] = {"5af7", i % 2 == 0 ? "grads" : "norms"};
    e["pg_id"] = 1 + i % 2;
    d["entries"].push_back(e);
  }
  const auto e = load(d);
  REQUIRE(e->records.size() == 6);  // no batch of two operations of one number
  REQUIRE(e->groups.size() == 3);
  CHECK(e->text(e->groups[e->records[0].group].desc) == "grads");
  CHECK(e->text(e->groups[e->records[1].group].desc) == "norms");
  CHECK(e->text(e->groups[e->records[1].group].name) == "5af7");
  CHECK(e->groups[1].enqueued == 3);
  CHECK(e->groups[2].enqueued == 3);
  CHECK(expand(e->groups[2].ranks) == std::vector<Rank>{0, 1, 2, 3});
}

TEST_CASE("torch: the bare list of 2023") {
  json list = json::array();
  for (int i = 0; i < 4; ++i) {
    list.push_back({{"pg_id", 0},
                    {"seq_id", i + 1},
                    {"profiling_name", i == 1 ? "nccl:send 0->1" : "nccl:all_reduce"},
                    {"time_created_us", kBase / 1000 + i},
                    {"input_sizes", {{8}}},
                    {"output_sizes", {{8}}},
                    {"state", i == 3 ? "scheduled" : "completed"},
                    {"frames", {{{"name", "f"}, {"filename", "t.py"}, {"line", 7}}}}});
  }
  const auto e = load(list);
  CHECK(e->format == "torch unversioned pickle");
  REQUIRE(e->records.size() == 4);
  CHECK(e->text(e->groups[1].name) == "0");
  CHECK(e->records[0].time == kBase);
  // The send took a number of its own: the collectives are counted apart.
  CHECK(e->records[2].seq == 2);
  CHECK(e->groups[1].enqueued == 3);
  CHECK(e->groups[1].completed == 2);
  CHECK(e->records[1].kind == Kind::kSend);
  CHECK(e->records[1].peer == 1);
}

TEST_CASE("torch: 1.x with one seq_id, and ranks as a list") {
  json d = {{"version", "1.4"},
            {"pg_config", {{"0", {{"name", "0"}, {"desc", ""}, {"ranks", {0, 2, 4}}}}}},
            {"entries", json::array()}};
  for (int i = 10; i < 13; ++i) {
    json e = entry(i, 0);
    e.erase("collective_seq_id");
    e.erase("p2p_seq_id");
    e["seq_id"] = i + 1;
    e["process_group"] = {"0", ""};
    d["entries"].push_back(e);
  }
  const auto e = load(d);
  CHECK(expand(e->groups[1].ranks) == std::vector<Rank>{0, 2, 4});
  CHECK(e->groups[1].ranks.size() == 1);  // folded
  CHECK(e->groups[1].enqueued == 13);
  CHECK(e->groups[1].first_kept == 11);
  CHECK(e->groups[1].overwritten == 10);
  CHECK(e->losses.overwritten == 10);
}

TEST_CASE("torch: names of all backends and spellings") {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"nccl:all_reduce", "nccl", "all_reduce"},
      {"xccl:_all_gather_base", "xccl", "_all_gather_base"},
      {"hccl:all_to_all", "hccl", "all_to_all"},
      {"gloo:broadcast", "gloo", "broadcast"},
      {"ncclx:reduce_scatter", "ncclx", "reduce_scatter"},
      {"nccl:all_reduce_barrier", "nccl", "barrier"},
      {"nccl:_broadcast_oop", "nccl", "broadcast"},
      {"nccl:ALLGATHER_coalesced", "nccl", "ALLGATHER_coalesced"},
      {"all_reduce", "", "all_reduce"},
  };
  for (const auto& [name, backend, op] : cases) {
    const auto e = load(dump({entry(0, 1, "completed", name)}));
    CHECK(e->text(e->groups[1].backend) == backend);
    CHECK(e->text(e->records[0].op) == op);
    CHECK(e->records[0].kind == Kind::kCollective);
  }
  const auto e = load(dump({p2p(0, 1, "nccl:send 2->13"), p2p(1, 2, "nccl:recv 2<-0")}));
  CHECK(e->records[0].kind == Kind::kSend);
  CHECK(e->records[0].peer == 13);
  CHECK(e->records[1].kind == Kind::kRecv);
  CHECK(e->records[1].peer == 0);
  CHECK(e->text(e->records[1].op) == "recv");
}

TEST_CASE("torch: a coalesced batch is one operation") {
  // Two all_reduces and the batch itself; its state applies to both.
  json batch = entry(3, 2, "started", "nccl:coalesced");
  batch["input_sizes"] = batch["output_sizes"] = json::array();
  const auto e =
      load(dump({entry(0, 1), entry(1, 2, "scheduled"), entry(2, 2, "scheduled"), batch}));
  REQUIRE(e->records.size() == 2);
  CHECK(e->text(e->records[1].op) == "all_reduce_coalesced");
  CHECK(e->records[1].in_numel == 64);
  CHECK(e->records[1].state == State::kStarted);
  CHECK(e->groups[1].enqueued == 2);
  CHECK(e->groups[1].kept == 2);

  json gather = entry(2, 1, "completed", "nccl:ALLGATHER_coalesced");
  const auto u = load(dump({entry(0, 1, "scheduled", "nccl:_broadcast_oop"),
                            entry(1, 1, "scheduled", "nccl:_broadcast_oop"), gather}));
  REQUIRE(u->records.size() == 1);
  CHECK(u->text(u->records[0].op) == "ALLGATHER_coalesced");
  CHECK(u->records[0].state == State::kCompleted);
}

TEST_CASE("torch: batched sends and receives take the state of their batch") {
  json batch = p2p(2, 1, "nccl:coalesced", "completed");
  const auto e =
      load(dump({p2p(0, 1, "nccl:send 0->1", "scheduled"), p2p(1, 1, "nccl:recv 0<-1", "scheduled"),
                 batch, p2p(3, 2, "nccl:send 0->1", "scheduled")}));
  REQUIRE(e->records.size() == 3);
  CHECK(e->records[0].state == State::kCompleted);
  CHECK(e->records[1].state == State::kCompleted);
  CHECK(e->records[2].state == State::kEnqueued);
  REQUIRE(e->lanes.size() == 2);
  CHECK(e->lanes[0].send);
  CHECK(e->lanes[0].enqueued == 2);
  CHECK(e->lanes[0].completed == 1);
  CHECK(e->records[2].seq == 2);
  CHECK_FALSE(e->holes.relative_p2p);

  // Only operations in flight: the members of finished batches stay, the batches do not.
  const auto a = load(
      dump({p2p(10, 4, "nccl:send 0->1", "scheduled"), p2p(11, 4, "nccl:recv 0<-1", "scheduled"),
            p2p(13, 5, "nccl:send 0->1", "scheduled"), p2p(14, 5, "nccl:recv 0<-1", "scheduled"),
            p2p(15, 5, "nccl:coalesced", "started")}));
  CHECK(a->holes.only_active);
  CHECK(a->records[0].state == State::kCompleted);
  CHECK(a->records[2].state == State::kStarted);

  // All of them are over, in a group that had more collectives than batches.
  json send = p2p(10, 4, "nccl:send 0->1", "scheduled");
  json recv = p2p(11, 4, "nccl:recv 0<-1", "scheduled");
  send["collective_seq_id"] = recv["collective_seq_id"] = 40;
  json over = dump({send, recv});
  status(over, "0", 4, 4, 4);
  const auto o = load(over);
  CHECK(o->records[0].state == State::kCompleted);
  CHECK(o->records[1].state == State::kCompleted);
}

TEST_CASE("torch: gloo says by `retired` alone what is over") {
  json first = entry(0, 1, "scheduled", "gloo:all_reduce"),
       second = entry(1, 2, "scheduled", "gloo:all_reduce");
  first["retired"] = true;
  second["op_id"] = 5;
  json d = dump({first, second});
  d["pg_config"] = {{"", {{"name", ""}, {"desc", ""}, {"ranks", "[]"}}}};
  status(d, "0", 5, -1, 4);  // counts operations of both kinds
  const auto e = load(d);
  REQUIRE(e->groups.size() == 2);
  CHECK(e->records[0].state == State::kCompleted);
  CHECK(e->records[1].state == State::kEnqueued);
  CHECK(e->groups[1].enqueued == 2);
  CHECK(e->groups[1].completed == 1);
  CHECK(e->holes.no_p2p);
  CHECK(e->groups[1].ranks.empty());
}

TEST_CASE("torch: completed by the entry of the next, on one device communicator") {
  const auto e = load(dump({entry(0, 1, "started"), entry(1, 2)}));
  CHECK(e->records[0].state == State::kCompleted);
  CHECK(e->groups[1].completed == 2);
}

TEST_CASE("torch: groups whose operations the window lost") {
  json d = dump({entry(500, 41)});
  d["pg_config"]["1"] = {{"name", "1"}, {"desc", "tp"}, {"ranks", "[0, 1]"}};
  CHECK_FALSE(load(d)->groups[2].used);  // the file does not show how far it got
  CHECK(load(d)->losses.groups_lost == 1);
  status(d, "0", 41, 41, 41);
  // A group has a counter since its first operation: the other one has had none.
  REQUIRE(load(d)->groups[2].used);
  CHECK(load(d)->groups[2].enqueued == 0);
  status(d, "1", 17, 17, 16);
  const auto e = load(d);
  REQUIRE(e->groups[2].used);
  CHECK(e->groups[2].enqueued == 17);
  CHECK(e->groups[2].completed == 16);
  // A window from the first operation on: it never issued one there.
  json whole = dump({entry(0, 1)});
  whole["pg_config"]["1"] = d["pg_config"]["1"];
  CHECK(load(whole)->groups[2].used);
  CHECK(load(whole)->groups[2].enqueued == 0);
}

TEST_CASE("torch: numbers of a send in pg_status are not those of a collective") {
  json sent = p2p(1, 57, "nccl:send 0->1", "started");
  sent["collective_seq_id"] = 1;
  sent["process_group"] = {"0", "default_pg"};
  json d = dump({entry(0, 1), sent});
  status(d, "0", 57, 57, 56);
  const auto e = load(d);
  CHECK(e->groups[1].enqueued == 1);
  CHECK(e->groups[1].completed == 1);
}

TEST_CASE("torch: one counter for all groups (torchcomms)") {
  json a = entry(0, 1), b = entry(1, 2, "completed", "ncclx:all_reduce", "1", "tp"),
       c = entry(2, 3), d = entry(3, 4, "started", "ncclx:all_reduce", "1", "tp");
  const auto e = load(dump({a, b, c, d}));
  CHECK(e->records[2].seq == 2);
  CHECK(e->records[3].seq == 2);
  CHECK(e->groups[2].enqueued == 2);
  CHECK(e->groups[2].completed == 1);
}

// As hooks/fr/FlightRecorder.cpp of torchcomms writes them: one number from 0 for all operations of
// the process, (name, backend) of the communicator, states by `retired` alone.
TEST_CASE("torch: torchcomms numbers operations of a process from 0") {
  const auto of = [](int id, const char* op, const char* comm, bool retired) {
    json e = entry(id, id, "scheduled", op, comm, "ncclx");
    e["retired"] = retired;
    return e;
  };
  const auto file = [](json entries) {
    json d = dump(std::move(entries));
    d["pg_config"] = json::object();
    for (const char* comm : {"main", "pp", "dp"}) {
      d["pg_config"][comm] = {{"name", comm}, {"desc", "ncclx"}, {"ranks", "[0,1]"}};
    }
    return d;
  };
  const json all[] = {of(0, "ncclx:all_reduce", "main", true), of(1, "ncclx:send", "pp", true),
                      of(2, "ncclx:all_gather_single", "dp", true),
                      of(3, "ncclx:all_reduce", "main", false)};
  const auto e = load(file({all[0], all[1], all[2], all[3]}));
  REQUIRE(e->records.size() == 4);
  CHECK(e->format == "torchcomms 2.10 pickle");
  CHECK(e->records[0].seq == 1);
  CHECK(e->records[0].state == State::kCompleted);
  CHECK(e->records[2].seq == 1);
  CHECK(e->records[3].seq == 2);
  CHECK(e->records[3].state == State::kEnqueued);
  CHECK(e->holes.no_p2p);  // the file does not record the peer of a send
  std::string why;
  const std::string lost = file({all[1], all[2], all[3]}).dump();
  CHECK(load_torch_json(frtest::bytes_of(lost), why) == nullptr);
  CHECK(why.find("torchcomms") != std::string::npos);
}

TEST_CASE("torch: all_to_all and its splits") {
  const auto plain = load(dump({entry(0, 1, "completed", "nccl:all_to_all")}));
  CHECK(plain->records[0].shape_count == 0);  // the entry has no split sizes
  CHECK(plain->records[0].in_numel == 32);
  json split = entry(0, 1, "completed", "nccl:all_to_all");
  split["input_split_sizes"] = {4, 8, 12, 8};
  split["output_split_sizes"] = {8, 8, 8, 8};
  const auto e = load(dump({split}));
  const Shape shape = parse_shape(*e, e->records[0]);
  REQUIRE(shape.has_splits);
  CHECK(shape.in_splits == std::vector<std::uint64_t>{1, 2, 3, 2});  // rows of four elements
  CHECK(shape.out_splits == std::vector<std::uint64_t>{2, 2, 2, 2});
  json old = dump({entry(0, 1, "completed", "nccl:all_to_all")});
  old["version"] = "2.3";
  CHECK(load(old)->records[0].in_numel == 0);  // the first tensor's only
}

TEST_CASE("torch: what is written reads back the same") {
  json d = dump({entry(0, 1), p2p(1, 1, "nccl:send 1->0"), entry(2, 2, "started"),
                 entry(3, 3, "scheduled", "nccl:_all_gather_base")});
  status(d, "0", 3, 2, 1);
  Evidence all;
  add(all, d, "trace_rank_1");
  settle_torch(all);
  const RankEvidence& a = *all[0];
  const std::string bytes = torch_pickle(a);
  std::string why;
  const auto b = load_torch_pickle(frtest::bytes_of(bytes), why);
  INFO(why);
  REQUIRE(b != nullptr);
  REQUIRE(b->records.size() == a.records.size());
  for (std::size_t i = 0; i < a.records.size(); ++i) {
    const Record &x = a.records[i], &y = b->records[i];
    CHECK(operation_text(a, x) == operation_text(*b, y));
    CHECK(site_text(user_site(a, x.stack)) == site_text(user_site(*b, y.stack)));
    CHECK(x.kind == y.kind);
    CHECK(x.state == y.state);
    CHECK(x.seq == y.seq);
    CHECK(x.peer == y.peer);
    CHECK(x.time == y.time);
    CHECK(x.ended == y.ended);
  }
  REQUIRE(b->groups.size() == a.groups.size());
  CHECK(expand(b->groups[1].ranks) == expand(a.groups[1].ranks));
  CHECK(b->groups[1].enqueued == 3);
  CHECK(b->groups[1].completed == 1);
}

TEST_CASE("torch: what is no dump is not recognised") {
  std::string why;
  for (const json& v : {json("text"), json(3), json::array(), json{{"a", 1}}, json::array({1, 2}),
                        json{{"entries", {1, 2}}}, json{{"entries", {{{"name", "x"}}}}},
                        json{{"entries", 5}}, json{{"entries", "text"}}, json{{"entries", nullptr}},
                        json{{"version", "2.10"}, {"entries", {{"a", 1}}}}}) {
    INFO(v.dump());
    CHECK(load(v, &why) == nullptr);
    CHECK(why.find("not recognised") == 0);
  }
  CHECK(load_torch_json(frtest::bytes_of("{\"schema\": \"frtrace.report/1\"}"), why) == nullptr);
  CHECK(why.find("not recognised") == 0);
  CHECK(load_torch_json(frtest::bytes_of("{\"entries\": ["), why) == nullptr);
  CHECK(why.find("truncated JSON") == 0);
  CHECK(load_torch_json(frtest::bytes_of(std::string(100000, '[')), why) == nullptr);
}

TEST_CASE("torch: entries of odd types do no harm") {
  for (const char* key : {"process_group", "profiling_name", "input_sizes", "frames", "state",
                          "record_id", "pg_id", "collective_seq_id", "time_created_ns", "retired",
                          "input_dtypes", "timeout_ms", "thread_id", "is_p2p", "output_sizes"}) {
    for (const json& odd :
         {json(), json(true), json(-1), json("x"), json("99999999999999999999"), json(INT64_MAX),
          json(INT64_MIN), json::array(), json::array({json()}),
          json::array({json::array({-5, INT64_MAX, INT64_MAX})}), json{{"a", json::array()}}}) {
      json e = entry(0, 1);
      e[key] = odd;
      INFO(key << " " << odd.dump());
      const auto out = load(dump({e, entry(1, 2)}));
      CHECK(out->records.size() + out->unreadable_rows == 2);
    }
  }
  for (const json& odd : {json(), json(1), json("x"), json::array({1}), json{{"0", 1}},
                          json{{"0", {{"ranks", "[0, 0, 0]"}}}}, json{{"0", {{"ranks", 7}}}}}) {
    json d = dump({entry(0, 1)});
    d["pg_config"] = odd;
    CHECK(load(d)->records.size() == 1);
    d["pg_status"] = odd;
    CHECK(load(d)->records.size() == 1);
  }
}

TEST_CASE("torch: every cut and every changed byte of a dump") {
  const std::vector<unsigned char> whole = pickle_of(dump({entry(0, 1), entry(1, 2, "started")}));
  std::string why;
  REQUIRE(load_torch_pickle(whole, why) != nullptr);
  std::size_t salvaged = 0;
  for (std::size_t n = 0; n < whole.size(); ++n) {
    if (const auto e = load_torch_pickle({whole.data(), n}, why)) {
      CHECK(e->holes.truncated);
      salvaged = std::max(salvaged, e->records.size());
    }
  }
  CHECK(salvaged == 2);
  for (std::size_t n = 0; n < whole.size(); n += fr::test::kSanitized ? 4 : 1) {
    for (const int v : {0, 1, 0x28, 0x2e, 0x4b, 0x5d, 0x65, 0x68, 0x75, 0x7d, 0x8a, 0xff}) {
      std::vector<unsigned char> changed = whole;
      changed[n] = static_cast<unsigned char>(v);
      Evidence all;
      if (auto e = load_torch_pickle(changed, why)) {
        e->file = "trace_rank_0";
        all.push_back(std::move(e));
        settle_torch(all);
        for (const Case& c : make_cases(all, {})) {
          (void)diagnose(c);
        }
      }
    }
  }
}

TEST_CASE("torch: of a cut dump the entries before the cut") {
  json entries = json::array();
  for (int i = 0; i < 40; ++i) {
    entries.push_back(entry(i, i + 1, i == 39 ? "started" : "completed"));
  }
  json with_status = dump(entries);
  with_status["pg_status"] = {{"0",
                               {{"last_enqueued_collective", 40},
                                {"last_started_collective", 40},
                                {"last_completed_collective", 39}}}};
  for (const json& root : {dump(entries), with_status, entries}) {
    for (const bool as_json : {false, true}) {
      const std::string text = root.dump();
      const std::vector<unsigned char> whole =
          as_json ? std::vector<unsigned char>(text.begin(), text.end()) : pickle_of(root);
      const auto load = as_json ? load_torch_json : load_torch_pickle;
      std::string why;
      const auto all = load(whole, why);
      REQUIRE(all != nullptr);
      CHECK_FALSE(all->holes.truncated);
      std::size_t most = 0;
      constexpr std::size_t kStep = fr::test::kSanitized ? 211 : 7;
      constexpr std::size_t kNearEnd = fr::test::kSanitized ? 5 : 1;
      for (std::size_t n = 0; n < whole.size(); n += n + 300 < whole.size() ? kStep : kNearEnd) {
        INFO("cut at " << n << " of " << whole.size());
        const auto e = load({whole.data(), n}, why);
        if (e == nullptr) {
          CHECK(why.find("truncated") != std::string::npos);
          continue;
        }
        CHECK(e->holes.truncated);
        CHECK(e->holes.frontiers_at_least);
        CHECK(e->holes.truncated_at == e->records.size());
        REQUIRE(e->records.size() <= 40);
        CHECK(e->records.size() >= most);  // a longer file never yields fewer records
        most = e->records.size();
        for (std::size_t i = 0; i < most; ++i) {
          CHECK(e->records[i].seq == all->records[i].seq);
          CHECK(e->records[i].state == all->records[i].state);
          CHECK(e->records[i].time == all->records[i].time);
        }
        CHECK(e->groups.back().enqueued <= 40);
        CHECK(e->groups.back().enqueued >= most);
      }
      CHECK(most >= 39);
    }
  }
}

TEST_CASE("torch: what a cut dump's counters still tell") {
  json entries = json::array();
  for (int i = 0; i < 20; ++i) {
    entries.push_back(entry(i, i + 1, i == 19 ? "started" : "completed"));
  }
  const auto with_status = [&] {
    json d = dump(json::array());
    d.erase("entries");
    status(d, "0", 20, 20, 19);
    d["entries"] = entries;
    return d;
  };
  const std::vector<unsigned char> whole = pickle_of(with_status());
  std::string why;
  Evidence all;
  all.push_back(load_torch_pickle({whole.data(), whole.size() / 2}, why));
  REQUIRE(all[0] != nullptr);
  all[0]->file = "trace_rank_0";
  all[0]->file_time = kBase + 600'000'000'000;
  settle_torch(all);
  const GroupEvidence& g = all[0]->groups.back();
  CHECK(g.enqueued == 20);
  CHECK(g.completed == 19);
  // The operation in flight has no record: none of the newest records is kept.
  CHECK(g.kept == 0);
  CHECK(g.overwritten > 0);
  // Nothing says that it has lasted.
  CHECK(g.completed_time == all[0]->written);
}

TEST_CASE("torch: one large list named by many entries costs no square") {
  // 20,000 entries that share one list of 20,000 sizes: 400 million steps if each were walked.
  std::string in = "\x80\x02](]q";
  in += '\0';
  in += "(";
  for (int i = 0; i < 20000; ++i) {
    in += "]";
  }
  in += "e}q\x01(X\x05";
  in += std::string("\0\0\0", 3) + "stateX\x09" + std::string("\0\0\0", 3) + "completedX\x05" +
        std::string("\0\0\0", 3) + "pg_idK\x01X\x0b" + std::string("\0\0\0", 3) + "input_sizesh" +
        std::string("\0", 1) + "u";
  for (int i = 0; i < 20000; ++i) {
    in += "h\x01";
  }
  in += "e.";
  std::string why;
  const auto e = load_torch_pickle(frtest::bytes_of(in), why);
  if (e != nullptr) {
    CHECK(e->shape_words.size() < 64 * in.size());
  }
  SUCCEED();
}

TEST_CASE("torch: a long text that many entries share is cut, not copied or searched by each") {
  const std::string text(std::size_t{1} << 20, 'x');
  std::string in = "\x80\x02}(X\x07";
  const auto key = [&](const std::string& s) {
    in += "X";
    for (int shift = 0; shift < 32; shift += 8) {
      in += static_cast<char>(s.size() >> shift & 0xff);
    }
    in += s;
  };
  in.pop_back(), in.pop_back();
  key("entries");
  in += "](}q";
  in += '\x01';
  in += "(";
  for (const char* name : {"profiling_name", "state", "pg_id", "process_group"}) {
    key(name);
    if (std::string_view(name) == "profiling_name") {
      key(text);
      in += "q\x02";
    } else {
      in += "h\x02";
    }
  }
  in += "u";
  for (int i = 0; i < 2000; ++i) {
    in += "h\x01";
  }
  in += "eu.";
  std::string why;
  const auto e = load_torch_pickle(frtest::bytes_of(in), why);
  INFO(why);
  REQUIRE(e != nullptr);
  CHECK(e->records.size() == 2001);
  for (const std::string& s : e->strings) {
    CHECK(s.size() <= pickle::kMaxTextBytes);
  }
}

TEST_CASE("torch: the rank in a file's name") {
  const std::tuple<const char*, int, const char*> cases[] = {
      {"d/nccl_trace_rank_3", 3, ""},
      {"d/comm_lib_trace_rank_12", 12, ""},
      {"d/nccl_trace_rank_container-node02_5", 5, "container-node02"},
      {"d/_dump_7", 7, ""},
      {"d/_dump_7.json", 7, ""},
      {"rank3.pkl", 3, ""},
      {"trace_3.json", 3, ""},
      {"r10/trace_rank-4.pickle", 4, ""},
      {"trace_rank_2_20260821_120000.json", 2, ""},
      {"local_rank_1_rank_9.pkl", 9, ""},
      {"global_rank9_local_rank1", 9, ""},
      {"d/rank_11/trace.pkl", 11, ""},
      {"d/nccl_trace_rank_10-0-0-5_7", 7, "10-0-0-5"},
      {"d/nccl_trace_rank_3-of-8.pkl", 3, ""},
      {"rank_3.json", 3, ""},
      {"trace_r3.pkl", 3, ""},
      {"trace.r3.20260821.json", 3, ""},
      {"host1_dump_4_1787000000", 4, ""},
      {"flight_1787000000_6", 6, ""},
      {"trace_1787000000", -1, ""},
      {"d/trace", -1, ""},
  };
  for (const auto& [path, rank, host] : cases) {
    INFO(path);
    CHECK(torch_name(path).rank == rank);
    CHECK(torch_name(path).host == host);
  }
  CHECK(torch_name("a_rank_1").prefix == torch_name("a_rank_2").prefix);
  CHECK(torch_name("a_rank_n1_1").prefix == torch_name("a_rank_n2_2").prefix);
}

TEST_CASE("torch: the rank by what the file says, before its name") {
  Evidence all;
  json sent = p2p(0, 1, "nccl:send 1->0");
  add(all, dump({sent}, "[4, 6]"), "trace_rank_1");
  add(all, dump({entry(0, 1)}), "trace_rank_2");
  settle_torch(all);
  CHECK(all[0]->id.rank == 6);
  CHECK(all[1]->id.rank == 2);
  CHECK_FALSE(all[0]->holes.rank_from_name);
  CHECK(all[1]->holes.rank_from_name);
}
