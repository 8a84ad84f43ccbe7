// socket.hpp - the endpoint's socket: the only file of net/ that sends and receives. UDP, never
// blocking, bound to one address, closed at exec.
#pragma once

#include <cstddef>

#include "format/layout.hpp"

namespace fr::net {

class Socket {
 public:
  // Binds to a free port of the address (16 bytes, IPv4 in the first four); its number, 0 none.
  u16 open(const u8* address, bool is_v6) noexcept;
  void close() noexcept;
  bool is_open() const noexcept { return fd_ >= 0; }
  int fd() const noexcept { return fd_; }

  bool send(const u8* address, bool is_v6, u16 port, const u8* data, std::size_t n) const noexcept;
  // Bytes of the next datagram, more than `room` where it was cut; less than 0: none.
  long receive(u8* data, std::size_t room) const noexcept;

 private:
  int fd_ = -1;
};

}  // namespace fr::net
