// test_files.cpp - files into the model: fr dumps and rings, whole, cut, damaged, trimmed.
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <msgpack.hpp>
#include <sstream>
#include <thread>

#include "catch.hpp"
#include "format/layout.hpp"
#include "input/files.hpp"
#include "model/case.hpp"
#include "region.hpp"
#include "words/diagnose.hpp"

using namespace frtrace;
using frtest::Region;

namespace {

using Packer = msgpack::packer<msgpack::sbuffer>;

std::vector<unsigned char> compress(const char* data, std::size_t size) {
  std::vector<unsigned char> out(ZSTD_compressBound(size));
  out.resize(ZSTD_compress(out.data(), out.size(), data, size, 3));
  return out;
}

// A small dump of rank `rank`: two finished all_reduces, a third in flight.
// `extra`: keys and columns that no reader knows yet.
msgpack::sbuffer plain_dump(int rank, bool extra = false) {
  msgpack::sbuffer buffer;
  Packer p(buffer);
  const auto key = [&](const char* k) { p.pack(std::string(k)); };
  p.pack_map(extra ? 16 : 15);
  key("format"), p.pack("fr.dump");
  key("version"), p.pack(1);
  if (extra) {
    key("from_the_future"), p.pack_map(1), p.pack(7), p.pack_array(2), p.pack(1.5), p.pack_nil();
  }
  key("identity"), p.pack_map(9);
  key("job"), p.pack("jobname");
  key("attempt"), p.pack(0);
  key("rank"), p.pack(rank);
  key("world_size"), p.pack(2);
  key("host"), p.pack("n1");
  key("pid"), p.pack(42 + rank);
  key("cwd"), p.pack("/home/u");
  key("start_unix_ns"), p.pack(std::int64_t{1'000'000'000'000});
  key("memory"), p.pack("shm");
  key("reason"), p.pack("no progress");
  key("incident"), p.pack(3);
  key("written_unix_ns"), p.pack(std::int64_t{1'060'000'000'000});
  key("clock"), p.pack_map(1), key("base_unix_ns"), p.pack(std::int64_t{1'000'000'000'000});
  key("options"), p.pack_array(1), p.pack_array(3);
  p.pack("FR_TIMEOUT_S"), p.pack("30"), p.pack("default");
  key("strings"), p.pack_array(6);
  for (const char* s : {"", "0", "default_pg", "all_reduce", "/home/u/train.py", "step"}) {
    p.pack(s);
  }
  key("frames"), p.pack_array(1), p.pack_array(3), p.pack(4), p.pack(5), p.pack(57);
  key("stacks"), p.pack_array(2), p.pack_array(0), p.pack_array(1), p.pack(0);
  // The columns in another order than the grammar's, to be looked up by name.
  key("groups"), p.pack_map(2), key("fields"), p.pack_array(10);
  for (const char* f : {"enqueued", "group", "name", "desc", "ranks", "n_ranks", "completed",
                        "ended", "kept", "first_kept"}) {
    p.pack(f);
  }
  key("rows"), p.pack_array(2);
  p.pack_nil();
  p.pack_array(10);
  p.pack(rank == 0 ? 3 : 2), p.pack(1), p.pack(1), p.pack(2);
  p.pack_array(1), p.pack_array(3), p.pack(0), p.pack(2), p.pack(1);
  p.pack(2), p.pack(2), p.pack(2), p.pack(3), p.pack(1);
  key("records"), p.pack_map(2), key("fields");
  const std::vector<const char*> fields = {"ticket",   "time",  "kind",  "seq",
                                           "group",    "op",    "stack", "in_numel",
                                           "in_dtype", "state", "ended", "shape"};
  p.pack_array(static_cast<std::uint32_t>(fields.size()) + (extra ? 1 : 0));
  for (const char* f : fields) {
    p.pack(f);
  }
  if (extra) {
    p.pack("colour");
  }
  key("rows");
  const int n = rank == 0 ? 3 : 2;
  p.pack_array(static_cast<std::uint32_t>(n) + 1);
  for (int i = n; i >= 1; --i) {  // slot order is not ticket order
    p.pack_array(static_cast<std::uint32_t>(fields.size()) + (extra ? 1 : 0));
    p.pack(i), p.pack(std::int64_t{i} * 1'000'000'000), p.pack("collective"), p.pack(i), p.pack(1);
    p.pack(3), p.pack(1), p.pack(64), p.pack("Float"), p.pack(i == 3 ? "enqueued" : "completed");
    i == 3 ? p.pack_nil() : p.pack(std::int64_t{i} * 1'000'000'000 + 5);
    p.pack_array(3), p.pack(1u | 1u << 24), p.pack(1), p.pack(64);
    if (extra) {
      p.pack("red");
    }
  }
  p.pack_nil();
  key("exit"), p.pack_nil();
  key("losses"), p.pack_map(1), key("dropped"), p.pack(0);
  return buffer;
}

std::vector<unsigned char> dump(int rank, bool extra = false) {
  const msgpack::sbuffer plain = plain_dump(rank, extra);
  return compress(plain.data(), plain.size());
}

// A directory of its own that goes with the test.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "frtrace.XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  std::string write(const std::string& name, const std::vector<unsigned char>& bytes) const {
    const std::filesystem::path file = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return file.string();
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

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
  for (std::size_t n = 0; n < plain.size(); ++n) {
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

TEST_CASE("formats are told by content") {
  const auto format = [](std::vector<unsigned char> b) { return format_of(b); };
  CHECK(format(dump(0)) == Format::kFrDump);
  CHECK(format({0x80, 2, '}'}) == Format::kPickle);
  CHECK(format({'{', '}'}) == Format::kJson);
  CHECK(format({}) == Format::kUnrecognised);
  CHECK(format({'x'}) == Format::kUnrecognised);
  Region region(1);
  CHECK(format_of(region.bytes()) == Format::kRing);
}

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
  // Its counters say that it waits, and its peer's that it did not come.
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

TEST_CASE("a directory: what can be read is, the rest is named") {
  TemporaryDirectory dir;
  dir.write("j.a0.r0.3.fr", dump(0));
  dir.write("sub/j.a0.r1.3.fr", dump(1));
  dir.write("sub/notes.txt", {'h', 'i'});
  dir.write("a/b/c/too_deep.fr", dump(1));
  dir.write("readme.txt", {'h', 'i'});
  dir.write("old.fr.tmp", {1, 2, 3});
  dir.write("torch_0", {0x80, 2, '}', '.'});
  dir.write("empty.fr", {});
  const auto cut = dump(1);
  dir.write("cut.fr", {cut.begin(), cut.begin() + 40});
  std::vector<unsigned char> control(sizeof(std::uint64_t));
  std::memcpy(control.data(), &fr::kControlMagic, sizeof(std::uint64_t));
  dir.write("control", control);
  const LoadResult r = load_paths({dir.path()}, "");
  CHECK(r.evidence.size() == 2);
  std::map<std::string, std::string> why;
  for (const Unreadable& u : r.unreadable) {
    why[std::filesystem::path(u.file).filename().string()] = u.why;
  }
  CHECK(why.size() == 4);
  CHECK(why["cut.fr"] == "truncated");
  CHECK(why["empty.fr"] == "empty");
  CHECK(why["torch_0"].find("PyTorch") != std::string::npos);
  CHECK(why.contains("readme.txt"));

  const auto cases = make_cases(r.evidence, {});
  REQUIRE(cases.size() == 1);
  const Report report = diagnose(cases[0]);
  CHECK(report.kind == Verdict::kMissing);
  CHECK(report.ranks == std::vector<Rank>{1});
  CHECK(report.blamed[0].site == Site{"train.py", 57, "step"});

  CHECK(load_paths({dir.path()}, "j.a0").evidence.size() == 2);
  CHECK(load_paths({dir.path()}, "zzz").found_nothing);
  CHECK(load_paths({dir.path() + "/nowhere"}, "").absent.size() == 1);
  CHECK(load_paths({dir.path(), dir.path() + "/j.a0.r0.3.fr"}, "").evidence.size() == 2);
}

namespace {

struct Scratch {
  std::filesystem::path path;
  Scratch()
      : path(std::filesystem::temp_directory_path() / ("fr-files-" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
  }
  ~Scratch() { std::filesystem::remove_all(path); }
  void write(const std::string& name, std::span<const unsigned char> bytes) const {
    std::ofstream(path / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  LoadResult load(LoadOptions options = {}) const { return load_paths({path.string()}, options); }
};

// A dump of rank `rank` with `n` strings of `bytes` bytes besides.
std::vector<unsigned char> large_dump(int rank, std::size_t n, std::size_t bytes) {
  msgpack::sbuffer buffer;
  Packer p(buffer);
  p.pack_map(5);
  p.pack("format"), p.pack("fr.dump");
  p.pack("version"), p.pack(1);
  p.pack("identity"), p.pack(std::map<std::string, int>{{"rank", rank}});
  p.pack("groups"), p.pack(std::map<std::string, std::vector<int>>{{"rows", {}}});
  p.pack("strings"), p.pack_array(static_cast<std::uint32_t>(n));
  for (std::size_t i = 0; i < n; ++i) {
    p.pack(std::string(bytes, static_cast<char>('a' + i % 26)));
  }
  return compress(buffer.data(), buffer.size());
}

}  // namespace

TEST_CASE("a directory with loops of links, links to devices, pipes and files that are one") {
  const Scratch dir;
  const msgpack::sbuffer whole = plain_dump(0);
  dir.write("a.fr", compress(whole.data(), whole.size()));
  namespace fs = std::filesystem;
  fs::create_directory(dir.path / "below");
  dir.write("below/b.fr", compress(plain_dump(1).data(), plain_dump(1).size()));
  fs::create_directory_symlink(dir.path, dir.path / "below" / "up");
  fs::create_directory_symlink("loop", dir.path / "loop");
  fs::create_directory_symlink("below", dir.path / "alias");
  fs::create_symlink("a.fr", dir.path / "0-latest.fr");
  fs::create_symlink("/dev/zero", dir.path / "zero.fr");
  fs::create_symlink("/dev/tty", dir.path / "tty.fr");
  fs::create_symlink("gone", dir.path / "dangling.fr");
  REQUIRE(::mkfifo((dir.path / "pipe.fr").c_str(), 0600) == 0);
  fs::create_symlink("pipe.fr", dir.path / "linked-pipe.fr");
  const LoadResult result = dir.load();
  REQUIRE(result.evidence.size() == 2);
  CHECK(fs::path(result.evidence[0]->file).filename() == "a.fr");
  CHECK(result.evidence[1]->file == (dir.path / "below" / "b.fr").string());
  CHECK(result.unreadable.empty());
  // Asked for by name: told, not opened.
  const LoadResult named = load_paths({(dir.path / "pipe.fr").string(), "/dev/zero"}, "");
  REQUIRE(named.unreadable.size() == 2);
  CHECK(named.unreadable[0].why == "not a regular file");
  CHECK(named.unreadable[1].why == "not a regular file");
}

TEST_CASE("a file that is cut and rewritten while it is read is no end of the reader") {
  const Scratch dir;
  Region region(64);
  const auto bytes = region.bytes();
  std::atomic<bool> stop{false}, ok{true};
  const std::string path = dir.path / "x.ring";
  dir.write("x.ring", bytes);
  std::thread writer([&] {
    while (!stop) {
      ok = ok && ::truncate(path.c_str(), 4096) == 0;
      dir.write("x.ring", bytes);
    }
  });
  for (int i = 0; i < 300; ++i) {
    const LoadResult result = dir.load();
    CHECK(result.evidence.size() + result.unreadable.size() == 1);
  }
  stop = true;
  writer.join();
  CHECK(ok.load());
}

TEST_CASE("memory: bombs are bounded over all files together, and named") {
  const Scratch dir;
  for (int rank = 0; rank < 8; ++rank) {
    dir.write("r" + std::to_string(rank) + ".fr", large_dump(rank, 4000, 1000));
  }
  CHECK(dir.load().evidence.size() == 8);
  for (const unsigned threads : {1u, 4u}) {
    LoadOptions options;
    options.threads = threads;
    options.memory_bytes = std::size_t{24} << 20;  // a file takes 12 while read, keeps 4
    const LoadResult some = dir.load(options);
    INFO(threads << " threads");
    CHECK(some.evidence.size() >= 2);
    CHECK(some.evidence.size() < 8);
    REQUIRE(some.unreadable.size() == 8 - some.evidence.size());
    CHECK(some.unreadable[0].why == "needs more memory than is left of 24 MiB for all files");
    // What is needed while one file is read is there for the next: one after the other they fit.
    options.memory_bytes = std::size_t{48} << 20;
    CHECK(dir.load(options).evidence.size() == 8);
  }
  LoadOptions none;
  none.memory_bytes = std::size_t{1} << 20;
  CHECK(dir.load(none).evidence.empty());
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
