// exchange.cpp - the steps of the exchange. Ordinary code, on a thread of its own.
#include "net/exchange.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "net/siphash.hpp"

namespace fr::net {
namespace {

constexpr u64 kSecond_ns = 1'000'000'000;
// By then the nodes that have come are the job's: one that comes later has the shared directory.
constexpr u64 kAllCounted_ns = 30 * kSecond_ns;
constexpr u64 kAllListed_ns = 60 * kSecond_ns;
constexpr u64 kGiveUp_ns = 120 * kSecond_ns;

// A row of the list as the store has it: as in memory, its endpoint first, little-endian.
std::string bytes_of(const NodeRow& row) {
  std::string out(sizeof(NodeRow), '\0');
  auto* to = reinterpret_cast<u8*>(out.data());
  store_le(to, row.endpoint.load(), 8);
  std::memcpy(to + 8, row.address, sizeof row.address);
  to[24] = row.is_v6;
  store_le(to + 26, row.stride, 2);
  store_le(to + 28, static_cast<u32>(row.first_rank), 4);
  store_le(to + 32, row.n_ranks, 4);
  std::memcpy(to + 36, row.host, sizeof row.host);
  return out;
}

void read_row(const char* bytes, NodeRow& row) {
  const auto* from = reinterpret_cast<const u8*>(bytes);
  row.endpoint.store(load_le(from, 8));
  std::memcpy(row.address, from + 8, sizeof row.address);
  row.is_v6 = from[24] != 0;
  row.stride = static_cast<u16>(load_le(from + 26, 2));
  row.first_rank = static_cast<i32>(load_le(from + 28, 4));
  row.n_ranks = static_cast<u32>(load_le(from + 32, 4));
  std::memcpy(row.host, from + 36, sizeof row.host);
  row.host[sizeof row.host - 1] = '\0';
}

bool is_loopback(const NodeRow& row) {
  static constexpr u8 kV6[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return row.is_v6 ? std::memcmp(row.address, kV6, sizeof kV6) == 0 : row.address[0] == 127;
}

std::vector<i32> ranks_here(const Control& page) {
  std::vector<i32> ranks;
  for (const PeerRow& row : page.peers) {
    if (row.state.load(std::memory_order_acquire) >= kPeerLive && row.rank.load() >= 0) {
      ranks.push_back(row.rank.load());
    }
  }
  return ranks;
}

// Ranks with equal distances are named; others are counted only.
void describe_ranks(std::vector<i32> ranks, NodeRow& row) {
  std::sort(ranks.begin(), ranks.end());
  row.n_ranks = static_cast<u32>(ranks.size());
  row.first_rank = ranks.empty() ? -1 : ranks.front();
  const i32 stride = ranks.size() < 2 ? 1 : ranks[1] - ranks[0];
  row.stride = ranks.empty() || stride <= 0 || stride > 0xffff ? 0 : static_cast<u16>(stride);
  for (std::size_t i = 2; i < ranks.size(); ++i) {
    row.stride = ranks[i] - ranks[i - 1] == stride ? row.stride : u16{0};
  }
}

}  // namespace

Exchange::Exchange(ControlPage& control, const std::string& job, i32 attempt, i32 world_size,
                   const std::string& host)
    : control_(control),
      prefix_("fr/" + job + "/" + std::to_string(attempt) + "/"),
      host_(host),
      world_size_(world_size) {}

void Exchange::set_endpoint(const Address& address, u16 port) noexcept {
  address_ = address;
  port_ = port;
  has_endpoint_ = true;
}

Step Exchange::fail(const char* why) noexcept {
  why_ = why;
  return Step::kFailed;
}

Step Exchange::step(const fr_store& store, u64 now_ns) {
  began_ns_ = began_ns_ == 0 ? now_ns : began_ns_;
  return counted_ ? list(store, now_ns) : count(store, now_ns);
}

Step Exchange::count(const fr_store& store, u64 now_ns) {
  Nodes& nodes = control_.page().nodes;
  int64_t n = 0;
  if (nodes.in_store == 0) {
    if (store.add(store.self, key("nodes").c_str(), 1, &n) < 0) {
      return fail("the store does not answer");
    }
    nodes.in_store = static_cast<u32>(n);
  }
  const auto here = static_cast<u32>(ranks_here(control_.page()).size());
  const i64 more = here > nodes.counted ? here - nodes.counted : 0;
  if (store.add(store.self, key("ranks").c_str(), more, &n) < 0) {
    return fail("the store does not answer");
  }
  nodes.counted += static_cast<u32>(more);
  if (n < world_size_ && now_ns - began_ns_ < kAllCounted_ns) {
    return Step::kAgain;
  }
  if (store.add(store.self, key("nodes").c_str(), 0, &n) < 0) {
    return fail("the store does not answer");
  }
  if (n == 1) {
    return Step::kAlone;
  }
  counted_ = true;
  return n > kNodes ? fail("more nodes than there is room for") : Step::kAddress;
}

// The token is agreed on before the address is out: a node that has the list has both.
bool Exchange::publish(const fr_store& store) {
  Nodes& nodes = control_.page().nodes;
  u8 proposed[sizeof nodes.token];
  char hex[2 * sizeof proposed + 1];
  if (getrandom(proposed, sizeof proposed, 0) != static_cast<ssize_t>(sizeof proposed)) {
    return false;
  }
  for (std::size_t i = 0; i < sizeof proposed; ++i) {
    std::snprintf(hex + 2 * i, 3, "%02x", proposed[i]);
  }
  char kept[2 * sizeof proposed + 1] = "";
  if (store.keep(store.self, key("token").c_str(), hex, sizeof hex - 1, kept, sizeof kept) !=
      static_cast<int64_t>(sizeof hex - 1)) {
    return false;
  }
  for (std::size_t i = 0; i < sizeof proposed; ++i) {
    unsigned byte = 0;
    if (std::sscanf(kept + 2 * i, "%2x", &byte) != 1) {
      return false;
    }
    nodes.token[i] = static_cast<u8>(byte);
  }
  NodeRow row{};
  row.endpoint.store(nodes.epoch.load() << 16 | port_);
  std::memcpy(row.address, address_.bytes, sizeof row.address);
  row.is_v6 = address_.is_v6;
  describe_ranks(ranks_here(control_.page()), row);
  std::snprintf(row.host, sizeof row.host, "%s", host_.c_str());
  const std::string bytes = bytes_of(row);
  const std::string own = key(std::to_string(nodes.in_store - 1));
  return store.set(store.self, own.c_str(), bytes.data(), bytes.size()) >= 0;
}

bool Exchange::make_list(const fr_store& store, u32 n, std::string& rows) {
  rows.clear();
  for (u32 i = 0; i < n; ++i) {
    std::string row(sizeof(NodeRow), '\0');
    const int64_t bytes =
        store.get(store.self, key(std::to_string(i)).c_str(), row.data(), row.size());
    if (bytes < 0) {
      return false;
    }
    if (bytes != sizeof(NodeRow)) {  // it came and went: nobody can tell it anything
      NodeRow none{};
      none.first_rank = -1;
      std::snprintf(none.host, sizeof none.host, "?");
      row = bytes_of(none);
    }
    rows += row;
  }
  return store.set(store.self, key("list").c_str(), rows.data(), rows.size()) >= 0;
}

Step Exchange::take_list(const std::string& rows) {
  Nodes& nodes = control_.page().nodes;
  const auto n = static_cast<u32>(rows.size() / sizeof(NodeRow));
  const u32 own = nodes.in_store - 1;
  if (rows.size() % sizeof(NodeRow) != 0 || n < 2 || n > kNodes || own >= n) {
    return fail("this node came too late for the list");
  }
  if (!control_.make_room(n)) {
    return fail("no room for the list in the control page");
  }
  bool is_routed = false;
  for (u32 i = 0; i < n; ++i) {
    read_row(rows.data() + i * sizeof(NodeRow), nodes.rows[i]);
    is_routed =
        is_routed || ((nodes.rows[i].endpoint.load() & 0xffff) != 0 && !is_loopback(nodes.rows[i]));
  }
  // Clear addresses that others cannot reach: these nodes must not be said not to answer.
  for (u32 i = 0; i < n && is_routed; ++i) {
    if (is_loopback(nodes.rows[i])) {
      nodes.rows[i].endpoint.store(0);
    }
  }
  nodes.own = own;
  nodes.n.store(n, std::memory_order_release);
  return Step::kListed;
}

Step Exchange::list(const fr_store& store, u64 now_ns) {
  Nodes& nodes = control_.page().nodes;
  if (!has_endpoint_) {
    return Step::kAddress;
  }
  int64_t n = 0;
  if (nodes.is_listed == 0) {
    if (!publish(store) || store.add(store.self, key("listed").c_str(), 1, &n) < 0) {
      return fail("the store does not answer");
    }
    nodes.is_listed = 1;
  }
  if (nodes.in_store == 1) {
    int64_t all = 0;
    if (store.add(store.self, key("listed").c_str(), 0, &n) < 0 ||
        store.add(store.self, key("nodes").c_str(), 0, &all) < 0) {
      return fail("the store does not answer");
    }
    if (n < all && now_ns - began_ns_ < kAllListed_ns) {
      return Step::kAgain;
    }
    std::string rows;
    return make_list(store, static_cast<u32>(all < kNodes ? all : kNodes), rows)
               ? take_list(rows)
               : fail("the store does not answer");
  }
  std::string rows(kNodes * sizeof(NodeRow), '\0');
  const int64_t bytes = store.get(store.self, key("list").c_str(), rows.data(), rows.size());
  if (bytes < 0) {
    return fail("the store does not answer");
  }
  if (bytes == 0) {
    return now_ns - began_ns_ < kGiveUp_ns ? Step::kAgain
                                           : fail("the first node did not make the list");
  }
  rows.resize(static_cast<std::size_t>(bytes) < rows.size() ? static_cast<std::size_t>(bytes)
                                                            : rows.size());
  return take_list(rows);
}

}  // namespace fr::net
