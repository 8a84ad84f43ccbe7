// follower.cpp - polls the modification time of FR_DUMP_DIR twice a second, and reads the names only
// when it changed: on a shared file system, listing a directory costs much more than a stat().
#include "watch/follower.hpp"

#include <sys/stat.h>

#include <cstring>
#include <ctime>

#include "format/file_name.hpp"
#include "format/text.hpp"
#include "recorder/own_thread.hpp"
#include "recorder/recorder.hpp"
#include "sample/directory.hpp"
#include "watch/control_page.hpp"
#include "watch/watchdog.hpp"

namespace fr {
namespace {

constexpr timespec kFollowPeriod{0, 500'000'000};
// Incidents that another node may be ahead by: it opens them one at a time, and every node follows.
constexpr u64 kMostAhead = 1024;
constexpr u32 kLooksAfterChange = 4;  // 2 s, the coarsest clock of a file system

// The lead rank of the node looks into FR_DUMP_DIR for incidents of other nodes.
void* thread_main(void* recorder) noexcept {
  Recorder& r = *static_cast<Recorder*>(recorder);
  timespec seen{};
  u32 unchanged = 0;  // looks
  for (;;) {
    nanosleep(&kFollowPeriod, nullptr);
    const PeerRow* lead = nullptr;
    for (const PeerRow& row : r.control->page().peers) {
      if (row.state.load(std::memory_order_acquire) == kPeerLive && !is_dead(row)) {
        lead = &row;
        break;
      }
    }
    struct stat st;
    if (lead != r.control->own() || stat(r.dump_dirs[0], &st) != 0) {
      continue;
    }
    // Two changes within one tick of the file system's clock look like one.
    const bool same = st.st_mtim.tv_sec == seen.tv_sec && st.st_mtim.tv_nsec == seen.tv_nsec;
    unchanged = same ? unchanged + 1 : 0;
    seen = st.st_mtim;
    if (unchanged > kLooksAfterChange) {
      continue;
    }
    struct Context {
      const Header& header;
      u64 newest;
      u64 most;
    } c{r.region.header(), 0, get(r.control->page().incident) + kMostAhead};
    each_entry(
        r.dump_dirs[0],
        [](const char* name, void* context) {
          auto& x = *static_cast<Context*>(context);
          NameParts parts;
          if (parse_name(name, parts) && parts.attempt == x.header.attempt &&
              std::strcmp(parts.job, x.header.job) == 0 && parts.number > x.newest &&
              parts.number <= x.most) {
            x.newest = parts.number;
          }
        },
        &c);
    if (c.newest > get(r.control->page().incident)) {
      char reason[64];
      format(reason, sizeof reason, "incident %l of another node", c.newest);
      r.control->follow(c.newest, -1, reason);
      r.watchdog->wake();
    }
  }
}

}  // namespace

bool start_follower(Recorder& recorder) noexcept {
  return start_thread(thread_main, &recorder, "fr-follower");
}

}  // namespace fr
