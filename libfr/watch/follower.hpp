// follower.hpp - learns of incidents of other nodes from the names in the shared FR_DUMP_DIR. A
// thread of its own, because a hung file system must not hold the watchdog.
#pragma once

namespace fr {

struct Recorder;

// False when the thread cannot be had.
bool start_follower(Recorder& recorder) noexcept;

}  // namespace fr
