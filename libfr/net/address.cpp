// address.cpp - asks the resolver, the routes and the interfaces of this machine.
#include "net/address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

namespace fr::net {
namespace {

// Addresses that mean something on their own link only are none for our purpose.
Address address_of(const sockaddr* from) {
  Address a;
  if (from != nullptr && from->sa_family == AF_INET) {
    const auto& v4 = *reinterpret_cast<const sockaddr_in*>(from);
    std::memcpy(a.bytes, &v4.sin_addr, 4);
    a.is_loopback = a.bytes[0] == 127;
    a.is_known = v4.sin_addr.s_addr != 0;
  } else if (from != nullptr && from->sa_family == AF_INET6) {
    const auto& v6 = *reinterpret_cast<const sockaddr_in6*>(from);
    std::memcpy(a.bytes, &v6.sin6_addr, 16);
    a.is_v6 = true;
    a.is_loopback = IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
    a.is_known = !IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr) && !IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
  }
  return a;
}

// Connecting a datagram socket sends nothing: it asks for the route.
Address towards(const addrinfo& to) {
  Address a;
  const int fd = socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t bytes = sizeof own;
  if (fd >= 0 && connect(fd, to.ai_addr, to.ai_addrlen) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &bytes) == 0) {
    a = address_of(reinterpret_cast<const sockaddr*>(&own));
  }
  if (fd >= 0) {
    close(fd);
  }
  return a;
}

Address of_interfaces(const std::string& list) {
  Address a;
  ifaddrs* all = nullptr;
  if (list.empty() || getifaddrs(&all) != 0) {
    return a;
  }
  for (const ifaddrs* i = all; i != nullptr && !a.is_known; i = i->ifa_next) {
    if ((i->ifa_flags & IFF_UP) != 0 && is_named(i->ifa_name, list)) {
      a = address_of(i->ifa_addr);
    }
  }
  freeifaddrs(all);
  return a;
}

}  // namespace

bool is_named(const std::string& interface, const std::string& list) {
  if (list.empty() || list.front() == '^') {
    return false;
  }
  const bool whole = list.front() == '=';
  for (std::size_t at = whole ? 1 : 0; at <= list.size();) {
    const std::size_t end =
        list.find(',', at) == std::string::npos ? list.size() : list.find(',', at);
    const std::string name = list.substr(at, end - at);
    if (!name.empty() && (whole ? interface == name : interface.rfind(name, 0) == 0)) {
      return true;
    }
    at = end + 1;
  }
  return false;
}

Address own_address(const std::string& host, int port, const std::string& interfaces) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  Address a;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) == 0) {
    for (const addrinfo* at = found; at != nullptr && (!a.is_known || a.is_loopback);
         at = at->ai_next) {
      const Address other = towards(*at);
      a = other.is_known ? other : a;
    }
    freeaddrinfo(found);
  }
  if (!a.is_known || a.is_loopback) {
    const Address other = of_interfaces(interfaces);
    a = other.is_known ? other : a;
  }
  return a;
}

std::string text_of(const Address& address) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(address.is_v6 ? AF_INET6 : AF_INET, address.bytes, text, sizeof text);
  return address.is_v6 ? "[" + std::string(text) + "]" : text;
}

}  // namespace fr::net
