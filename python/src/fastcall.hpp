// fastcall.hpp - begin, end and note as plain C functions: what user code may call in
// its inner loop.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace fr {

// Adds begin, end, started, note, step, span_begin, span_end and the type Ticket to the module.
// Returns false with a Python exception set.
bool add_fastcalls(PyObject* module);

}  // namespace fr
