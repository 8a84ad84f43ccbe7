// lock_files.hpp - state of the lock files in a verdict, from this machine's file system and /proc.
// Called after the verdict is made: it adds to the report's text and changes no answer.
#pragma once

#include "report/stacks_tree.hpp"
#include "words/report.hpp"

namespace frtrace {

void look_at_lock_files(Report&);
void look_at_lock_files(StackTree&);

}  // namespace frtrace
