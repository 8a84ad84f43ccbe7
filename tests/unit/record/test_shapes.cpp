// Shape words: inline, in the blob ring, overwritten there.
#include <numeric>

#include "catch.hpp"
#include "format/hash.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

std::vector<u32> words(u32 n, u32 first) {
  std::vector<u32> w(n);
  std::iota(w.begin(), w.end(), first);
  return w;
}

fr_ticket record(Rig& rig, u32 group, const std::vector<u32>& shape) {
  fr_op op = make_op(group);
  op.shape = shape.data();
  op.n_shape = static_cast<u32>(shape.size());
  return rig.begin(op);
}

std::vector<u32> read_shape(Rig& rig, const fr_ticket& t) {
  const RecordCopy r = rig.read(t);
  return r.shape != nullptr ? std::vector<u32>(r.shape_buffer, r.shape_buffer + r.n_shape)
                            : std::vector<u32>();
}

}  // namespace

TEST_CASE("shapes of every length are read back") {
  Rig rig;
  const u32 g = rig.group("g");
  for (u32 n = 1; n <= FR_MAX_SHAPE_WORDS; n = n < 20 ? n + 1 : n + 41) {
    const auto shape = words(n, n * 1000);
    CHECK(read_shape(rig, record(rig, g, shape)) == shape);
  }
  const auto longest = words(FR_MAX_SHAPE_WORDS, 5);
  CHECK(read_shape(rig, record(rig, g, longest)) == longest);
}

TEST_CASE("no shape, and one that is too long, read as not captured") {
  Rig rig;
  const u32 g = rig.group("g");
  const RecordCopy none = rig.read(rig.collective(g));
  CHECK(none.shape == nullptr);
  CHECK_FALSE(none.shape_lost);
  CHECK(read_shape(rig, record(rig, g, words(FR_MAX_SHAPE_WORDS + 1, 0))).empty());
}

TEST_CASE("a shape across the end of the blob ring is read back") {
  Rig rig;
  const u32 g = rig.group("g");
  rig.header().blob_head.store(kBlobWords - 100);
  const auto shape = words(300, 9);
  CHECK(read_shape(rig, record(rig, g, shape)) == shape);
}

TEST_CASE("an overwritten shape is reported lost, never wrong") {
  Rig rig(4096);
  const u32 g = rig.group("g");
  std::vector<fr_ticket> tickets;
  constexpr u32 kEach = 500;
  for (u32 i = 0; i < 300; ++i) {
    tickets.push_back(record(rig, g, words(kEach, i * kEach)));
  }
  u32 lost = 0;
  u32 whole = 0;
  for (u32 i = 0; i < tickets.size(); ++i) {
    const RecordCopy r = rig.read(tickets[i]);
    CHECK(r.payload.n_shape == kEach);
    if (r.shape_lost) {
      ++lost;
      CHECK(r.shape == nullptr);
    } else {
      ++whole;
      CHECK(read_shape(rig, tickets[i]) == words(kEach, i * kEach));
    }
  }
  CHECK(whole == kBlobWords / kEach);
  CHECK(lost == 300 - whole);
}

TEST_CASE("one changed word of a shape in the blob is noticed") {
  Rig rig;
  const u32 g = rig.group("g");
  const auto shape = words(64, 1);
  const fr_ticket t = record(rig, g, shape);
  for (u32 i = 0; i < 64; ++i) {
    std::atomic<u32>& word = rig.hot.blob[i];
    word ^= 1u << (i % 32);
    CHECK(rig.read(t).shape_lost);
    word ^= 1u << (i % 32);
  }
  CHECK_FALSE(rig.read(t).shape_lost);
}

TEST_CASE("hashes tell order, length and every bit apart") {
  const u32 a[3] = {1, 2, 3};
  const u32 b[3] = {3, 2, 1};
  CHECK(hash_words(a, 3) != hash_words(b, 3));
  CHECK(hash_words(a, 3) != hash_words(a, 2));
  const u32 zeros[4] = {};
  CHECK(hash_words(zeros, 3) != hash_words(zeros, 4));
  CHECK(hash_bytes("", 0) != 0);
  CHECK(hash_bytes("abcdefgh", 8) != hash_bytes("abcdefghi", 9));
  CHECK(hash_bytes("a\0", 2) != hash_bytes("a", 1));
}
