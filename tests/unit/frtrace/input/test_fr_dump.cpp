// test_fr_dump.cpp - fr dumps into the model: whole, cut, damaged.
#include <algorithm>
#include <span>

#include "catch.hpp"
#include "input/files.hpp"
#include "model/case.hpp"
#include "small_dump.hpp"
#include "words/diagnose.hpp"

using namespace frtrace;
using namespace frtest;

TEST_CASE("a dump reads whole") {
  for (const bool extra : {false, true}) {
    std::string why;
    const auto e = load_fr(dump(0, extra), why);
    REQUIRE(e);
    CHECK(e->id.job == "jobname");
    CHECK(e->id.world_size == 2);
    CHECK(e->incident == 3);
    CHECK(e->timeout_s() == 30);
    REQUIRE(e->groups.size() == 2);
    CHECK_FALSE(e->groups[0].used);
    CHECK(e->text(e->groups[1].desc) == "default_pg");
    CHECK(e->groups[1].enqueued == 3);
    CHECK(expand(e->groups[1].ranks) == std::vector<Rank>{0, 1});
    REQUIRE(e->records.size() == 3);
    CHECK(e->records[0].ticket == 1);
    CHECK(e->records[2].state == State::kEnqueued);
    CHECK(e->records[2].time == 1'003'000'000'000);
    CHECK(e->text(e->records[2].in_dtype) == "Float");
    CHECK(site_text(user_site(*e, e->records[0].stack)) == "train.py:57 step");
    CHECK(operation_text(*e, e->records[0]) == "all_reduce [64] Float");
    CHECK_FALSE(e->exit.present);
  }
}

