// oom.hpp - how many processes of this cgroup the kernel has OOM-killed.
#pragma once

#include "format/layout.hpp"

namespace fr {

// Counts OOM kills in this process's memory cgroup and those below it, of version 1 or 2; -1 where
// they cannot be read. No allocation. root: prefix of /proc and /sys, for tests.
i64 oom_kills(const char* root = "") noexcept;

}  // namespace fr
