// lock_files.hpp - what this machine's file system and /proc say of the lock files in a verdict.
// Called after the verdict is made: it adds to the words and changes no answer.
#pragma once

#include "report/stacks_tree.hpp"
#include "words/report.hpp"

namespace frtrace {

void look_at_lock_files(Report&);
void look_at_lock_files(StackTree&);

}  // namespace frtrace
