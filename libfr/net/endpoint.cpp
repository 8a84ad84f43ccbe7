// endpoint.cpp - turns of the thread that serves the endpoint.
#include "net/endpoint.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <ctime>

#include "format/text.hpp"
#include "format/ticks.hpp"
#include "recorder/recorder.hpp"
#include "watch/control_page.hpp"
#include "watch/post.hpp"
#include "watch/watchdog.hpp"

namespace fr::net {
namespace {

constexpr u64 kLongestWait_ns = 100'000'000;  // an incident of this node is told of by then
constexpr u32 kSentAtOnce = 64;               // then what came is read: the buffer is small
constexpr u32 kReadAtOnce = 256;
// Incidents that another node may be ahead by: it opens them one at a time, and every node follows.
constexpr u64 kMostAhead = 1024;
// The round itself, the thread's turn before it, and some more on a busy machine.
constexpr u64 kAnswer_ns = 850'000'000;

// The endpoint of a node as its row has it.
void note_moved(NodeRow& row, u64 epoch, u16 port) noexcept {
  const u64 to = epoch << 16 | port;
  u64 seen = row.endpoint.load();
  while (seen < to && !row.endpoint.compare_exchange_weak(seen, to)) {
  }
}

u16 port_of(const NodeRow& row) noexcept {
  return static_cast<u16>(row.endpoint.load() & 0xffff);
}

void name(const NodeRow& row, NodesAnswer::Node& to) noexcept {
  std::memcpy(to.host, row.host, sizeof to.host);
  to.first_rank = row.first_rank;
  to.n_ranks = row.n_ranks;
  to.stride = row.stride;
}

}  // namespace

bool Endpoint::prepare() noexcept {
  void* peers = mmap(nullptr, sizeof(Protocol::Peer) * kNodes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (peers == MAP_FAILED || event_fd < 0) {
    return false;
  }
  peers_ = static_cast<Protocol::Peer*>(peers);
  event_fd_ = event_fd;
  return true;
}

void Endpoint::close() noexcept {
  has_begun_.store(false);
  socket_.close();
}

void Endpoint::begin(u64 now_ns) noexcept {
  const Control& page = recorder_.control->page();
  const Nodes& nodes = page.nodes;
  const u32 n = nodes.n.load(std::memory_order_acquire);
  Token token;
  std::memcpy(token.bytes, nodes.token, sizeof token.bytes);
  const u64 epoch = nodes.epoch.load();
  std::memset(static_cast<void*>(peers_), 0, sizeof(Protocol::Peer) * n);
  protocol_ = {};
  protocol_.init(token, page.attempt, nodes.own, {peers_, n});
  protocol_.set_endpoint(port_, epoch);
  for (u32 i = 0; i < n; ++i) {
    peers_[i].epoch = nodes.rows[i].endpoint.load() >> 16;
    protocol_.set_asked(i, port_of(nodes.rows[i]) != 0);
  }
  NodeRow& own = recorder_.control->page().nodes.rows[nodes.own];
  const u64 listed = own.endpoint.load();
  note_moved(own, epoch, port_);
  if (listed != 0 && own.endpoint.load() != listed) {
    protocol_.begin(Kind::kMoved, epoch, -1, "", now_ns);
    is_settled_ = false;
  }
  has_begun_.store(true);
}

void Endpoint::wake() noexcept {
  const u64 one = 1;
  [[maybe_unused]] const ssize_t n = write(event_fd_, &one, sizeof one);  // full = already awake
}

void Endpoint::turn(u64 limit_ns) noexcept {
  u64 now = monotonic_ns();
  const u64 due = has_begun() ? protocol_.due_ns(now) : ~0ull;
  u64 wait = !has_begun() || limit_ns < kLongestWait_ns ? limit_ns : kLongestWait_ns;
  wait = has_begun() && !posts_to_nodes.is_empty() ? 0 : wait;  // what one turn did not send
  wait = due == ~0ull ? wait : due <= now ? 0 : due - now < wait ? due - now : wait;
  pollfd fds[2] = {{event_fd_, POLLIN, 0}, {socket_.fd(), POLLIN, 0}};
  poll(fds, has_begun() ? 2 : 1, static_cast<int>((wait + 999'999) / 1'000'000));
  u64 drained = 0;
  [[maybe_unused]] const ssize_t n = read(event_fd_, &drained, sizeof drained);
  if (!has_begun()) {
    return;
  }
  now = monotonic_ns();
  recorder_.control->page().nodes.beat_ns.store(now);
  hear();
  check_incident(now);
  tell(now);
  send_posts();
  settle(monotonic_ns());
}

void Endpoint::hear() noexcept {
  ControlPage& control = *recorder_.control;
  Nodes& nodes = control.page().nodes;
  u8 bytes[kMostBytes];
  for (u32 i = 0; i < kReadAtOnce; ++i) {
    const long n = socket_.receive(bytes, sizeof bytes);
    if (n < 0) {
      return;
    }
    if (n > static_cast<long>(sizeof bytes)) {
      continue;
    }
    const Protocol::Heard heard = protocol_.receive(bytes, static_cast<std::size_t>(n));
    if (heard.has_moved) {
      note_moved(nodes.rows[heard.sender], heard.epoch, heard.port);
    }
    if (heard.is_valid && is_post(heard.message.kind)) {
      hear_post(heard);
      continue;
    }
    const u64 incident = heard.message.number;
    if (heard.is_incident && incident <= control.page().incident.load() + kMostAhead) {
      char reason[sizeof Control::reason];
      format(reason, sizeof reason, "node %s: %s", nodes.rows[heard.sender].host,
             heard.message.reason);
      if (control.follow(incident, heard.message.rank, reason)) {
        recorder_.watchdog->wake();
      }
    }
    if (heard.has_reply) {
      send(protocol_.reply_to(heard));
    }
  }
}

void Endpoint::hear_post(const Protocol::Heard& heard) noexcept {
  const Message& m = heard.message;
  Post post{};
  post.kind = static_cast<u8>(static_cast<u8>(m.kind) - static_cast<u8>(Kind::kHashes));
  post.bytes = static_cast<u8>(m.reason_bytes);
  post.node = heard.sender;
  post.key = m.number;
  post.members = m.rank;
  static_assert(sizeof post.data == kReasonBytes && kReasonBytes < 256);
  std::memcpy(post.data, m.reason, m.reason_bytes);
  if (m.kind < Kind::kPresent) {
    hashes_from_nodes.give(post);
    return;
  }
  attendance_from_nodes.give(post);
  if (attendance_from_nodes.is_half_full()) {
    recorder_.watchdog->wake();
  }
}

// Sends the posts of this process's watchdog to other nodes.
void Endpoint::send_posts() noexcept {
  Post post;
  for (u32 i = 0; i < kSentAtOnce && posts_to_nodes.take(post); ++i) {
    const auto kind = static_cast<Kind>(static_cast<u8>(Kind::kHashes) + post.kind);
    Message m = protocol_.post(kind, post.key, post.members, post.node);
    m.reason_bytes = post.bytes;
    std::memcpy(m.reason, post.data, post.bytes);
    send(m);
  }
}

// Tells of an incident that this node opened and no other node has reported.
void Endpoint::check_incident(u64 now_ns) noexcept {
  const ControlPage& control = *recorder_.control;
  const Nodes& nodes = control.page().nodes;
  const u64 incident = control.page().incident.load(std::memory_order_acquire);
  const bool is_told = protocol_.kind() == Kind::kIncident && protocol_.number() >= incident;
  if (incident <= nodes.told.load() || incident <= nodes.followed.load() || is_told) {
    return;
  }
  char reason[kReasonBytes];
  control.reason(reason, sizeof reason);
  protocol_.begin(Kind::kIncident, incident, control.page().incident_rank.load(), reason, now_ns);
  is_settled_ = false;
}

void Endpoint::tell(u64 now_ns) noexcept {
  Message m;
  for (u32 i = 0; i < kSentAtOnce && protocol_.next(now_ns, m); ++i) {
    send(m);
  }
}

void Endpoint::send(const Message& m) noexcept {
  const NodeRow& to = recorder_.control->page().nodes.rows[m.receiver];
  u8 bytes[kMostBytes];
  const std::size_t n = protocol_.encode(m, bytes);
  if (const u16 port = port_of(to); port != 0) {
    // A datagram that the kernel has no room for is lost like any other, and sent again.
    socket_.send(to.address, to.is_v6 != 0, port, bytes, n);
  }
}

// Leaves word of a round that is over.
void Endpoint::settle(u64 now_ns) noexcept {
  if (is_settled_ || protocol_.is_telling()) {
    return;
  }
  is_settled_ = true;
  if (protocol_.kind() != Kind::kIncident) {
    return;
  }
  Nodes& nodes = recorder_.control->page().nodes;
  const u64 incident = protocol_.number();
  NodesAnswer& answer = answers_[incident & 1];
  answer = {};
  answer.nodes = nodes.n.load();
  if (!protocol_.has_yielded()) {
    answer.asked = protocol_.asked();
    answer.answered = protocol_.answered();
    answer.took_ns = now_ns - protocol_.began_ns();
    protocol_.each_unanswered([&](u32 peer) {
      if (answer.n_named < NodesAnswer::kNamed) {
        name(nodes.rows[peer], answer.named[answer.n_named++]);
      }
    });
  }
  nodes.told.store(incident);
  answered_.store(incident, std::memory_order_release);
}

const NodesAnswer* Endpoint::answer(u64 incident) noexcept {
  const Control& page = recorder_.control->page();
  if (!has_begun() || incident <= recorder_.first_incident) {
    return nullptr;
  }
  const u64 deadline = monotonic_ns() + kAnswer_ns;
  while (answered_.load(std::memory_order_acquire) < incident) {
    if (!has_begun() || page.nodes.followed.load() >= incident ||
        (page.nodes.told.load() >= incident && answered_.load() < incident) ||
        monotonic_ns() > deadline) {
      return nullptr;
    }
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
  const NodesAnswer& answer = answers_[incident & 1];
  return answered_.load() == incident && answer.asked != 0 ? &answer : nullptr;
}

}  // namespace fr::net
