// exit_signals.hpp - SIGTERM, SIGINT, SIGHUP, SIGQUIT and the signal of FR_SIGNAL.
#pragma once

namespace fr {

struct Recorder;

void install_end_handlers(Recorder& r) noexcept;
// Puts ours back on top of handlers that the script set later.
void check_end_handlers() noexcept;

}  // namespace fr
