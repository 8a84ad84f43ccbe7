// watch.hpp - how watch/ takes part in a recorder: rows of functions for kParts (recorder/parts.hpp).
#pragma once

#include "format/layout.hpp"

namespace fr {

struct Recorder;

// Opens the control page of the job and node, finds the number of the first incident of this run.
void make_watch(Recorder& r);
// Starts the watchdog; the ring is kept without it.
void start_watch(Recorder& r) noexcept;

}  // namespace fr
