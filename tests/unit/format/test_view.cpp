// test_view.cpp - a View reads whatever it is given: hostile, truncated, half-written. It must never
// crash or read outside of the mapping; AddressSanitizer watches in the asan build.
#include <cstdlib>
#include <random>

#include "catch.hpp"
#include "format/call_site.hpp"
#include "format/encode.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

// Heap memory of exactly the region's size, aligned like a mapping.
class Copy {
 public:
  Copy(const void* from, std::size_t bytes) : bytes_(bytes) {
    data_ = static_cast<unsigned char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    std::memcpy(data_, from, bytes);
  }
  ~Copy() { std::free(data_); }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  unsigned char* data() { return data_; }
  std::size_t size() const { return bytes_; }
  Header& header() { return *reinterpret_cast<Header*>(data_); }

 private:
  unsigned char* data_;
  std::size_t bytes_;
};

// A region with something in every section.
void fill(Rig& rig) {
  const u32 g = rig.group("0", {0, 1, 2, 3});
  const u32 other = rig.group("tp", {0, 5, 6, 9});
  const u32 file = rig.intern("/home/user/train.py");
  const fr_frame frames[3] = {
      {file, rig.intern("step"), 57}, {file, rig.intern("main"), 91}, {file, 0, 0}};
  const u32 stack = rig.tables->stack(frames, 3);
  std::vector<u32> shape(40, 3);
  for (int i = 0; i < 200; ++i) {
    fr_op op = make_op(i % 3 == 0 ? other : g, i % 5 == 0 ? FR_SEND : FR_COLLECTIVE,
                       rig.intern("all_reduce"));
    op.peer = i % 4;
    op.stack = stack;
    op.shape = shape.data();
    op.n_shape = i % 2 == 0 ? 4 : 40;
    const fr_ticket t = rig.begin(op);
    if (i % 7 != 0) {
      end(rig.hot, t, i % 11 == 0 ? State::kFailed : State::kCompleted, 1);
    }
    if (i % 20 == 0) {
      note(rig.hot, "a note of some length, longer than forty bytes", 46);
      span_begin(rig.hot, 1);
    }
  }
  rig.tables->set_layer("torch", "adapter");
}

u64 touch(std::string_view text) {
  u64 sum = text.size();
  for (const char c : text) {
    sum += static_cast<unsigned char>(c);
  }
  return sum;
}

// Reads everything a View offers, and follows every id in it.
u64 walk(const View& v) {
  u64 sum = touch(v.options());
  const u32 most = 20'000;
  for (u32 i = 0; i < std::min(v.n_strings(), most); ++i) {
    sum += touch(v.string(i));
  }
  for (u32 i = 0; i < std::min(v.n_frames(), most); ++i) {
    sum += v.frame(i).line;
  }
  for (u32 i = 0; i < std::min(v.n_stacks(), most); ++i) {
    for (const u32 f : v.stack(i)) {
      sum += touch(v.string(v.frame(f).file));
    }
    sum += touch(user_site(v, i).file);
  }
  for (u32 i = 0; i < std::min(v.n_groups(), most); ++i) {
    const GroupRow& g = *v.group(i);
    sum += touch(v.string(g.name)) + g.issued.load() + g.released.load();
    for (const u32 r : v.group_ranks(g)) {
      sum += r;
    }
  }
  for (u32 i = 0; i < std::min(v.n_lanes(), most); ++i) {
    sum += v.lane(i) != nullptr ? v.lane(i)->failed.load() : 0;
  }
  for (u32 i = 0; i < std::min(v.n_crumbs(), most); ++i) {
    sum += v.crumb(i) != nullptr ? v.crumb(i)->note[kNoteBytes / 4 - 1].load() : 0;
  }
  RecordCopy r;
  for (u32 i = 0; i < std::min(v.n_slots(), most); ++i) {
    if (v.read(i, r) != Slot::kWhole) {
      continue;
    }
    sum += r.payload.seq + touch(v.string(r.payload.op)) + touch(v.string(r.error)) +
           v.stack(r.payload.stack).size();
    const u32 words = r.payload.kind == FR_NOTE ? (r.n_shape + 3) / 4 : r.n_shape;
    for (u32 w = 0; r.shape != nullptr && w < words; ++w) {
      sum += r.shape[w];
    }
  }
  char text[160];
  if (last_operation(v, r)) {
    describe(v, r, text, sizeof text);
    sum += touch(text);
  }
  sum += oldest_in_flight(v, 1, r) ? 1 : 0;
  const TickClock clock(v.header());
  return sum + clock.unix_ns(v.header().step_ticks.load());
}

void try_out(Copy& copy, DumpEncoder* encoder = nullptr) {
  const View v = View::of(copy.data(), copy.size());
  if (!v.ok()) {
    REQUIRE(v.error() != nullptr);
    return;
  }
  volatile u64 sink = walk(v);
  (void)sink;
  if (encoder != nullptr) {
    encoder->encode(v, DumpFacts{});
  }
}

}  // namespace

