// here.hpp - the machine and the moment that frtrace runs in.
#pragma once

#include <unistd.h>

#include <string>

#include "format/ticks.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

inline Time unix_now() {
  return static_cast<Time>(fr::unix_now_ns());
}

inline std::string host_name() {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  return host;
}

}  // namespace frtrace
