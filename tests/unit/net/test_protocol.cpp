// Messages between nodes, and one node's part in telling the others.
#include <cstring>
#include <vector>

#include "catch.hpp"
#include "net/protocol.hpp"

using namespace fr;
using namespace fr::net;

namespace {

constexpr Token kToken{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}};
constexpr u64 kMs = 1'000'000;

std::string hex(const Digest& digest) {
  std::string out;
  for (const u8 byte : digest.bytes) {
    out += "0123456789ABCDEF"[byte >> 4];
    out += "0123456789ABCDEF"[byte & 15];
  }
  return out;
}

struct Bytes {
  u8 data[kMostBytes];
  std::size_t n = 0;
};

Bytes bytes_of(const Message& m, const Token& token = kToken) {
  Bytes b;
  b.n = encode(m, token, b.data);
  return b;
}

Message incident_of(u32 sender, u32 receiver, u64 number) {
  Message m;
  m.sender = sender;
  m.receiver = receiver;
  m.port = 4000;
  m.epoch = 1;
  m.number = number;
  m.rank = 17;
  std::strcpy(m.reason, "no progress for 60.0 s");
  return m;
}

// One node of a job, and the datagrams that it sends.
struct NodeUnderTest {
  explicit NodeUnderTest(u32 own, u32 n = 4) : peers(n) {
    protocol.init(kToken, 0, own, peers);
    protocol.set_endpoint(5000, 1);
    for (u32 i = 0; i < n; ++i) {
      protocol.set_asked(i, true);
    }
  }
  Protocol::Heard hear(const Message& m, const Token& token = kToken) {
    const Bytes b = bytes_of(m, token);
    return protocol.receive(b.data, b.n);
  }
  void answer(u32 from, Kind kind, u64 number) {
    Message m;
    m.kind = Kind::kAnswer;
    m.answered = kind;
    m.sender = from;
    m.receiver = own();
    m.number = number;
    hear(m);
  }
  u32 own() {
    Protocol::Heard to_nobody;
    return protocol.reply_to(to_nobody).sender;
  }
  // Receivers of all that is due now.
  std::vector<u32> due(u64 now_ns) {
    std::vector<u32> to;
    Message m;
    while (protocol.next(now_ns, m)) {
      to.push_back(m.receiver);
    }
    return to;
  }
  std::vector<u32> unanswered() {
    std::vector<u32> out;
    protocol.each_unanswered([&](u32 peer) { out.push_back(peer); });
    return out;
  }
  std::vector<Protocol::Peer> peers;
  Protocol protocol;
};

}  // namespace

// The values are another implementation's (OpenSSL's), of key and data 00 01 02...
TEST_CASE("net: the digest is SipHash-2-4 with 128 bits") {
  Token key;
  u8 data[64];
  for (u8 i = 0; i < 64; ++i) {
    data[i] = i;
    key.bytes[i % 16] = i < 16 ? i : key.bytes[i % 16];
  }
  CHECK(hex(siphash(key, data, 0)) == "A3817F04BA25A8E66DF67214C7550293");
  CHECK(hex(siphash(key, data, 8)) == "3B62A9BA6258F5610F83E264F31497B4");
  CHECK(hex(siphash(key, data, 15)) == "5493E99933B0A8117E08EC0F97CFC3D9");
  CHECK(hex(siphash(key, data, 63)) == "5150D1772F50834A503E069A973FBD7C");
}

TEST_CASE("net: a message comes back from its bytes") {
  Message m = incident_of(3, 4, 0x1122334455667788);
  m.attempt = 7;
  m.epoch = 9;
  m.rank = -1;
  std::memset(m.reason, 'x', kReasonBytes);
  for (const Kind kind : {Kind::kIncident, Kind::kMoved, Kind::kAnswer}) {
    m.kind = kind;
    m.answered = Kind::kMoved;
    const Bytes b = bytes_of(m);
    Message back;
    REQUIRE(decode(b.data, b.n, kToken, back));
    CHECK(back.kind == kind);
    CHECK(back.answered == Kind::kMoved);
    CHECK(back.attempt == 7);
    CHECK(back.sender == 3);
    CHECK(back.receiver == 4);
    CHECK(back.port == 4000);
    CHECK(back.epoch == 9);
    CHECK(back.number == 0x1122334455667788);
    CHECK(back.rank == -1);
    CHECK(std::string(back.reason) == (kind == Kind::kIncident ? m.reason : ""));
  }
}

