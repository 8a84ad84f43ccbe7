// check_headers.cpp - our structures of the plugin interface against NCCL's own headers. Compiled
// where these are at hand (-DFR_NCCL_HEADERS=.../src/include/plugin) and never run: each line is an
// error of the compiler or nothing.
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

// NCCL's headers expect these declarations before them.
typedef enum { ncclSuccess = 0 } ncclResult_t;
typedef void (*ncclDebugLogger_t)(int level, unsigned long flags, const char* file, int line,
                                  const char* text, ...);
typedef pid_t ncclPid_t;
#include "nccl/abi.hpp"
#include "nccl_profiler.h"

using namespace fr::nccl;

#define SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs))
#define VALUE(ours, theirs) static_assert(static_cast<long>(ours) == static_cast<long>(theirs))
#define SAME(e, t, ours, theirs)                           \
  static_assert(offsetof(e, ours) == offsetof(t, theirs)); \
  static_assert(sizeof(e{}.ours) == sizeof(t{}.theirs))

// Members in all versions.
#define COMMON(e, t)                                   \
  SIZE(e, t);                                          \
  SAME(e, t, type, type);                              \
  SAME(e, t, parent, parentObj);                       \
  SAME(e, t, rank, rank);                              \
  SAME(e, t, coll.seq, coll.seqNumber);                \
  SAME(e, t, coll.func, coll.func);                    \
  SAME(e, t, coll.send, coll.sendBuff);                \
  SAME(e, t, coll.recv, coll.recvBuff);                \
  SAME(e, t, coll.count, coll.count);                  \
  SAME(e, t, coll.root, coll.root);                    \
  SAME(e, t, coll.datatype, coll.datatype);            \
  SAME(e, t, coll.n_warps, coll.nWarps);               \
  SAME(e, t, coll.algo, coll.algo);                    \
  SAME(e, t, coll.proto, coll.proto);                  \
  SAME(e, t, p2p.func, p2p.func);                      \
  SAME(e, t, p2p.buffer, p2p.buff);                    \
  SAME(e, t, p2p.datatype, p2p.datatype);              \
  SAME(e, t, p2p.count, p2p.count);                    \
  SAME(e, t, p2p.peer, p2p.peer);                      \
  SAME(e, t, proxy_op.pid, proxyOp.pid);               \
  SAME(e, t, proxy_op.channel, proxyOp.channelId);     \
  SAME(e, t, proxy_op.peer, proxyOp.peer);             \
  SAME(e, t, proxy_op.n_steps, proxyOp.nSteps);        \
  SAME(e, t, proxy_op.chunk_bytes, proxyOp.chunkSize); \
  SAME(e, t, proxy_op.is_send, proxyOp.isSend);        \
  SAME(e, t, proxy_step.step, proxyStep.step)

// Up to version 3 an event holds its name and its communicator's hash.
#define NAMED(e, t)                                 \
  SAME(e, t, coll.name, coll.name);                 \
  SAME(e, t, coll.comm_hash, coll.commHash);        \
  SAME(e, t, coll.max_channels, coll.nMaxChannels); \
  SAME(e, t, p2p.name, p2p.name);                   \
  SAME(e, t, p2p.comm_hash, p2p.commHash)

// From version 3 on.
#define KERNEL(e, t)                                 \
  SAME(e, t, kernel_ch.channel, kernelCh.channelId); \
  SAME(e, t, net.id, netPlugin.id);                  \
  SAME(e, t, net.data, netPlugin.data)

// From version 4 on.
#define CHANNELS(e, t)                         \
  SAME(e, t, coll.n_channels, coll.nChannels); \
  SAME(e, t, p2p.n_channels, p2p.nChannels);   \
  SAME(e, t, kernel_ch.timer_ns, kernelCh.pTimer)

