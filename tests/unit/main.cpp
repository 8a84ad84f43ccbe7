#include "catch_session.hpp"

#if defined(__SANITIZE_THREAD__)
// Children of children record on their own; a signal handler copies the ring as it
// stands, on purpose.
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_options() {
  return "die_after_fork=0";
}
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_suppressions() {
  return "race:copy_ring\nrace:map_file\n";
}
#endif

int main(int argc, char** argv) {
  return fr::test::run_catch(argc, argv);
}
