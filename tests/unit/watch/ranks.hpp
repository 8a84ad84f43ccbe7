// ranks.hpp - ranks of a job, each a child process that did one operation.
#pragma once

#include <unistd.h>

#include "catch.hpp"
#include "support.hpp"

namespace fr::test {

inline const Environment kFast = {{"FR_WARN_S", "0.2"}, {"FR_TIMEOUT_S", "0.4"}};

// A rank that did one operation; it hangs in the next one when the board says so.
inline Child start_rank(Scene& scene, int rank, const Environment& options = kFast,
                        int world_size = 3) {
  Child child = scene.start(
      rank, options,
      [&scene, rank, world_size] {
        const fr_group_t g = child_group("0", rank, world_size);
        const fr_ticket t = child_begin(g);
        fr_end(&t, FR_OK, nullptr);
        scene.board.cell[rank] = 1;
        while (scene.board.cell[10 + rank] == 0) {
          usleep(1000);
        }
        if (scene.board.cell[10 + rank] == 1) {
          child_begin(g, "broadcast");
          sleep_for_ever();
        }
        return 0;
      },
      world_size);
  REQUIRE(scene.reached(rank, 1));
  return child;
}

inline bool wait_for(const std::string& path) {
  return eventually([&] { return exists(path); });
}

// A child that has recorded something and waits.
inline Child start_idle(Scene& scene, const Environment& options) {
  Child child = scene.start(0, options, [&scene] {
    const fr_ticket t = child_begin(child_group());
    fr_end(&t, FR_OK, nullptr);
    scene.board.cell[0] = 1;
    while (scene.board.cell[1] == 0) {
      usleep(1000);
    }
    return 0;
  });
  REQUIRE(scene.reached(0, 1));
  return child;
}

}  // namespace fr::test