// From version 5 on.
#define API(e, t)                                         \
  SAME(e, t, group_api.captured, groupApi.graphCaptured); \
  SAME(e, t, group_api.depth, groupApi.groupDepth);       \
  SAME(e, t, coll_api.func, collApi.func);                \
  SAME(e, t, coll_api.count, collApi.count);              \
  SAME(e, t, coll_api.datatype, collApi.datatype);        \
  SAME(e, t, coll_api.root, collApi.root);                \
  SAME(e, t, coll_api.stream, collApi.stream);            \
  SAME(e, t, coll_api.captured, collApi.graphCaptured);   \
  SAME(e, t, p2p_api.func, p2pApi.func);                  \
  SAME(e, t, p2p_api.count, p2pApi.count);                \
  SAME(e, t, p2p_api.datatype, p2pApi.datatype);          \
  SAME(e, t, p2p_api.stream, p2pApi.stream);              \
  SAME(e, t, p2p_api.captured, p2pApi.graphCaptured);     \
  SAME(e, t, launch.stream, kernelLaunch.stream);         \
  SAME(e, t, coll.parent_group, coll.parentGroup);        \
  SAME(e, t, p2p.parent_group, p2p.parentGroup)

COMMON(Event1, ncclProfilerEventDescr_v1_t);
NAMED(Event1, ncclProfilerEventDescr_v1_t);
SAME(Event1, ncclProfilerEventDescr_v1_t, coll.op, coll.op);
COMMON(Event2, ncclProfilerEventDescr_v2_t);
NAMED(Event2, ncclProfilerEventDescr_v2_t);
COMMON(Event3, ncclProfilerEventDescr_v3_t);
NAMED(Event3, ncclProfilerEventDescr_v3_t);
KERNEL(Event3, ncclProfilerEventDescr_v3_t);
COMMON(Event4, ncclProfilerEventDescr_v4_t);
KERNEL(Event4, ncclProfilerEventDescr_v4_t);
CHANNELS(Event4, ncclProfilerEventDescr_v4_t);
COMMON(Event6, ncclProfilerEventDescr_v5_t);
KERNEL(Event6, ncclProfilerEventDescr_v5_t);
CHANNELS(Event6, ncclProfilerEventDescr_v5_t);
API(Event6, ncclProfilerEventDescr_v5_t);
COMMON(Event6, ncclProfilerEventDescr_v6_t);
KERNEL(Event6, ncclProfilerEventDescr_v6_t);
CHANNELS(Event6, ncclProfilerEventDescr_v6_t);
API(Event6, ncclProfilerEventDescr_v6_t);
SAME(Event6, ncclProfilerEventDescr_v6_t, ce_coll.func, ceColl.func);
SAME(Event6, ncclProfilerEventDescr_v6_t, ce_coll.send, ceColl.sendBuff);
SAME(Event6, ncclProfilerEventDescr_v6_t, ce_coll.recv, ceColl.recvBuff);
SAME(Event6, ncclProfilerEventDescr_v6_t, ce_coll.count, ceColl.count);
SAME(Event6, ncclProfilerEventDescr_v6_t, ce_coll.root, ceColl.root);
SAME(Event6, ncclProfilerEventDescr_v6_t, ce_coll.datatype, ceColl.datatype);
SAME(Event6, ncclProfilerEventDescr_v6_t, ce_coll.stream, ceColl.stream);

SAME(Args1, ncclProfilerEventStateArgs_v1_t, proxy_op.bytes, proxyOp.transSize);
SAME(Args1, ncclProfilerEventStateArgs_v3_t, proxy_op.steps, proxyOp.steps);
SAME(Args4, ncclProfilerEventStateArgs_v4_t, step_bytes, proxyStep.transSize);
SAME(Args4, ncclProfilerEventStateArgs_v5_t, timer_ns, kernelCh.pTimer);
SIZE(Args1, ncclProfilerEventStateArgs_v2_t);
SIZE(Args4, ncclProfilerEventStateArgs_v6_t);

// Order of the functions, and of their arguments by size.
#define PLUGIN(ours, theirs)                   \
  SIZE(ours, theirs);                          \
  SAME(ours, theirs, init, init);              \
  SAME(ours, theirs, start, startEvent);       \
  SAME(ours, theirs, stop, stopEvent);         \
  SAME(ours, theirs, state, recordEventState); \
  SAME(ours, theirs, finalize, finalize)