TEST_CASE("a fresh region is readable and says what is wrong with what is none") {
  Rig rig(64);
  REQUIRE(rig.view.ok());
  CHECK(rig.view.error() == nullptr);
  CHECK(std::string(rig.view.options()).find("FR_JOB=rig") != std::string::npos);
  CHECK_FALSE(View().ok());
  CHECK_FALSE(View::of(nullptr, 0).ok());
  CHECK(std::string(View::of(rig.region.base, 100).error()) == "too short for a ring");
  CHECK(std::string(View::of(rig.region.base, rig.region.bytes - 1).error()) == "truncated");
  Copy copy(rig.region.base, rig.region.bytes);
  copy.header().magic.store(7);
  CHECK(std::string(View::of(copy.data(), copy.size()).error()) == "not a ring");
  copy.header().magic.store(kRegionMagic);
  copy.header().version = 99;
  CHECK(std::string(View::of(copy.data(), copy.size()).error()) ==
        "a ring of another layout version");
  copy.header().version = kLayoutVersion;
  copy.header().n_records = 100;
  CHECK(std::string(View::of(copy.data(), copy.size()).error()) == "damaged header");
}

TEST_CASE("a file longer than the region it holds is readable") {
  Rig rig(64);
  fill(rig);
  std::string bytes(reinterpret_cast<const char*>(rig.region.base), rig.region.bytes);
  bytes += "appended";
  Copy copy(bytes.data(), bytes.size());
  const View v = View::of(copy.data(), copy.size());
  REQUIRE(v.ok());
  CHECK(walk(v) == walk(rig.view));
}

TEST_CASE("truncated at any length") {
  Rig rig(64);
  fill(rig);
  for (std::size_t bytes = 1; bytes < rig.region.bytes;
       bytes = bytes < 9'000 ? bytes + 57 : bytes + 4096) {
    Copy copy(rig.region.base, bytes);
    const View v = View::of(copy.data(), copy.size());
    CHECK_FALSE(v.ok());
  }
}

TEST_CASE("every byte of the header flipped") {
  Rig rig(64);
  fill(rig);
  Copy copy(rig.region.base, rig.region.bytes);
  for (std::size_t at = 0; at < kHeaderBytes; ++at) {
    const unsigned char was = copy.data()[at];
    const bool text = at >= offsetof(Header, job) && at < offsetof(Header, exit);
    for (const int flip : {0xff, 0x80, 0x01}) {
      copy.data()[at] = static_cast<unsigned char>(was ^ flip);
      try_out(copy);
      if (text) {
        break;  // nothing is computed from texts
      }
    }
    copy.data()[at] = was;
  }
}

TEST_CASE("hostile numbers in every word of the header and the section table") {
  Rig rig(64);
  fill(rig);
  DumpEncoder encoder;
  REQUIRE(encoder.init(64));
  Copy copy(rig.region.base, rig.region.bytes);
  const u32 hostile[] = {0,
                         1,
                         7,
                         63,
                         65,
                         4095,
                         0x7fffffff,
                         0x80000000,
                         0xffffffff,
                         0xfffffff8,
                         static_cast<u32>(rig.region.bytes),
                         static_cast<u32>(rig.region.bytes - 8)};
  for (std::size_t at = 0; at + 4 <= offsetof(Header, sections) + sizeof(Header::sections);
       at += 4) {
    if (at >= offsetof(Header, job) && at < offsetof(Header, exit)) {
      continue;
    }
    u32 was = 0;
    std::memcpy(&was, copy.data() + at, 4);
    for (const u32 value : hostile) {
      std::memcpy(copy.data() + at, &value, 4);
      try_out(copy, at >= offsetof(Header, sections) || at < 512 ? &encoder : nullptr);
    }
    std::memcpy(copy.data() + at, &was, 4);
  }
}

TEST_CASE("random damage anywhere") {
  Rig rig(64);
  fill(rig);
  DumpEncoder encoder;
  REQUIRE(encoder.init(64));
  Copy copy(rig.region.base, rig.region.bytes);
  for (const unsigned seed : {1u, 2u, 3u}) {
    std::mt19937 random(seed);
    for (int round = 0; round < 300; ++round) {
      std::vector<std::pair<std::size_t, u32>> undo;
      for (int i = 0; i < 20; ++i) {
        // half of it into the header and the records, where it hurts
        const std::size_t limit = i % 2 == 0 ? copy.size() : std::size_t{64 * 1024};
        const std::size_t at = random() % (limit / 4) * 4;
        if (at < 64) {
          continue;  // magic, version: only leads to "not a ring"
        }
        u32 was = 0;
        std::memcpy(&was, copy.data() + at, 4);
        undo.emplace_back(at, was);
        const u32 value = random() % 3 == 0   ? random()
                          : random() % 2 == 0 ? was ^ (1u << random() % 32)
                                              : 0xffffffffu;
        std::memcpy(copy.data() + at, &value, 4);
      }
      try_out(copy, round % 10 == 0 ? &encoder : nullptr);
      for (auto it = undo.rbegin(); it != undo.rend(); ++it) {
        std::memcpy(copy.data() + it->first, &it->second, 4);
      }
    }
  }
}