TEST_CASE("net: whatever bit of a message is changed, or however it is cut, it is none") {
  const Bytes b = bytes_of(incident_of(1, 0, 1));
  Message m;
  REQUIRE(decode(b.data, b.n, kToken, m));
  for (std::size_t i = 0; i < b.n * 8; ++i) {
    Bytes changed = b;
    changed.data[i / 8] = static_cast<u8>(changed.data[i / 8] ^ (1 << (i % 8)));
    CHECK_FALSE(decode(changed.data, changed.n, kToken, m));
  }
  for (std::size_t n = 0; n < b.n; ++n) {
    CHECK_FALSE(decode(b.data, n, kToken, m));
  }
  for (std::size_t i = 0; i < sizeof kToken.bytes * 8; ++i) {
    Token other = kToken;
    other.bytes[i / 8] = static_cast<u8>(other.bytes[i / 8] ^ (1 << (i % 8)));
    CHECK_FALSE(decode(b.data, b.n, other, m));
  }
  u8 longer[kMostBytes + 1] = {};
  std::memcpy(longer, b.data, b.n);
  CHECK_FALSE(decode(longer, b.n + 1, kToken, m));
  CHECK_FALSE(decode(longer, sizeof longer, kToken, m));
}

// Signed by one that has the token, and still not of this version or kind.
TEST_CASE("net: another version, and kinds that are none, are refused") {
  const Bytes b = bytes_of(incident_of(1, 0, 1));
  Message m;
  for (const auto& [offset, value] :
       {std::pair{0, 0}, {4, 0}, {4, 2}, {5, 0}, {5, 10}, {6, 0}, {6, 4}, {22, 1}}) {
    Bytes changed = b;
    changed.data[offset] = static_cast<u8>(value);
    const std::size_t signed_bytes = changed.n - sizeof(Digest);
    const Digest digest = siphash(kToken, changed.data, signed_bytes);
    std::memcpy(changed.data + signed_bytes, digest.bytes, sizeof digest.bytes);
    CHECK_FALSE(decode(changed.data, changed.n, kToken, m));
  }
}

TEST_CASE("net: a post carries any bytes, and nobody answers it") {
  NodeUnderTest node(2);
  Message post = incident_of(1, 2, 77);
  post.kind = Kind::kSignatures;
  post.reason_bytes = kReasonBytes;
  for (std::size_t i = 0; i < kReasonBytes; ++i) {
    post.reason[i] = static_cast<char>(i % 3);
  }
  const auto heard = node.hear(post);
  CHECK(heard.is_valid);
  CHECK_FALSE(heard.is_incident);
  CHECK_FALSE(heard.has_reply);
  CHECK(heard.message.number == 77);
  CHECK(heard.message.reason_bytes == kReasonBytes);
  CHECK(std::memcmp(heard.message.reason, post.reason, kReasonBytes) == 0);
}

TEST_CASE("net: what is for others, of others or of another attempt does nothing") {
  NodeUnderTest node(2);
  CHECK(node.hear(incident_of(1, 2, 1)).is_valid);
  CHECK_FALSE(node.hear(incident_of(1, 3, 2)).is_valid);
  CHECK_FALSE(node.hear(incident_of(2, 2, 2)).is_valid);
  CHECK_FALSE(node.hear(incident_of(4, 2, 2)).is_valid);
  CHECK_FALSE(node.hear(incident_of(~0u, 2, 2)).is_valid);
  Message m = incident_of(1, 2, 2);
  m.attempt = 1;
  CHECK_FALSE(node.hear(m).is_valid);
  CHECK_FALSE(node.hear(incident_of(1, 2, 2), Token{}).is_valid);
}

TEST_CASE("net: an incident counts once, is answered each time, and an older one is not") {
  NodeUnderTest node(0);
  for (const bool first : {true, false, false}) {
    const Protocol::Heard heard = node.hear(incident_of(1, 0, 5));
    CHECK(heard.is_incident == first);
    REQUIRE(heard.has_reply);
    const Message reply = node.protocol.reply_to(heard);
    CHECK(reply.kind == Kind::kAnswer);
    CHECK(reply.answered == Kind::kIncident);
    CHECK(reply.number == 5);
    CHECK(reply.receiver == 1);
    CHECK(reply.port == 5000);
  }
  const Protocol::Heard replayed = node.hear(incident_of(1, 0, 4));
  CHECK(replayed.is_valid);
  CHECK_FALSE(replayed.is_incident);
  CHECK_FALSE(replayed.has_reply);
  CHECK(node.hear(incident_of(2, 0, 4)).is_incident);  // per sender
}

TEST_CASE("net: each node is told until it answers, five times at most") {
  NodeUnderTest node(1);
  node.protocol.begin(Kind::kIncident, 1, 0, "stuck", 1000 * kMs);
  CHECK(node.due(1000 * kMs) == std::vector<u32>{2, 3, 0});
  CHECK(node.protocol.due_ns(1000 * kMs) == 1050 * kMs);
  CHECK(node.due(1049 * kMs).empty());
  node.answer(3, Kind::kIncident, 1);
  node.answer(3, Kind::kIncident, 1);
  CHECK(node.protocol.answered() == 1);
  CHECK(node.due(1050 * kMs) == std::vector<u32>{2, 0});
  CHECK(node.due(1100 * kMs) == std::vector<u32>{2, 0});
  CHECK(node.due(1150 * kMs).empty());
  node.answer(0, Kind::kIncident, 1);
  CHECK(node.due(1200 * kMs) == std::vector<u32>{2});
  CHECK(node.due(1400 * kMs) == std::vector<u32>{2});
  CHECK(node.protocol.due_ns(1400 * kMs) == 1600 * kMs);
  CHECK(node.protocol.is_telling());
  CHECK(node.due(1600 * kMs).empty());
  CHECK_FALSE(node.protocol.is_telling());
  CHECK_FALSE(node.protocol.has_yielded());
  CHECK(node.unanswered() == std::vector<u32>{2});
  CHECK(node.protocol.asked() == 3);
}

