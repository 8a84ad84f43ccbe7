// nodes.cpp - the thread fr-nodes: owner of the endpoint, the exchange of addresses, then turns.
#include "net/nodes.hpp"

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <string>

#include "format/ticks.hpp"
#include "net/address.hpp"
#include "net/endpoint.hpp"
#include "net/exchange.hpp"
#include "recorder/own_thread.hpp"
#include "recorder/recorder.hpp"
#include "watch/control_page.hpp"

namespace fr::net {
namespace {

constexpr u64 kSecond_ns = 1'000'000'000;
// An owner with a thread that has not run for so long is stopped or starved: another takes over.
constexpr u64 kSilent_ns = 3 * kSecond_ns;
constexpr u64 kFirstLook_ns = 20'000'000;
constexpr u64 kLastLook_ns = 2 * kSecond_ns;
constexpr u64 kMayBeWaiting = ~0ull;

class NodesThread {
 public:
  NodesThread(Recorder& r, const fr_store& store, std::string interfaces)
      : recorder_(r),
        store_(store),
        store_host_(store.host),
        interfaces_(std::move(interfaces)),
        exchange_(*r.control, r.options.job, r.env.attempt, r.region.header().world_size.load(),
                  r.host),
        endpoint_(r) {}

  bool prepare() noexcept { return endpoint_.prepare(); }
  bool start() noexcept {
    const bool ok = start_thread(thread_main, this, "fr-nodes");
    if (!ok) {
      is_running_.store(false);
    }
    return ok;
  }
  Endpoint& endpoint() noexcept { return endpoint_; }
  // Ends the thread; waits for a call of the store, but not for long.
  void stop() noexcept {
    has_ended_.store(true);
    endpoint_.wake();
    for (int i = 0; i < 200 && is_running_.load(); ++i) {
      const timespec pause{0, 1'000'000};
      nanosleep(&pause, nullptr);
    }
  }

 private:
  static void* thread_main(void* self) noexcept {
    auto& t = *static_cast<NodesThread*>(self);
    try {
      t.run();
    } catch (...) {  // no memory: the shared directory remains
      t.recorder_.control->page().nodes.over.store(1);
    }
    t.endpoint_.close();
    t.close_store();
    t.is_running_.store(false);
    return nullptr;
  }

  Nodes& nodes() noexcept { return recorder_.control->page().nodes; }

  void run() {
    while (!has_ended_.load() && nodes().over.load() == 0) {
      const bool is_listed = nodes().n.load(std::memory_order_acquire) != 0;
      if (is_listed) {
        close_store();
      }
      if (!own_endpoint()) {
        endpoint_.close();
        say(is_listed ? "another rank of this node has the endpoint" : "");
        endpoint_.turn(kSecond_ns);
      } else if (!is_listed) {
        meet();
      } else if (!endpoint_.has_begun()) {
        serve();
      } else {
        endpoint_.turn(kSecond_ns);
      }
    }
  }

  // True while this process has the node's endpoint; takes it where nobody has it.
  bool own_endpoint() noexcept {
    Control& page = recorder_.control->page();
    const auto self = static_cast<u32>(recorder_.control->own() - page.peers) + 1;
    u32 owner = page.nodes.owner.load();
    if (owner == self) {
      return true;
    }
    const u64 now = monotonic_ns();
    if (owner != 0 && owner <= kPeers) {
      if (now < looked_ns_ + kSecond_ns) {
        return false;
      }
      // Where all of the node was stopped, the owner goes on at the same moment as we do.
      const bool was_stopped = looked_ns_ != 0 && now - looked_ns_ > 2 * kSecond_ns;
      looked_ns_ = now;
      if (was_stopped) {
        return false;
      }
      const PeerRow& row = page.peers[owner - 1];
      const u64 beat = page.nodes.beat_ns.load();
      const bool is_silent = beat != kMayBeWaiting && now > beat && now - beat > kSilent_ns;
      if (row.state.load(std::memory_order_acquire) == kPeerLive && !is_dead(row) && !is_silent) {
        return false;
      }
    }
    if (!page.nodes.owner.compare_exchange_strong(owner, self)) {
      return false;
    }
    page.nodes.epoch.fetch_add(1);
    page.nodes.beat_ns.store(page.nodes.n.load() != 0 ? now : kMayBeWaiting);
    return true;
  }

