// load_threads.hpp - the parts `threads` and `thread_facts` of a dump. Readers of the whole file
// hand in the two values, parsed or as the bytes they were found in.
#pragma once

#include <msgpack.hpp>
#include <string_view>

#include "threads.hpp"

namespace frtrace {

// nullptr: not in the file. What is of the wrong type reads as absent.
ThreadsEvidence read_threads(const msgpack::object* threads, const msgpack::object* facts);
// One msgpack value each; empty: not in the file. Bytes that do not parse read as absent.
ThreadsEvidence read_threads(std::string_view threads, std::string_view facts);

}  // namespace frtrace
