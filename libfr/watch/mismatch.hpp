// mismatch.hpp - says once, while the job runs, that ranks of this node issue different operations
// in one group (FR_MISMATCH). Nothing is stopped.
#pragma once

namespace fr {

struct Recorder;

void forget_mismatch(Recorder&);    // another recorder starts
void look_for_mismatch() noexcept;  // the watchdog's thread, every tick

}  // namespace fr
