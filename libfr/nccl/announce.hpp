// announce.hpp - how NCCL learns that libfr is its profiler plugin: variables of the environment.
#pragma once

namespace fr::nccl {

// Sets NCCL_PROFILER_PLUGIN to this library for this process and its children. A plugin that the
// user named, there or in NCCL's configuration file, moves to FR_NCCL_CHAIN and is called through;
// "none" stays. setenv() is not safe beside another thread's getenv(): call this early.
void announce();

// Undoes announce() as far as the variables still hold what it wrote.
void withdraw();

// The user's own plugin, nullptr when none was named.
const char* chained_plugin() noexcept;

}  // namespace fr::nccl
