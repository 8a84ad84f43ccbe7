// tracker.hpp - what NCCL reports, made into records: communicators, operations, their channels
// and transfers. The profiler plugin (plugin.cpp) and the wrappers (calls.cpp) both
// speak to this, so an operation that both see is one record.
//
//   wrapper  ->  open()  ----------- record, DeviceOp ----.
//                  | the thread's current call             |  the same one
//   CollApi  ->  api_call() ------------------------------'
//   KernelLaunch, Coll, P2p -> launching, launched          ProxyStep -> what a step waits for
//   KernelCh start, stop    -> started, completed
//
// Events: no allocation, lock, log, system call or CUDA; every handle is checked. NCCL holds tagged
// numbers, never pointers:
//
//   63      48 47 44 43       32 31        12 11     0
//   [ salt    | kind | step % 4096 | generation | slot ]     salt: of this process, never 0
#pragma once

#include <cstddef>

#include "cuda/operations.hpp"
#include "format/layout.hpp"
#include "fr/fr.h"

namespace fr::nccl {

using Handle = u64;

enum class Func : u8 {
  kOther,
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kSend,
  kRecv,
  kPutSignal,
  kSignal,
  kWaitSignal,
  kFuncs
};
Func func_of(const char* name) noexcept;  // "AllReduce", as in NCCL's events
Func func_of_v1(u8 code) noexcept;        // version 1 has numbers
u8 dtype_of(const char* name) noexcept;   // "ncclFloat32" -> fr's code, 0 unknown
u8 dtype_of(int nccl_datatype) noexcept;
u8 reduce_op_of(int nccl_redop) noexcept;

struct Call {
  Func func = Func::kOther;
  u8 dtype = 0;
  u8 reduce_op = 0;
  bool captured = false;
  i32 peer = -1;  // or root
  u64 count = 0;
  void* stream = nullptr;
  const void* send = nullptr;  // buffers: only to find the operation again
  const void* recv = nullptr;
  u64 events = 0;  // CUDA events around it (cuda.hpp); 0 none
};

// ---------------------------------------------------------------- state

// Starts the recorder and this part of it; false while nothing is recorded.
bool ready() noexcept;
// Will the end of operations be observed? NCCL is there or has loaded the plugin.
bool is_active() noexcept;
// Does FR_TIMING allow the library's device stamps?
bool stamps_wanted() noexcept;
bool is_foreign(Handle handle) noexcept;  // another process's
u64 pair_salt() noexcept;                 // 16 bits, not those of this process's own handles
void set_library_version(u32 version) noexcept;
u32 library_version() noexcept;
void set_hooked(u32 n) noexcept;
Device* device() noexcept;  // nullptr while nothing is recorded

// ---------------------------------------------------------------- communicators. Cold.

inline constexpr u32 kNoComm = 0;

u64 unique_id_hash(const void* id, std::size_t bytes) noexcept;  // NCCL's own, since 2.24

// A communicator is being made or was found: by a wrapper, hash 0 where unknown.
u32 open_comm(u64 hash, i32 n_ranks, i32 rank, const char* name) noexcept;
// NCCL made it: `since_ticks` is when the call began. May find that the plugin has reported it, then
// returns the row that counts.
u32 bind_comm(u32 comm, const void* nccl_comm, i32 n_ranks, i32 rank, u64 since_ticks) noexcept;
// A child that neither the call nor the plugin names: derived from its parent, alike on all ranks.
u64 child_hash(u32 parent, u64 salt) noexcept;
u32 find_comm(const void* nccl_comm) noexcept;  // lock-free; kNoComm when not known
// All its operations end in `why` (nullptr: their end was not seen); the row is kept.
void close_comm(u32 comm, const char* why) noexcept;
// All its operations in flight fail with this.
void fail_operations(u32 comm, const char* why) noexcept;
// First asynchronous error: fails the oldest operation in flight with it.
void comm_failed(u32 comm, const char* text) noexcept;
// Calls on a communicator that only the plugin knows: true where there is one; the thread's next
// event then says which one has this pointer.
bool expect_link(const void* nccl_comm) noexcept;
void forget_link() noexcept;
u32 thread_slot() noexcept;  // a small number of the calling thread's own; large: none was left
fr_group_t group_of(u32 comm) noexcept;            // its own group, made when first used
fr_group_t framework_group_of(u32 comm) noexcept;  // that it works for, 0 none
// Calls that make communicators, of callers that are hooked: so many more are under way.
void making(int more) noexcept;
bool is_profiled(u32 comm) noexcept;

// The plugin's init: context to give to NCCL. `mask` is NCCL's own word, kept: it may be changed
// later. events: those to request.
Handle plugin_init(u32 api, u64 hash, const char* name, i32 n_nodes, i32 n_ranks, i32 rank,
                   int* mask, u32 events) noexcept;
// The user's own plugin wants these, too.
void plugin_more_events(Handle context, u32 events) noexcept;
// Up to version 3 the events name the communicator, not init.
void plugin_learn(Handle context, u64 hash, i32 rank, const char* name) noexcept;
void plugin_finalize(Handle context) noexcept;

// ---------------------------------------------------------------- wrappers' side. Hot.

// The calling thread is about to make this call. Returns the operation, 0 when nothing is recorded.
Handle open(u32 comm, const Call& call) noexcept;
// The call came back. ok: it was accepted.
void closed(Handle op, bool ok, const char* error) noexcept;
void launching(Handle op) noexcept;
void launched(Handle op) noexcept;
// The library has done what it does on the host; a part that it reported nothing of will not come.
void settle(Handle op) noexcept;
// The library goes on with it in the background: ends it if nothing would report its end.
void launched_later(Handle op) noexcept;
// All that was called for this communicator is launched.
void settle_later(const void* nccl_comm) noexcept;
// Settles operations that may have ended with their last channel. The watchdog calls it.
void settle_all() noexcept;

// ---------------------------------------------------------------- CUDA's side: cuda::kOperations

void events_seen(const cuda::EventsSeen* seen, u32 n) noexcept;
void wait_began(Handle op) noexcept;
void wait_ended(Handle op) noexcept;
void reached(Handle op) noexcept;
void untrack(Handle op) noexcept;
bool is_over(Handle op) noexcept;
Handle oldest_in_flight(u64& ticket) noexcept;
void fail_operation(Handle op, const char* why) noexcept;

// ---------------------------------------------------------------- the framework's side. Hot.

// Between these two, calls of the library on this thread belong to this record.
void enter(const fr_ticket& ticket) noexcept;
bool leave() noexcept;              // was it taken over: its end will be reported from here?
fr_ticket scope_ticket() noexcept;  // {0}: none

// ---------------------------------------------------------------- plugin's side. Hot.

Handle group_api_start(Handle context, bool captured) noexcept;
void group_api_stop(Handle group) noexcept;
// CollApi, P2pApi
Handle api_start(Handle context, Handle group, const Call& call) noexcept;
Handle launch_start(Handle context, Handle group) noexcept;
// Coll, P2p: was launched. parent: the api event (version 5) or a group.
Handle task_start(Handle context, Handle parent, const Call& call, u32 channels, const char* algo,
                  const char* proto) noexcept;
Handle transfer_start(Handle parent, i32 pid, u32 channel, i32 peer, u32 n_steps,
                      bool is_send) noexcept;
Handle step_start(Handle transfer, u32 step) noexcept;
// NetPlugin: a request of this step was given to the network.
Handle net_start(Handle step, i64 id, const void* data) noexcept;
Handle kernel_start(Handle parent, u32 channel, u64 device_ns) noexcept;
Handle ce_start(Handle context, Handle parent, const Call& call) noexcept;
Handle other_start() noexcept;  // a handle that means nothing, and is not NULL
void state(Handle handle, int event_state, u64 bytes_or_ns, u32 step) noexcept;
void stop(Handle handle) noexcept;

}  // namespace fr::nccl
