// test_ring.cpp - rings into the model: whole, wrapped, cut, damaged.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "catch.hpp"
#include "format/layout.hpp"
#include "input/files.hpp"
#include "model/case.hpp"
#include "region.hpp"
#include "words/diagnose.hpp"

using namespace frtrace;
using frtest::Region;

TEST_CASE("a region reads as a dump does") {
  Region region(5);
  std::string why;
  const auto e = load_ring(region.bytes(), 0, RingKind::kRegion, why);
  INFO(why);
  REQUIRE(e);
  CHECK(e->source == Source::kRing);
  CHECK_FALSE(e->process_gone);  // another host: nothing is known of the process
  // A copy in a dump directory: taken from a dead one, unless it holds its own last words.
  CHECK(load_ring(region.bytes(), 0, RingKind::kCopy, why)->process_gone);
  region.header().exit.signal = 15;
  region.header().exit.state = fr::kSignalled;
  CHECK_FALSE(load_ring(region.bytes(), 0, RingKind::kCopy, why)->process_gone);
  region.header().exit.state = fr::kRunning;
  CHECK(e->id.job == "ringjob");
  CHECK(e->timeout_s() == 20);
  REQUIRE(e->groups.size() == 2);
  const GroupEvidence& g = e->groups[1];
  CHECK(g.enqueued == 5);
  CHECK(g.completed == 4);
  CHECK(g.kept == 5);
  CHECK(g.first_kept == 1);
  CHECK(g.last_kept == 5);
  CHECK(g.overwritten == 0);
  CHECK(expand(g.ranks) == std::vector<Rank>{0, 1});
  REQUIRE(e->records.size() == 5);
  CHECK(e->records[4].state == State::kEnqueued);
  CHECK(e->records[3].state == State::kCompleted);
  CHECK(e->text(e->records[0].in_dtype) == "Float");
  CHECK(e->records[1].time == static_cast<Time>(Region::kUnix + 1'000'000));
}

TEST_CASE("a wrapped region counts what it lost") {
  Region region(200);
  std::string why;
  const auto e = load_ring(region.bytes(), 0, RingKind::kRegion, why);
  REQUIRE(e);
  CHECK(e->groups[1].enqueued == 200);
  CHECK(e->groups[1].kept == 64);
  CHECK(e->groups[1].first_kept == 137);
  CHECK(e->groups[1].overwritten == 136);
  CHECK(e->losses.overwritten == 136);
}

