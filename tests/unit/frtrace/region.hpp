// region.hpp - a small region as a process of rank 1 would map it: one group of two ranks, `issued`
// all_reduces of which the last is in flight.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "format/layout.hpp"

namespace frtest {

// A tiny region made by hand: 64 records, one group of two ranks, `issued` collectives.
class Region {
 public:
  explicit Region(int issued) {
    using namespace fr;
    std::size_t at = kHeaderBytes;
    const auto section = [&](Section s, u32 count, u32 stride) {
      at = (at + 63) & ~std::size_t{63};
      rows_[s] = {at, count, stride};
      at += std::size_t{count} * stride;
    };
    section(kSecOptions, 64, 1);
    section(kSecGroups, kGroups, sizeof(GroupRow));
    section(kSecRanks, kRankWords, 4);
    section(kSecLanes, kLanes, sizeof(LaneRow));
    section(kSecStringIndex, kStrings, sizeof(StringRow));
    section(kSecStringBytes, kStringBytes, 1);
    section(kSecFrames, kFrames, sizeof(FrameRow));
    section(kSecStacks, kStacks, sizeof(StackRow));
    section(kSecStackWords, kStackWords, 4);
    section(kSecBlob, kBlobWords, 4);
    section(kSecCrumbs, kCrumbs, sizeof(Crumb));
    section(kSecStatus, kRecords, sizeof(Status));
    section(kSecRecords, kRecords, sizeof(fr::Record));
    section(kSecDevice, 1, sizeof(Device));
    section(kSecComms, kDeviceRows, sizeof(CommRow));
    section(kSecDeviceOps, kDeviceRows, sizeof(DeviceOp));
    section(kSecPhases, kDeviceRows, sizeof(Phase));
    section(kSecCuda, 1, sizeof(Cuda));
    bytes_.resize((at + 4095) & ~std::size_t{4095});
    // Page-aligned as a mapping is.
    storage_.resize(bytes_.size() / 64 + 2);
    base_ = storage_.data();
    Header& h = header();
    h.version = kLayoutVersion;
    h.header_bytes = kHeaderBytes;
    h.region_bytes = bytes_.size();
    h.section_count = kSections;
    h.n_records = kRecords;
    h.clock_kind = ClockKind::kMonotonic;
    h.pid = 1;
    h.proc_start = 1;
    h.rank = 1;
    h.world_size = 2;
    h.start_unix_ns = kUnix;
    std::strcpy(h.job, "ringjob");
    std::strcpy(h.host, "no-such-host");
    h.step = INT64_MIN;
    std::memcpy(h.sections, rows_, sizeof rows_);
    for (Anchor* a : {&h.first, &h.last}) {
      const u64 offset = a == &h.first ? 0 : 1'000'000'000;
      a->ticks = 1000 + offset;
      a->unix_ns = kUnix + offset;
      a->monotonic_ns = 1000 + offset;
      a->seq = 2;
    }
    h.heartbeat_unix_ns = kUnix + 1'000'000'000;
    string("");
    const u32 name = string("0"), desc = string("default_pg"), op = string("all_reduce");
    std::strcpy(at_section<char>(kSecOptions), "FR_TIMEOUT_S=20\tdefault\n");
    GroupRow& g = at_section<GroupRow>(kSecGroups)[1];
    g.name = name;
    g.desc = desc;
    g.instance = 1;
    g.n_ranks = 2;
    g.own_rank = 1;
    g.ranks_words = 3;
    u32* ranks = at_section<u32>(kSecRanks);
    ranks[0] = 0, ranks[1] = 2, ranks[2] = 1;
    h.n_rank_words = 3;
    h.n_groups = 2;
    h.n_stacks = 1;
    h.n_frames = 1;
    for (int i = 0; i < issued; ++i) {
      const u64 ticket = static_cast<u64>(i);
      Payload p{};
      p.ticks = 1000 + ticket * 1'000'000;
      p.seq = ticket + 1;
      p.group = 1;
      p.op = op;
      p.kind = 1;
      p.peer = -1;
      p.in_numel = p.out_numel = 16;
      p.in_dtype = p.out_dtype = 7;
      p.group_index = static_cast<u32>(i);
      u64 words[kPayloadWords];
      std::memcpy(words, &p, sizeof p);
      const std::size_t slot = ticket % kRecords;
      fr::Record& r = at_section<fr::Record>(kSecRecords)[slot];
      for (u32 w = 0; w < kPayloadWords; ++w) {
        r.payload[w] = words[w];
      }
      r.seq = 2 * ticket + 2;
      if (i + 1 < issued) {
        Status& s = at_section<Status>(kSecStatus)[slot];
        s.ended_ticks = p.ticks + 10;
        s.tag = (ticket + 1) << 3 | static_cast<u64>(fr::State::kCompleted);
        g.completed_seq = p.seq;
        ++g.ended;
      }
    }
    g.issued = static_cast<u64>(issued) | static_cast<u64>(issued) << kIndexShift;
    h.head = static_cast<u64>(issued);
    h.magic = kRegionMagic;
  }

  static constexpr std::uint32_t kRecords = 64;
  static constexpr std::uint32_t kDeviceRows = 4;
  static constexpr std::uint64_t kUnix = 1'700'000'000'000'000'000ull;
  fr::Header& header() { return *reinterpret_cast<fr::Header*>(base_); }
  fr::GroupRow& group() { return at_section<fr::GroupRow>(fr::kSecGroups)[1]; }
  fr::Device& device() { return *at_section<fr::Device>(fr::kSecDevice); }
  fr::CommRow* comms() { return at_section<fr::CommRow>(fr::kSecComms); }
  fr::DeviceOp* device_ops() { return at_section<fr::DeviceOp>(fr::kSecDeviceOps); }
  fr::Phase* phases() { return at_section<fr::Phase>(fr::kSecPhases); }
  fr::Cuda& cuda() { return *at_section<fr::Cuda>(fr::kSecCuda); }
  std::span<const unsigned char> bytes() {
    return {reinterpret_cast<unsigned char*>(base_), bytes_.size()};
  }

  // Its id.
  fr::u32 string(const char* text) {
    const fr::u32 id = header().n_strings;
    fr::StringRow& row = at_section<fr::StringRow>(fr::kSecStringIndex)[id];
    row.offset = header().n_string_bytes;
    row.bytes = static_cast<fr::u32>(std::strlen(text));
    std::memcpy(at_section<char>(fr::kSecStringBytes) + row.offset, text, row.bytes);
    header().n_string_bytes = row.offset + row.bytes;
    header().n_strings = id + 1;
    return id;
  }

 private:
  struct alignas(64) Line {
    unsigned char bytes[64];
  };
  template <class T>
  T* at_section(fr::Section s) {
    return reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(base_) + rows_[s].offset_bytes);
  }

  fr::SectionRow rows_[fr::kSections]{};
  std::vector<unsigned char> bytes_;
  std::vector<Line> storage_;
  Line* base_ = nullptr;
};

}  // namespace frtest
