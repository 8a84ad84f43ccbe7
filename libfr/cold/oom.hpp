// oom.hpp - how many processes the kernel has killed for want of memory where this one lives.
#pragma once

#include "hot/layout.hpp"

namespace fr {

// Of this process's memory cgroup and those below it; -1 where it cannot be read. No allocation.
i64 oom_kills() noexcept;

}  // namespace fr
