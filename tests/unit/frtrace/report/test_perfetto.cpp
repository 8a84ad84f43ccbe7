// test_perfetto.cpp - the contents of the trace, read back; Perfetto's own reader: tests/e2e.
#include <map>

#include "builder.hpp"
#include "catch.hpp"
#include "report/perfetto.hpp"
#include "report/protobuf.hpp"

using namespace frtest;

namespace {

// The members of a message: numbers and bytes by field.
struct Message {
  std::multimap<std::uint32_t, std::uint64_t> numbers;
  std::multimap<std::uint32_t, std::string> bytes;
  bool whole = true;

  explicit Message(std::string_view in) {
    while (whole && !in.empty()) {
      const std::uint64_t tag = varint(in);
      const auto field = static_cast<std::uint32_t>(tag >> 3);
      if ((tag & 7) == 0) {
        numbers.emplace(field, varint(in));
      } else if ((tag & 7) == 1 && in.size() >= 8) {
        numbers.emplace(field, static_cast<unsigned char>(in[0]));
        in.remove_prefix(8);
      } else if ((tag & 7) == 2) {
        const std::uint64_t n = varint(in);
        whole = whole && n <= in.size();
        bytes.emplace(field, in.substr(0, whole ? n : 0));
        in.remove_prefix(whole ? n : 0);
      } else {
        whole = false;
      }
    }
  }
  std::uint64_t varint(std::string_view& in) {
    std::uint64_t out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (in.empty()) {
        whole = false;
        return 0;
      }
      const auto byte = static_cast<unsigned char>(in.front());
      in.remove_prefix(1);
      out |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) {
        return out;
      }
    }
    whole = false;
    return out;
  }
  std::uint64_t number(std::uint32_t field) const {
    const auto at = numbers.find(field);
    return at == numbers.end() ? 0 : at->second;
  }
  std::string text(std::uint32_t field) const {
    const auto at = bytes.find(field);
    return at == bytes.end() ? "" : at->second;
  }
};

struct Trace {
  std::vector<std::string> tracks;  // names
  int begins = 0, ends = 0, instants = 0, flows = 0;
  std::vector<std::uint64_t> lags;  // microseconds, as told
  Time clock = 0;
  bool whole = true;

  explicit Trace(const std::string& data) {
    const Message all(data);
    whole = all.whole && all.numbers.empty();
    for (auto [at, end] = all.bytes.equal_range(1); at != end; ++at) {
      const Message packet(at->second);
      whole = whole && packet.whole;
      if (!packet.text(60).empty()) {
        tracks.push_back(Message(packet.text(60)).text(2));
      }
      if (!packet.text(11).empty()) {
        const Message event(packet.text(11));
        whole = whole && event.whole && packet.number(8) < (std::uint64_t{1} << 50);
        const std::uint64_t type = event.number(9);
        (type == 1 ? begins : type == 2 ? ends : instants) += 1;
        flows += static_cast<int>(event.numbers.count(47));
        if (event.numbers.contains(12)) {
          lags.push_back(event.number(12));
        }
      }
    }
  }
  bool has_track(const std::string& part) const {
    return std::any_of(tracks.begin(), tracks.end(), [&](const std::string& name) {
      return name.find(part) != std::string::npos;
    });
  }
};

struct Rendered {
  explicit Rendered(JobBuilder& j, const PerfettoOptions& options = {}) : evidence(j.take()) {
    cases = make_cases(evidence, {});
    std::vector<Report> reports;
    for (const Case& c : cases) {
      reports.push_back(frtrace::diagnose(c));
    }
    out = render_perfetto(cases, reports, options);
  }
  std::vector<std::unique_ptr<RankEvidence>> evidence;
  std::vector<Case> cases;
  PerfettoTrace out;
};

JobBuilder skipped(int rounds) {
  JobBuilder j(4);
  for (int i = 0; i < rounds; ++i) {
    for (Rank r = 0; r < 4; ++r) {
      j.issue(r, JobBuilder::kWorld, {.line = 20});
      j.advance(r == 3 ? 0.5 : 0);
    }
    for (Rank r = 0; r < 4; ++r) {
      j.complete(r, 0, j.rank(r).records.size() - 1);
    }
    j.advance(0.01);
  }
  j.some({0, 1, 3}, JobBuilder::kWorld, {.line = 20});
  j.advance(70);
  return j;
}

}  // namespace

TEST_CASE("protobuf: lengths take the bytes that they need") {
  for (const std::size_t n : {0, 1, 127, 128, 300, 16383, 16384, 3'000'000}) {
    ProtoWriter w;
    const std::string inner(n, 'x');
    w.message(1, [&] { w.message(2, [&] { w.text(3, inner); }); });
    w.number(4, UINT64_MAX);
    const Message outer(w.bytes());
    REQUIRE(outer.whole);
    CHECK(outer.number(4) == UINT64_MAX);
    CHECK(Message(Message(outer.text(1)).text(2)).text(3) == inner);
  }
}

TEST_CASE("perfetto: an operation in flight begins and does not end") {
  JobBuilder j = skipped(5);
  const Rendered r(j);
  const Trace t(r.out.data);
  CHECK(t.whole);
  CHECK(t.begins == 4 * 5 + 3);
  CHECK(t.ends == 4 * 5);
  CHECK(t.instants == 4 + 1);  // dumps, the verdict
  CHECK(t.flows == 3);         // the slot of the verdict
  CHECK(r.out.left_out.empty());
  REQUIRE(t.tracks.size() == 1 + 4 * 3);
  CHECK(t.tracks[1] == "rank 2 (n0)");  // the blamed one
}