TEST_CASE("a region of this machine tells whether its process lives") {
  Region region(2);
  gethostname(region.header().host, sizeof region.header().host - 1);
  std::ifstream("/proc/sys/kernel/random/boot_id") >> region.header().boot_id;
  std::string why;
  region.header().pid = 1;
  region.header().proc_start = 0xdeadbeef;  // not when process 1 began
  const auto dead = load_ring(region.bytes(), 7, RingKind::kRegion, why);
  REQUIRE(dead);
  CHECK(dead->process_gone);
  std::ifstream stat("/proc/self/stat");
  std::string line;
  std::getline(stat, line);
  std::istringstream fields(line.substr(line.rfind(')') + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) {
    fields >> field;
  }
  region.header().pid = getpid();
  region.header().proc_start = std::stoull(field);
  const auto live = load_ring(region.bytes(), 7, RingKind::kRegion, why);
  REQUIRE(live);
  CHECK(live->source == Source::kLiveRing);
  CHECK_FALSE(live->process_gone);
  CHECK(live->written == 7);
}

TEST_CASE("a region cut anywhere, or with any word of its header damaged") {
  Region region(5);
  std::string why;
  for (std::size_t n = 0; n < region.bytes().size(); n += 4093) {
    load_ring(region.bytes().first(n), 0, RingKind::kRegion, why);
  }
  for (std::size_t word = 8; word < fr::kHeaderBytes; word += 4) {
    Region fresh(5);
    const std::uint32_t bad = 0xfffffff0u;
    std::memcpy(const_cast<unsigned char*>(fresh.bytes().data()) + word, &bad, 4);
    if (const auto e = load_ring(fresh.bytes(), 0, RingKind::kRegion, why)) {
      std::vector<std::unique_ptr<RankEvidence>> one;
      one.push_back(std::make_unique<RankEvidence>(*e));
      for (const Case& c : make_cases(one, {})) {
        diagnose(c);
      }
    }
    word += word > 2048 ? 60 : 0;  // texts: not every word
  }
}

TEST_CASE("a region cut behind its tables says what is left, and how much is not") {
  Region region(60);
  const fr::Header& h = region.header();
  const auto end_of = [&](fr::Section s, std::uint32_t rows) {
    return h.sections[s].offset_bytes + std::size_t{rows} * h.sections[s].stride_bytes;
  };
  std::string why;
  // in the middle of the 41st record
  const auto cut =
      load_ring(region.bytes().first(end_of(fr::kSecRecords, 40) + 50), 0, RingKind::kRegion, why);
  REQUIRE(cut);
  CHECK(cut->holes.truncated);
  CHECK(cut->holes.truncated_at == 40);
  CHECK(cut->losses.cut == 20);
  CHECK(cut->losses.overwritten == 0);
  CHECK(cut->records.size() == 40);
  CHECK(cut->records.back().seq == 40);
  CHECK(cut->groups[1].enqueued == 60);
  CHECK(cut->groups[1].completed == 59);
  CHECK(cut->groups[1].kept == 0);  // not the newest
  // Its counters show that it waits, and the peer's that the peer did not issue the operation.
  auto other = std::make_unique<RankEvidence>(*cut);
  other->id.rank = 0;
  other->holes = {};
  other->losses = {};
  other->groups[1].enqueued = other->groups[1].ended = 59;
  std::vector<std::unique_ptr<RankEvidence>> both;
  both.push_back(std::make_unique<RankEvidence>(*cut));
  both.push_back(std::move(other));
  for (auto& e : both) {
    e->written += 70'000'000'000;
  }
  const auto cases = make_cases(both, {});
  REQUIRE(cases.size() == 1);
  const Report report = diagnose(cases[0]);
  CHECK(report.kind == Verdict::kMissing);
  CHECK(report.ranks == std::vector<Rank>{0});
  CHECK(report.confidence == Confidence::kLikely);
  CHECK(std::any_of(report.findings.begin(), report.findings.end(), [](const Finding& f) {
    return f.id == "lost" && f.text.find("20 records of rank 1 lie behind the end") == 0;
  }));

  const auto bare =
      load_ring(region.bytes().first(end_of(fr::kSecStatus, 10)), 0, RingKind::kRegion, why);
  REQUIRE(bare);
  CHECK(bare->records.empty());
  CHECK(bare->losses.cut == 60);
  CHECK_FALSE(
      load_ring(region.bytes().first(end_of(fr::kSecCrumbs, 1)), 0, RingKind::kRegion, why));
  CHECK(why.find("truncated") == 0);
}

TEST_CASE("a ring says the same of the device") {
  Region region(3);
  using namespace fr;
  region.device().plugin_api = 5;
  region.device().ops_lost = 1;
  CommRow& comm = region.comms()[1];
  comm.in_use = 2, comm.hash = 7, comm.pg_group = 1, comm.n_ranks = 2, comm.rank = 1;
  DeviceOp* op = region.device_ops();
  op[0].claim = 2, op[0].ticket = 2, op[0].ended_ticks = 2000;
  op[1].claim = 5, op[1].ticket = 3, op[1].comm = 1, op[1].stream = 0x700;
  op[1].launched_ticks = 1000 + 500'000'000;
  Phase* phase = region.phases();
  phase[0].claim = 3, phase[0].op = 2, phase[0].ticket = 3, phase[0].what = kPhaseSend | 4 << 8;
  phase[0].next_step = 9, phase[0].n_steps = 16, phase[0].peer = 0;
  phase[0].waits = static_cast<u32>(fr::Wait::kPeerCredit) << 4 * (9 % 8);
  phase[0].second = net_word(Net::kIb, 1, 77);
  phase[1].claim = 2, phase[1].op = 2, phase[1].ticket = 3, phase[1].what = kPhaseKernel;
  phase[2].claim = 5, phase[2].what = kPhaseSend, phase[2].pid = 4711;
  phase[2].ticket = 99ull << 48 | 17 << 12 | 6;
  Cuda& cuda = region.cuda();
  cuda.observer_tid = 9, cuda.call = region.string("cuEventQuery"), cuda.call_ticks = 1000 + 7;
  cuda.error_ready = 1, cuda.error_code = 700, cuda.error_ticket = 3, cuda.error_ticks = 1000 + 8;
  cuda.error_name = region.string("CUDA_ERROR_ILLEGAL_ADDRESS");
  std::string why;
  const auto e = load_ring(region.bytes(), 0, RingKind::kRegion, why);
  REQUIRE(e);
  const DeviceEvidence& d = e->device;
  CHECK(d.plugin_api == 5);
  CHECK(d.ops_lost == 1);
  REQUIRE(d.comms.size() == 2);  // up to the last that is used
  CHECK(d.comms[1].hash == 7);
  CHECK_FALSE(d.comms[0].used);
  REQUIRE(d.operations.size() == 1);
  CHECK(d.operations[0].state == DeviceState::kLaunched);
  CHECK(d.operations[0].ticket == 2);
  CHECK(d.operations[0].launched == static_cast<Time>(Region::kUnix + 500'000'000));
  REQUIRE(d.phases.size() == 1);
  CHECK(d.phases[0].channel == 4);
  CHECK(d.phases[0].step == 9);
  CHECK(d.phases[0].wait == PhaseWait::kPeerCredit);
  CHECK(over_text(d.phases[0]) == "NIC 1, queue pair 77");
  REQUIRE(d.carried.size() == 1);
  CHECK(d.carried[0].pid == 4711);
  CHECK(d.carried[0].process == 99);
  CHECK(d.carried[0].phase.row == 6);
  CHECK(d.carried[0].generation == 17);
  CHECK(d.operations[0].generation == 2);
  CHECK(d.observer_call == "cuEventQuery");
  CHECK(d.observer_since == static_cast<Time>(Region::kUnix + 7));
  CHECK((d.failure.present && d.failure.has_record));
  CHECK(d.failure.code == 700);
  CHECK(d.failure.ticket == 2);
  CHECK(d.failure.name == "CUDA_ERROR_ILLEGAL_ADDRESS");
  CHECK(d.failure.time == static_cast<Time>(Region::kUnix + 8));
}
