// address.hpp - by which address other nodes reach this one. May wait for a resolver.
#pragma once

#include <string>

#include "format/layout.hpp"

namespace fr::net {

struct Address {
  u8 bytes[16] = {};  // IPv4 in the first four
  bool is_v6 = false;
  bool is_known = false;
  bool is_loopback = false;
};

// The one that this node uses towards `host`; where that is a loopback address, the first of the
// interfaces that these name as GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME do.
Address own_address(const std::string& host, int port, const std::string& interfaces);
std::string text_of(const Address& address);

// True for an interface that the list names: names or beginnings of names, separated by commas;
// after = whole names only. A list that begins with ^ excludes, and names none.
bool is_named(const std::string& interface, const std::string& list);

}  // namespace fr::net