TEST_CASE("net: with all answers the round is over at once") {
  NodeUnderTest node(0, 3);
  node.protocol.begin(Kind::kIncident, 1, 0, "", 0);
  node.due(0);
  node.answer(2, Kind::kIncident, 1);
  node.answer(1, Kind::kIncident, 1);
  CHECK_FALSE(node.protocol.is_telling());
  CHECK(node.unanswered().empty());
  CHECK(node.protocol.due_ns(0) == ~0ull);
}

TEST_CASE("net: answers to another incident, and of other kinds, do not count") {
  NodeUnderTest node(0, 2);
  node.protocol.begin(Kind::kIncident, 2, 0, "", 0);
  node.answer(1, Kind::kIncident, 1);
  node.answer(1, Kind::kIncident, 3);
  node.answer(1, Kind::kMoved, 2);
  CHECK(node.protocol.answered() == 0);
  node.answer(1, Kind::kIncident, 2);
  CHECK(node.protocol.answered() == 1);
}

TEST_CASE("net: a node without an endpoint is not asked and not missed") {
  NodeUnderTest node(0, 3);
  node.protocol.set_asked(1, false);
  node.protocol.begin(Kind::kIncident, 1, 0, "", 0);
  CHECK(node.due(0) == std::vector<u32>{2});
  node.answer(1, Kind::kIncident, 1);
  CHECK(node.protocol.is_telling());
  node.due(600 * kMs);
  CHECK(node.unanswered() == std::vector<u32>{2});
  node.protocol.set_asked(2, false);
  node.protocol.begin(Kind::kIncident, 2, 0, "", 0);
  CHECK_FALSE(node.protocol.is_telling());
}

TEST_CASE("net: of two that tell the same the first in the list goes on") {
  NodeUnderTest first(1);
  NodeUnderTest second(3);
  for (NodeUnderTest* node : {&first, &second}) {
    node->protocol.begin(Kind::kIncident, 1, 0, "", 0);
  }
  first.hear(incident_of(3, 1, 1));
  CHECK(first.protocol.is_telling());
  CHECK(first.due(0) == std::vector<u32>{2, 0});  // 3 knows it
  CHECK(second.hear(incident_of(1, 3, 1)).has_reply);
  CHECK(second.protocol.has_yielded());
  CHECK(second.due(0).empty());
}

TEST_CASE("net: whoever tells of a later incident ends our round") {
  NodeUnderTest node(0);
  node.protocol.begin(Kind::kIncident, 1, 0, "", 0);
  CHECK(node.hear(incident_of(3, 0, 2)).is_incident);
  CHECK(node.protocol.has_yielded());
}

TEST_CASE("net: an endpoint that moved is found under its new port, not under an old one") {
  NodeUnderTest node(0);
  Message m = incident_of(2, 0, 1);
  m.kind = Kind::kMoved;
  m.epoch = m.number = 3;
  m.port = 6000;
  Protocol::Heard heard = node.hear(m);
  CHECK(heard.has_moved);
  CHECK(heard.port == 6000);
  CHECK(heard.has_reply);
  CHECK_FALSE(node.hear(m).has_moved);  // sent again
  CHECK(node.hear(m).has_reply);
  m.epoch = m.number = 2;
  m.port = 7000;
  heard = node.hear(m);  // a replay
  CHECK_FALSE(heard.has_moved);
  CHECK_FALSE(heard.has_reply);
  m = incident_of(2, 0, 1);  // says it, too
  m.epoch = 4;
  CHECK(node.hear(m).has_moved);
}

TEST_CASE("net: an incident takes the place of the round that tells of a move") {
  NodeUnderTest node(0, 2);
  node.protocol.begin(Kind::kMoved, 2, -1, "", 0);
  CHECK(node.hear(incident_of(1, 0, 1)).is_incident);
  CHECK(node.protocol.is_telling());  // it is about another thing
  node.protocol.begin(Kind::kIncident, 2, 0, "", 0);
  CHECK(node.protocol.kind() == Kind::kIncident);
  node.answer(1, Kind::kMoved, 2);
  CHECK(node.protocol.answered() == 0);
}

TEST_CASE("net: those that told us need not be told") {
  NodeUnderTest node(1);
  node.hear(incident_of(0, 1, 4));
  node.protocol.begin(Kind::kIncident, 4, 0, "", 0);
  CHECK(node.due(0) == std::vector<u32>{2, 3});
}
