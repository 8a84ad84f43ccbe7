// mismatch.hpp - says once, while the job runs, that ranks of this node issue different operations
// in one group (FR_MISMATCH). Nothing is stopped.
#pragma once

namespace fr {

struct Post;
struct Recorder;

void forget_mismatch(Recorder&);    // another recorder starts
void look_for_mismatch() noexcept;  // the watchdog's thread, every tick

// The thread of the node's endpoint: what is to be sent, and what came.
bool take_post(Post& post) noexcept;
void give_post(const Post& post) noexcept;

}  // namespace fr
