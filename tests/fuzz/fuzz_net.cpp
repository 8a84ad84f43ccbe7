// fuzz_net.cpp - datagrams from anybody: a list of them (a byte for the length, the bytes), each
// heard as it came, then again as if its sender had the token.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "net/protocol.hpp"
#include "target.hpp"

namespace {

constexpr fr::net::Token kToken{{7}};
constexpr std::uint32_t kNodes = 8;

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fr::net;
  Protocol::Peer peers[kNodes] = {};
  Protocol protocol;
  protocol.init(kToken, 0, 3, peers);
  protocol.set_endpoint(4000, 1);
  for (std::uint32_t i = 0; i < kNodes; ++i) {
    protocol.set_asked(i, true);
  }
  protocol.begin(Kind::kIncident, 1, 0, "stuck", 0);
  std::uint64_t now = 0;
  while (size != 0) {
    const std::size_t n = std::min<std::size_t>(data[0], size - 1);
    std::uint8_t bytes[256] = {};
    std::memcpy(bytes, data + 1, n);
    data += 1 + n;
    size -= 1 + n;
    if (protocol.receive(bytes, n).is_valid) {
      std::abort();  // 128 bits were guessed
    }
    if (n >= sizeof(Digest)) {
      const Digest digest = siphash(kToken, bytes, n - sizeof(Digest));
      std::memcpy(bytes + n - sizeof(Digest), digest.bytes, sizeof digest.bytes);
      const Protocol::Heard heard = protocol.receive(bytes, n);
      Message m = protocol.reply_to(heard);
      std::uint8_t out[kMostBytes];
      if (heard.is_valid && (heard.sender >= kNodes || protocol.encode(m, out) > kMostBytes ||
                             std::strlen(heard.message.reason) > kReasonBytes)) {
        std::abort();
      }
    }
    now += 40'000'000;
    Message m;
    for (std::uint32_t k = 0; protocol.next(now, m); ++k) {
      if (m.receiver >= kNodes || k > 5 * kNodes) {
        std::abort();
      }
    }
  }
  return 0;
}
