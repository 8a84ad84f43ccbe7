// errors.hpp - the first asynchronous error of the process.
#pragma once

namespace fr::cuda {

// A call returned this result. The first lasting error of the process goes into the region, and the
// oldest operation in flight fails with it. Any thread; takes the tables' lock when it is the first.
void report_error(int code, const char* call) noexcept;

// The first error's operation is known. Until then fr-cuda, which meets the same error, must leave
// in flight what it can no longer observe: the failed one is among these.
bool is_error_reported() noexcept;

}  // namespace fr::cuda