  // One step of the exchange.
  void meet() {
    const Step step = exchange_.step(store_, monotonic_ns());
    if (step == Step::kAddress) {
      address_ = own_address(store_host_, store_.port, interfaces_);
      const u16 port = address_.is_known ? endpoint_.open(address_.bytes, address_.is_v6) : u16{0};
      exchange_.set_endpoint(address_, port);  // without one it is in the list, and not told
      return;
    }
    if (step == Step::kAgain) {
      pause(look_ns_);
      look_ns_ = look_ns_ * 2 < kLastLook_ns ? look_ns_ * 2 : kLastLook_ns;
      return;
    }
    if (step != Step::kListed) {
      nodes().over.store(1);
      say(step == Step::kFailed ? exchange_.why() : "");
    }
  }

  // The page has the list: also that of an owner before us.
  void serve() {
    Nodes& n = nodes();
    const NodeRow& own = n.rows[n.own];
    if (!endpoint_.is_open() && endpoint_.open(own.address, own.is_v6 != 0) == 0) {
      say("this node has no address that others reach");
      endpoint_.turn(kSecond_ns);
      return;
    }
    endpoint_.begin(monotonic_ns());
    Address a;
    std::memcpy(a.bytes, own.address, sizeof a.bytes);
    a.is_v6 = own.is_v6 != 0;
    const std::string text = "UDP " + text_of(a) + ":" +
                             std::to_string(own.endpoint.load() & 0xffff) + ", " +
                             std::to_string(n.n.load()) + " nodes";
    say(text.c_str());
  }

  // In fr.status() and dumps.
  void say(const char* text) {
    if (said_ != text) {
      said_ = text;
      recorder_.tables->set_layer("nodes", text);
    }
  }

  void pause(u64 ns) noexcept {
    const u64 until = monotonic_ns() + ns;
    for (u64 now = until - ns; !has_ended_.load() && now < until; now = monotonic_ns()) {
      endpoint_.turn(until - now);
    }
  }

  void close_store() noexcept {
    if (store_.close != nullptr) {
      store_.close(store_.self);
      store_.close = nullptr;
    }
  }

  Recorder& recorder_;
  fr_store store_;
  std::string store_host_;
  std::string interfaces_;
  Exchange exchange_;
  Endpoint endpoint_;
  Address address_;
  std::string said_;
  u64 looked_ns_ = 0;
  u64 look_ns_ = kFirstLook_ns;
  std::atomic<bool> has_ended_{false};
  std::atomic<bool> is_running_{true};
};

std::atomic<NodesThread*> g_nodes{nullptr};  // of the recorder in force; never freed

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Ranks elsewhere, or perhaps.
bool has_other_nodes(const Header& h) noexcept {
  return h.world_size.load() > 1 &&
         (h.local_world_size == 0 || h.world_size.load() > h.local_world_size);
}

}  // namespace

void join_nodes(Recorder* r, const fr_store& store) noexcept {
  const auto refuse = [&] { store.close(store.self); };
  if (r == nullptr || r->options.trigger != ToNodes::kAuto || !r->control->is_shared() ||
      r->control->own() == nullptr || !has_other_nodes(r->region.header()) ||
      g_nodes.load() != nullptr) {
    refuse();
    return;
  }
  try {
    const std::string gloo = variable("GLOO_SOCKET_IFNAME");
    auto* nodes =
        new NodesThread(*r, store, !gloo.empty() ? "=" + gloo : variable("NCCL_SOCKET_IFNAME"));
    NodesThread* none = nullptr;
    // Prepared before it is published: the watchdog may wake it at once.
    if (!nodes->prepare() || !g_nodes.compare_exchange_strong(none, nodes) || !nodes->start()) {
      refuse();
    }
  } catch (...) {  // no memory: the shared directory remains
    refuse();
  }
}

void forget_nodes(Recorder&) {
  g_nodes.store(nullptr);
}

void wake_endpoint(Recorder&) noexcept {
  if (NodesThread* nodes = g_nodes.load()) {
    nodes->endpoint().wake();
  }
}

const NodesAnswer* nodes_answer(u64 incident) noexcept {
  NodesThread* nodes = g_nodes.load();
  return nodes != nullptr ? nodes->endpoint().answer(incident) : nullptr;
}

void leave_nodes() noexcept {
  if (NodesThread* nodes = g_nodes.load()) {
    nodes->stop();
  }
}

}  // namespace fr::net