TEST_CASE("perfetto: the arrival lag is that behind the first, told when it changes") {
  JobBuilder j(2);
  for (int i = 0; i < 3; ++i) {
    j.issue(0, JobBuilder::kWorld, {});
    j.advance(0.002);
    j.issue(1, JobBuilder::kWorld, {});
    j.complete(0, 0, j.rank(0).records.size() - 1);
    j.complete(1, 0, j.rank(1).records.size() - 1);
    j.advance(0.001);
  }
  const Rendered r(j);
  const Trace t(r.out.data);
  CHECK(t.lags == std::vector<std::uint64_t>{0, 2000});
}

TEST_CASE("perfetto: what overlaps lies on few tracks, what does not end within its like") {
  JobBuilder j(1);
  for (int i = 0; i < 50; ++i) {
    j.issue(0, JobBuilder::kWorld, {});
    j.advance(0.001);
  }
  for (std::size_t i = 0; i < 30; ++i) {
    j.advance(0.1);
    j.rank(0).records[i].started = j.now() - 50'000'000;
    j.complete(0, 0, i);
  }
  const Rendered r(j);
  const Trace t(r.out.data);
  CHECK(t.whole);
  CHECK(t.tracks.size() <= 3 + 5);
  CHECK(t.begins - t.ends == 20);
}

TEST_CASE("perfetto: only the last operations where all are too many, and it says so") {
  JobBuilder j = skipped(400);
  const Rendered r(j, {.most_bytes = 60'000});
  const Trace t(r.out.data);
  CHECK(t.whole);
  CHECK(r.out.data.size() <= 60'000);
  CHECK(r.out.data.size() > 25'000);
  CHECK(t.begins - t.ends == 3);
  CHECK(r.out.left_out.find("records around the verdict are in the trace") != std::string::npos);
  CHECK(r.out.data.find("records around the verdict") != std::string::npos);
}

TEST_CASE("perfetto: the ranks and groups that were asked for") {
  JobBuilder j(4);
  const int tp = j.group("7", {0, 1}, "tp");
  j.all(JobBuilder::kWorld, {});
  j.all(tp, {});
  const Rendered r(j, {.ranks = {1, 3}, .groups = {"tp"}});
  const Trace t(r.out.data);
  CHECK(t.begins == 1);
  CHECK(t.has_track("rank 1"));
  CHECK(t.has_track("rank 3"));
  CHECK_FALSE(t.has_track("rank 0"));
  CHECK_FALSE(t.has_track("default_pg"));
}

TEST_CASE("perfetto: text of evidence is escaped, what has no time is counted") {
  JobBuilder j(2);
  const std::string hostile = "a\x1b[31m\xff\n\"</script>";
  const int g = j.group(hostile, {0, 1}, hostile);
  j.all(g, {.op = hostile, .file = hostile});
  j.rank(0).id.host = hostile;
  j.rank(1).records[0].time = 0;
  const Rendered r(j);
  const Trace t(r.out.data);
  CHECK(t.whole);
  CHECK(r.out.data.find("\x1b[31m") == std::string::npos);
  CHECK(r.out.data.find("\\x1b[31m\\xff\\x0a") != std::string::npos);
  CHECK(r.out.left_out == "1 operations without a time are left out");
  CHECK(t.begins == 1);
}

TEST_CASE("perfetto: the device's times lie within the operation") {
  JobBuilder j(1);
  j.issue(0, JobBuilder::kWorld, {});
  j.advance(1);
  j.complete(0, 0, 0);
  const Record& r = j.rank(0).records[0];
  j.rank(0).device.spans.push_back({0, r.time + 1000, r.time + 5000});
  const Rendered with(j);
  CHECK(Trace(with.out.data).begins == 2);
  CHECK(with.out.data.find("runs") != std::string::npos);
}

TEST_CASE("perfetto: spans and steps, those that are open do not end") {
  JobBuilder j(1);
  RankEvidence& e = j.rank(0);
  const Id load = JobBuilder::intern(e, "load");
  const auto crumb = [&](Kind kind, Id op, std::uint64_t seq) {
    j.advance(0.1);
    Record r;
    r.ticket = e.records.size();
    r.time = j.now();
    r.kind = kind;
    r.op = op;
    r.seq = seq;
    r.tid = 5;
    e.records.push_back(r);
  };
  crumb(Kind::kSpan, load, 0);  // its begin is overwritten
  crumb(Kind::kStep, 0, 7);
  crumb(Kind::kSpan, load, 1);
  crumb(Kind::kSpan, load, 0);
  crumb(Kind::kStep, 0, 8);
  crumb(Kind::kSpan, load, 1);
  e.notes.push_back({5, "", 0, {{"outer", j.now() - kSecond}, {"load", j.now()}}});
  const Rendered r(j);
  const Trace t(r.out.data);
  CHECK(t.whole);
  CHECK(t.begins == 2 + 2 + 1);  // steps, spans, the span with an overwritten record
  CHECK(t.ends == 1 + 1);
  CHECK(r.out.data.find("step 8") != std::string::npos);
  CHECK(r.out.data.find("outer") != std::string::npos);
}
