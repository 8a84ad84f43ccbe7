// threads.hpp - reads the parts `threads` and `thread_facts` of a dump.
#pragma once

#include "input/msgpack_tree.hpp"
#include "model/threads.hpp"

namespace frtrace {

ThreadsEvidence read_threads(const Object* threads, const Object* facts);

}  // namespace frtrace