PLUGIN(Plugin1, ncclProfiler_v1_t);
PLUGIN(Plugin2, ncclProfiler_v2_t);
PLUGIN(Plugin3, ncclProfiler_v3_t);
PLUGIN(Plugin4, ncclProfiler_v4_t);
PLUGIN(Plugin5, ncclProfiler_v5_t);
PLUGIN(Plugin6, ncclProfiler_v6_t);

template <class... A>
constexpr bool kSame = false;
template <class R, class... A, class S, class... B>
  requires(sizeof...(A) == sizeof...(B))
constexpr bool kSame<R (*)(A...), S (*)(B...)> =
    ((sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>) && ...);
static_assert(kSame<decltype(Plugin1::init), decltype(ncclProfiler_v1_t::init)>);
static_assert(kSame<decltype(Plugin4::init), decltype(ncclProfiler_v4_t::init)>);
static_assert(kSame<decltype(Plugin5::init), decltype(ncclProfiler_v5_t::init)>);
static_assert(kSame<decltype(Plugin6::init), decltype(ncclProfiler_v6_t::init)>);
static_assert(kSame<decltype(Plugin6::state), decltype(ncclProfiler_v6_t::recordEventState)>);

VALUE(kEvGroup, ncclProfileGroup);
VALUE(kEvColl, ncclProfileColl);
VALUE(kEvP2p, ncclProfileP2p);
VALUE(kEvProxyOp, ncclProfileProxyOp);
VALUE(kEvProxyStep, ncclProfileProxyStep);
VALUE(kEvProxyCtrl, ncclProfileProxyCtrl);
VALUE(kEvKernelCh, ncclProfileKernelCh);
VALUE(kEvNetPlugin, ncclProfileNetPlugin);
VALUE(kEvGroupApi, ncclProfileGroupApi);
VALUE(kEvCollApi, ncclProfileCollApi);
VALUE(kEvP2pApi, ncclProfileP2pApi);
VALUE(kEvKernelLaunch, ncclProfileKernelLaunch);
VALUE(kEvCeColl, ncclProfileCeColl);
VALUE(kEvCeSync, ncclProfileCeSync);
VALUE(kEvCeBatch, ncclProfileCeBatch);
VALUE(kStSendRemFifoWait, ncclProfilerProxyOpSendRemFifoWait);
VALUE(kStRecvDone, ncclProfilerProxyOpRecvDone);
VALUE(kStStepSendGpuWait, ncclProfilerProxyStepSendGPUWait);
VALUE(kStStepSendWait, ncclProfilerProxyStepSendWait);
VALUE(kStStepRecvWait, ncclProfilerProxyStepRecvWait);
VALUE(kStStepRecvFlushWait, ncclProfilerProxyStepRecvFlushWait);
VALUE(kStStepRecvGpuWait, ncclProfilerProxyStepRecvGPUWait);
VALUE(kStOpInProgress, ncclProfilerProxyOpInProgress_v4);
VALUE(kStStepSendPeerWait, ncclProfilerProxyStepSendPeerWait_v4);
VALUE(kStKernelChStop, ncclProfilerKernelChStop);
VALUE(kStGroupStartApiStop, ncclProfilerGroupStartApiStop);
VALUE(kStGroupEndApiStart, ncclProfilerGroupEndApiStart);
VALUE(kNetIb1 - 1, NCCL_PROFILER_NET_TYPE_IB);
VALUE(kNetSocket1 - 1, NCCL_PROFILER_NET_TYPE_SOCK);

#ifdef PROFILER_V7_H_
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // Event7 is a struct behind another one
COMMON(Event7, ncclProfilerEventDescr_v7_t);
KERNEL(Event7, ncclProfilerEventDescr_v7_t);
CHANNELS(Event7, ncclProfilerEventDescr_v7_t);
API(Event7, ncclProfilerEventDescr_v7_t);
PLUGIN(Plugin7, ncclProfiler_v7_t);
static_assert(kSame<decltype(Plugin7::init), decltype(ncclProfiler_v7_t::init)>);
#endif
