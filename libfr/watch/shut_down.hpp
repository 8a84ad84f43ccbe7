// shut_down.hpp - what is left to do when the process exits by exit() or the end of main().
#pragma once

namespace fr {

struct Recorder;

// Once; later calls do nothing. Dumps unless the exit is clean, waits for peers of an open
// incident, removes the ring where its content is safe. May take some seconds; see "What ends
// how" in libfr/README.md.
void shut_down(Recorder& r, int status) noexcept;
// Has exit() call it with the recorder then in force.
void install_exit_hook(Recorder& r) noexcept;

}  // namespace fr
