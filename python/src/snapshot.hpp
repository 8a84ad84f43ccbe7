// snapshot.hpp - the live ring as Python objects in the layout of PyTorch's Flight Recorder,
// version 2.10.
#pragma once

#include <pybind11/pybind11.h>

namespace fr {

pybind11::dict snapshot(bool include_collectives, bool include_stack_traces, bool only_active);

// Every record of the ring as fr has it, in order of issue: for tests and for looking at things.
pybind11::list records();

}  // namespace fr