namespace {

// The dump of rank 0 with a part `device`: one operation that ended, one that runs, what is left
// of a phase of the first, two live ones of the second; and what no reader knows yet.
std::vector<unsigned char> dump_with_device(bool damaged = false) {
  const msgpack::sbuffer plain = plain_dump(0);
  msgpack::sbuffer buffer;
  Packer p(buffer);
  p.pack_map(16);
  buffer.write(plain.data() + 1, plain.size() - 1);  // without its header of one byte
  const auto key = [&](const char* k) { p.pack(std::string(k)); };
  const auto names = [&](std::initializer_list<const char*> all) {
    p.pack_map(2), key("fields"), p.pack_array(static_cast<std::uint32_t>(all.size()));
    for (const char* name : all) {
      p.pack(name);
    }
    key("rows");
  };
  key("device"), p.pack_map(8);
  key("plugin_api"), p.pack(6);
  key("from_the_future"), p.pack_array(1), p.pack("x");
  key("losses"), p.pack_map(2), key("phases_lost"), p.pack(3), key("new_lost"), p.pack(9);
  key("comms"), names({"hash", "comm", "pg_group", "n_ranks", "rank", "n_nodes", "colour"});
  p.pack_array(2), p.pack_nil(), p.pack_array(7), p.pack(0xffff'0000'0000'0007ull), p.pack(1);
  p.pack(1), p.pack(2), p.pack(0), p.pack(2), p.pack("red");
  key("operations");
  names({"op", "ticket", "comm", "state", "flags", "stream", "launched", "started", "channels"});
  p.pack_array(4);
  const auto op = [&](int row, int ticket, const char* state, int flags) {
    p.pack_array(9), p.pack(row), p.pack(ticket), p.pack(damaged ? 1u << 30 : 1u), p.pack(state);
    p.pack(flags), p.pack(0x700), p.pack(std::int64_t{3'000'000'000}), p.pack_nil(), p.pack(2);
  };
  op(0, 2, "completed", 0);
  p.pack_nil();
  op(2, 1, "launched", 8);
  op(0, 3, "started", 1);
  key("phases"),
      names({"op", "ticket", "kind", "channel", "peer", "waits_for", "step", "n_steps", "live",
             "generation", "socket", "pid", "of_process", "of_op", "of_generation"});
  p.pack_array(6);
  const auto phase = [&](int row, int ticket, const char* kind, const char* wait, int live) {
    p.pack_array(15), p.pack(row), p.pack(ticket), p.pack(kind), p.pack(1), p.pack(1);
    p.pack(wait), p.pack(2), p.pack(8), p.pack(live), p.pack(5), p.pack(12);
    const bool other = row < 0;
    p.pack(other ? 4711 : 0);
    for (const int part : {99, 6, 17}) {
      other ? p.pack(part) : p.pack_nil();
    }
  };
  phase(0, 2, "send", "in_flight", 1);
  phase(0, 3, "send", "peer_credit", 1);
  p.pack_nil();
  phase(0, 3, "kernel", "running", 1);
  phase(0, 3, "recv", "data", 0);
  phase(-1, 0, "send", "in_flight", 1);
  key("error"), p.pack_map(4), key("code"), p.pack(700), key("name"), p.pack("CUDA_ERROR");
  key("ticket"), p.pack(3), key("time"), p.pack(std::int64_t{4'000'000'000});
  key("observer"), p.pack_map(2), key("call"), p.pack("cuEventQuery");
  key("since"), p.pack(std::int64_t{5'000'000'000});
  return compress(buffer.data(), buffer.size());
}

}  // namespace

TEST_CASE("what a dump says of the device: only what has not ended") {
  std::string why;
  const auto e = load_fr(dump_with_device(), why);
  REQUIRE(e);
  const DeviceEvidence& d = e->device;
  CHECK(d.present);
  CHECK(d.plugin_api == 6);
  CHECK(d.phases_lost == 3);
  REQUIRE(d.comms.size() == 2);
  CHECK_FALSE(d.comms[0].used);
  CHECK(d.comms[1].hash == 0xffff'0000'0000'0007ull);
  CHECK(d.comms[1].n_nodes == 2);
  REQUIRE(d.operations.size() == 1);
  CHECK(d.operations[0].ticket == 3);
  CHECK(d.operations[0].state == DeviceState::kStarted);
  CHECK(d.operations[0].stream == 0x700);
  CHECK(d.operations[0].launched == 1'003'000'000'000);
  REQUIRE(d.phases.size() == 2);
  CHECK(d.phases[0].kind == PhaseKind::kKernel);
  CHECK(d.phases[1].wait == PhaseWait::kPeerCredit);
  CHECK(d.phases[1].step == 2);
  CHECK(d.operations[0].phase_count == 2);
  REQUIRE(d.carried.size() == 1);
  CHECK(d.carried[0].pid == 4711);
  CHECK(d.carried[0].process == 99);
  CHECK(d.carried[0].phase.row == 6);
  CHECK(d.carried[0].generation == 17);
  CHECK(d.failure.code == 700);
  CHECK(d.failure.ticket == 3);
  CHECK(d.failure.time == 1'004'000'000'000);
  CHECK(over_text(d.phases[1]) == "socket 12");
  CHECK(d.observer_call == "cuEventQuery");
  CHECK(d.observer_since == 1'005'000'000'000);
}

TEST_CASE("a device's rows that name what is not there are no harm") {
  std::vector<std::unique_ptr<RankEvidence>> all;
  std::string why;
  all.push_back(load_fr(dump_with_device(true), why));
  all.push_back(load_fr(dump(1), why));
  REQUIRE((all[0] && all[1]));
  const std::vector<Case> cases = make_cases(all, {});
  CHECK(diagnose(cases.at(0)).kind == Verdict::kMissing);
}

TEST_CASE("a dump cut anywhere is named and left out") {
  const auto whole = dump(0);
  for (std::size_t n = 0; n < whole.size(); ++n) {
    std::string why;
    CHECK_FALSE(load_fr(std::span(whole).first(n), why));
    CHECK_FALSE(why.empty());
  }
}

TEST_CASE("a whole frame around a cut or damaged map") {
  const msgpack::sbuffer plain = plain_dump(0, true);
  std::size_t most = 0;
  for (std::size_t n = 0; n < plain.size(); ++n) {
    std::string why;
    const auto e = load_fr(compress(plain.data(), n), why);
    if (e == nullptr) {
      CHECK(most == 0);  // once its records have begun it is evidence
      continue;
    }
    CHECK(e->holes.truncated);
    CHECK(e->holes.truncated_at == e->records.size());
    REQUIRE(e->groups.size() == 2);
    const GroupEvidence& g = e->groups[1];
    CHECK(g.enqueued == 3);  // counters are exact, whatever records are lost
    CHECK(e->records.size() >= most);
    most = e->records.size();
    CHECK((g.kept == 0 || g.first_kept + g.kept == 4));
    for (std::uint64_t seq = 4 - g.kept; seq <= 3; ++seq) {
      CHECK(std::any_of(e->records.begin(), e->records.end(),
                        [&](const Record& r) { return r.seq == seq; }));
    }
  }
  CHECK(most == 3);
  // Any one byte changed: reads, or is refused; never more than that.
  for (std::size_t n = 0; n < plain.size(); n += fr::test::kSanitized ? 4 : 1) {
    for (const unsigned char flip : {0x01, 0x80, 0xff}) {
      std::string bytes(plain.data(), plain.size());
      bytes[n] = static_cast<char>(bytes[n] ^ flip);
      std::string why;
      if (const auto e = load_fr(compress(bytes.data(), bytes.size()), why)) {
        std::vector<std::unique_ptr<RankEvidence>> one;
        one.push_back(std::make_unique<RankEvidence>(*e));
        for (const Case& c : make_cases(one, {})) {
          diagnose(c);
        }
      }
    }
  }
}

TEST_CASE("wrong types read as absent") {
  msgpack::sbuffer buffer;
  Packer p(buffer);
  p.pack_map(8);
  p.pack("format"), p.pack("fr.dump");
  p.pack("version"), p.pack(1);
  p.pack("identity"), p.pack("me");
  p.pack("groups"), p.pack_array(1), p.pack(5);
  p.pack("records"), p.pack_map(1), p.pack("rows"), p.pack(9);
  p.pack("strings"), p.pack_map(0);
  p.pack("stacks"), p.pack_array(2), p.pack("x"), p.pack_array(1), p.pack(-4);
  p.pack("exit"), p.pack(true);
  std::string why;
  const auto e = load_fr(compress(buffer.data(), buffer.size()), why);
  REQUIRE(e);
  CHECK(e->id.rank == -1);
  CHECK(e->records.empty());
  CHECK(e->strings.size() == 1);
}

TEST_CASE("what is no dump says so") {
  std::string why;
  const std::string text = "hello";
  CHECK_FALSE(load_fr(compress(text.data(), text.size()), why));
  msgpack::sbuffer buffer;
  Packer p(buffer);
  p.pack_map(2), p.pack("format"), p.pack("fr.dump"), p.pack("version"), p.pack(2);
  CHECK_FALSE(load_fr(compress(buffer.data(), buffer.size()), why));
  CHECK(why == "format version 2, this frtrace reads 1");
  // An array that claims four billion elements.
  const unsigned char claim[] = {0xdd, 0xff, 0xff, 0xff, 0xff, 0x01};
  CHECK_FALSE(load_fr(compress(reinterpret_cast<const char*>(claim), sizeof claim), why));
  const std::string deep(100000, static_cast<char>(0x91));
  CHECK_FALSE(load_fr(compress(deep.data(), deep.size()), why));
}

TEST_CASE("memory: a text that many records share is cut once, not read by each") {
  const auto bytes = large_dump(0, 3, std::size_t{1} << 20);
  std::string why;
  const auto e = load_fr(bytes, why);
  REQUIRE(e != nullptr);
  for (const std::string& text : e->strings) {
    CHECK(text.size() <= 4096);
  }
}
