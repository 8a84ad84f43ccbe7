// endpoint.hpp - the node's endpoint while this process owns it: socket, protocol, control page.
//
// Its thread is fr-nodes. It takes no lock and allocates nothing after prepare(), so it works while
// the process hangs.
#pragma once

#include <atomic>
#include <span>

#include "format/nodes_answer.hpp"
#include "net/protocol.hpp"
#include "net/socket.hpp"

namespace fr {
struct Recorder;
}

namespace fr::net {

class Endpoint {
 public:
  explicit Endpoint(Recorder& recorder) noexcept : recorder_(recorder) {}
  // False without a descriptor or memory.
  bool prepare() noexcept;
  // Binds to a free port of this node's address; 0 none.
  u16 open(const u8* address, bool is_v6) noexcept { return port_ = socket_.open(address, is_v6); }
  bool is_open() const noexcept { return socket_.is_open(); }
  void close() noexcept;
  // The page has the list of nodes: answers and tells from now on.
  void begin(u64 now_ns) noexcept;
  bool has_begun() const noexcept { return has_begun_.load(); }
  // One turn: waits for a datagram, a call of wake() or limit_ns, reads, then sends.
  void turn(u64 limit_ns) noexcept;

  // Any thread.
  void wake() noexcept;
  // For the watchdog: the nodes that were told of an incident of this node, once that is settled.
  // nullptr: the incident is not of this node, or another process tells.
  const NodesAnswer* answer(u64 incident) noexcept;

 private:
  void hear() noexcept;
  void check_incident(u64 now_ns) noexcept;
  void tell(u64 now_ns) noexcept;
  void hear_post(const Protocol::Heard& heard) noexcept;
  void send_posts() noexcept;
  void settle(u64 now_ns) noexcept;
  void send(const Message& m) noexcept;

  Recorder& recorder_;
  Socket socket_;
  Protocol protocol_;
  Protocol::Peer* peers_ = nullptr;  // kNodes, of which the kernel gives those that are used
  int event_fd_ = -1;
  u16 port_ = 0;
  std::atomic<bool> has_begun_{false};
  bool is_settled_ = true;        // the protocol's last round is dealt with
  std::atomic<u64> answered_{0};  // last incident that answers_ has
  NodesAnswer answers_[2];        // of even and of odd incidents: the watchdog may still read one
};

}  // namespace fr::net
