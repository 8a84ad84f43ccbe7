// The layout that other versions and other processes rely on: sizes, places, cache lines.
#include "catch.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

static_assert(offsetof(Header, magic) == 0 && offsetof(Header, version) == 8);
static_assert(offsetof(Header, header_bytes) == 12 && offsetof(Header, region_bytes) == 16);
static_assert(sizeof(Record) == 128 && sizeof(Payload) == 120 && sizeof(Status) == 32);
static_assert(sizeof(GroupRow) == 256 && sizeof(LaneRow) == 128 && sizeof(Crumb) == 384);
static_assert(sizeof(SectionRow) == 16 && sizeof(PeerRow) == 832);

}  // namespace

TEST_CASE("a region of 16384 records takes at most 4 MiB") {
  CHECK(region_bytes(16384) <= 4u << 20);
  CHECK(region_bytes(64) < region_bytes(16384));
  CHECK(region_bytes(64) % 4096 == 0);
}

TEST_CASE("sections lie apart, in order, aligned to cache lines, inside the region") {
  Rig rig(256);
  u64 end = kHeaderBytes;
  for (u32 s = 0; s < kSections; ++s) {
    const SectionRow& row = rig.header().sections[s];
    CHECK(row.offset_bytes >= end);
    CHECK(row.offset_bytes % 64 == 0);
    end = row.offset_bytes + u64{row.count} * row.stride_bytes;
  }
  CHECK(end <= rig.region.bytes);
  CHECK(rig.header().region_bytes == rig.region.bytes);
  CHECK(rig.header().sections[kSecRecords].count == 256);
}

TEST_CASE(
    "enough room is never protected: quiet groups' share is at most half of the smallest ring") {
  static_assert(kMinRecords / 4 <= kQuietQuota);
  static_assert(kStrings <= kStringBuckets && (kStringBuckets & (kStringBuckets - 1)) == 0);
  static_assert((kBlobWords & (kBlobWords - 1)) == 0 && kBlobWords >= 2 * FR_MAX_SHAPE_WORDS);
  SUCCEED();
}
