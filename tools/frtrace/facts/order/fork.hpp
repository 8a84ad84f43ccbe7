// fork.hpp - where two ranks that went the same way parted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "facts/order/order.hpp"
#include "model/case.hpp"

namespace frtrace {

// count: how often the rank's records have that call site; 0 with an empty op: nothing came after.
struct Branch {
  std::string op;
  Site site;
  std::uint64_t count = 0;
};
struct Fork {
  Rank reference = -1;
  Branch common, own, others;  // last in common; what each did next
};

// nullopt when the records no longer tell, or the reference is not further.
std::optional<Fork> fork_of(const Case&, const History&, int group, int evidence, int reference);

}  // namespace frtrace
