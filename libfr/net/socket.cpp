// socket.cpp - system calls only.
#include "net/socket.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

namespace fr::net {
namespace {

struct Place {
  sockaddr_storage address{};
  socklen_t bytes = 0;
};

Place place_of(const u8* address, bool is_v6, u16 port) noexcept {
  Place p;
  if (is_v6) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(p.address);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(&v6.sin6_addr, address, 16);
    p.bytes = sizeof v6;
  } else {
    auto& v4 = reinterpret_cast<sockaddr_in&>(p.address);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, address, 4);
    p.bytes = sizeof v4;
  }
  return p;
}

}  // namespace

u16 Socket::open(const u8* address, bool is_v6) noexcept {
  close();
  Place p = place_of(address, is_v6, 0);
  fd_ = socket(is_v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) {
    return 0;
  }
  const int room = 1 << 20;  // all nodes answer at once; the kernel gives what it allows
  setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
  if (bind(fd_, reinterpret_cast<const sockaddr*>(&p.address), p.bytes) != 0 ||
      getsockname(fd_, reinterpret_cast<sockaddr*>(&p.address), &p.bytes) != 0) {
    close();
    return 0;
  }
  return ntohs(is_v6 ? reinterpret_cast<const sockaddr_in6&>(p.address).sin6_port
                     : reinterpret_cast<const sockaddr_in&>(p.address).sin_port);
}

void Socket::close() noexcept {
  if (fd_ >= 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

bool Socket::send(const u8* address, bool is_v6, u16 port, const u8* data,
                  std::size_t n) const noexcept {
  const Place p = place_of(address, is_v6, port);
  return sendto(fd_, data, n, MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&p.address),
                p.bytes) == static_cast<ssize_t>(n);
}

long Socket::receive(u8* data, std::size_t room) const noexcept {
  return recv(fd_, data, room, MSG_TRUNC);
}

}  // namespace fr::net