TEST_CASE("damaged records, statuses and table rows") {
  Rig rig(64);
  fill(rig);
  Copy copy(rig.region.base, rig.region.bytes);
  const SectionRow* sections = copy.header().sections;
  std::mt19937 random(4);
  for (const Section s : {kSecRecords, kSecStatus, kSecStringIndex, kSecStacks, kSecStackWords,
                          kSecFrames, kSecGroups, kSecRanks, kSecLanes, kSecCrumbs}) {
    const std::size_t used =
        std::min<std::size_t>(u64{sections[s].count} * sections[s].stride_bytes, 8192);
    for (int round = 0; round < 200; ++round) {
      const std::size_t at = sections[s].offset_bytes + random() % (used / 4) * 4;
      u32 was = 0;
      std::memcpy(&was, copy.data() + at, 4);
      const u32 value = round % 2 == 0 ? 0xffffffffu : static_cast<u32>(random());
      std::memcpy(copy.data() + at, &value, 4);
      try_out(copy);
      std::memcpy(copy.data() + at, &was, 4);
    }
  }
}

TEST_CASE("more groups than this version knows do not overrun the encoder") {
  Rig rig(1024);
  fill(rig);
  Copy copy(rig.region.base, rig.region.bytes);
  SectionRow& groups = copy.header().sections[kSecGroups];
  groups.count = static_cast<u32>((copy.size() - groups.offset_bytes) / groups.stride_bytes);
  REQUIRE(groups.count > 2 * kGroups);
  copy.header().n_groups.store(groups.count);
  DumpEncoder encoder;
  REQUIRE(encoder.init(1024));
  try_out(copy);
  const DumpEncoder::Bytes bytes = encoder.encode(View::of(copy.data(), copy.size()), DumpFacts{});
  REQUIRE(bytes.data != nullptr);
  const Dump d(std::string(static_cast<const char*>(bytes.data), bytes.size));
  const Node rows = d["groups"]["rows"];
  u32 invented = 0;
  for (std::size_t i = kGroups; i < rows.size(); ++i) {
    invented +=
        rows[i].is_nil() || rows[i][27].natural() == 0 ? 0 : 1;  // records kept of a group unseen
  }
  CHECK(invented == 0);
}

TEST_CASE("a slot being written is torn, an unused one empty") {
  Rig rig(64);
  RecordCopy r;
  CHECK(rig.view.read(0, r) == Slot::kEmpty);
  const u64 ticket = rig.hot.ring.claim();
  CHECK(rig.view.read(static_cast<u32>(ticket), r) == Slot::kTorn);
}

TEST_CASE("a status that is locked for ever reads as enqueued, another ticket's is not shown") {
  Rig rig(64);
  const u32 g = rig.group("g");
  const fr_ticket t = rig.collective(g);
  Status& s = rig.hot.ring.status[(t.ticket - 1) & 63];
  s.tag = t.ticket << 3 | static_cast<u64>(State::kLocked);
  CHECK_FALSE(rig.read(t).has_status);
  s.tag = (t.ticket + 64) << 3 | static_cast<u64>(State::kCompleted);
  CHECK_FALSE(rig.read(t).has_status);
}

TEST_CASE("an anchor being written is not used") {
  Anchor a{};
  u64 ticks = 0;
  u64 unix_ns = 0;
  u64 mono = 0;
  CHECK_FALSE(read_anchor(a, ticks, unix_ns, mono));
  a.ticks = 5;
  a.seq = 1;
  CHECK_FALSE(read_anchor(a, ticks, unix_ns, mono));
  a.seq = 2;
  CHECK(read_anchor(a, ticks, unix_ns, mono));
  CHECK(ticks == 5);
}

TEST_CASE("ticks become unix time through the anchors, also before the first and after the last") {
  auto h = std::make_unique<Header>();
  h->clock_kind = ClockKind::kTsc;
  const auto set = [](Anchor& a, u64 ticks, u64 unix_ns, u64 mono) {
    a.ticks = ticks;
    a.unix_ns = unix_ns;
    a.monotonic_ns = mono;
    a.seq = 2;
  };
  CHECK(TickClock(*h).unix_ns(100) == 0);
  set(h->first, 1'000, 5'000'000'000, 1'000'000);
  CHECK(TickClock(*h).unix_ns(2'000) == 0);       // no rate yet
  set(h->last, 3'000, 9'999'999'999, 1'001'000);  // unix time was stepped: does not count
  const TickClock clock(*h);
  CHECK(clock.unix_ns(0) == 0);
  CHECK(clock.unix_ns(1'000) == 5'000'000'000);
  CHECK(clock.unix_ns(2'000) == 5'000'000'500);
  CHECK(clock.unix_ns(5'000) == 5'000'002'000);
  CHECK(clock.unix_ns(800) == 4'999'999'900);
}
