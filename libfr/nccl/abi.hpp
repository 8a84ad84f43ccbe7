// abi.hpp - what NCCL passes to profiler plugins of versions 1 to 7, and the few types of its
// public interface that our wrappers pass on. Own definitions: libfr is built without NCCL's
// headers. Sizes and places as measured against NCCL 2.23 to 2.30.
#pragma once

#include <cstddef>

#include "format/layout.hpp"

namespace fr::nccl {

// ---------------------------------------------------------------- results

inline constexpr int kSuccess = 0;
inline constexpr int kInProgress = 7;  // a non-blocking communicator: goes on in the background

// ---------------------------------------------------------------- events

enum EventType : u32 {
  kEvGroup = 1,
  kEvColl = 2,
  kEvP2p = 4,
  kEvProxyOp = 8,
  kEvProxyStep = 16,
  kEvProxyCtrl = 32,
  kEvKernelCh = 64,
  kEvNetPlugin = 128,
  kEvGroupApi = 256,       // from version 5
  kEvCollApi = 512,        // from version 5
  kEvP2pApi = 1024,        // from version 5
  kEvKernelLaunch = 2048,  // from version 5
  kEvCeColl = 4096,        // from version 6
  kEvCeSync = 8192,        // from version 6
  kEvCeBatch = 16384       // from version 6
};

// The values are the same in all versions; 0 to 7 are sent up to version 3 only.
enum EventState : int {
  kStSendPosted = 0,
  kStSendRemFifoWait = 1,
  kStSendTransmitted = 2,
  kStSendDone = 3,
  kStRecvPosted = 4,
  kStRecvReceived = 5,
  kStRecvTransmitted = 6,
  kStRecvDone = 7,
  kStStepSendGpuWait = 8,
  kStStepSendWait = 9,
  kStStepRecvWait = 10,
  kStStepRecvFlushWait = 11,
  kStStepRecvGpuWait = 12,
  kStOpInProgress = 19,
  kStStepSendPeerWait = 20,
  kStKernelChStop = 22,
  kStGroupStartApiStop = 23,
  kStGroupEndApiStart = 24
};

// Fields that the unions of several versions share.
struct ProxyOp {
  int pid;
  u8 channel;
  int peer;
  int n_steps;
  int chunk_bytes;
  int is_send;
};
struct ProxyStep {
  int step;
};
struct KernelCh {
  u8 channel;
  u64 timer_ns;  // from version 4
};
struct NetEvent {
  i64 id;
  void* data;
};
struct NamedP2p {  // versions 2 and 3
  const char* name;
  u64 comm_hash;
  const char* func;
  void* buffer;
  const char* datatype;
  std::size_t count;
  int peer;
};

// Version 6; version 5 is the same without the ce members, which lie within the union.
struct Event6 {
  u64 type;
  void* parent;
  int rank;
  union {
    struct {
      bool captured;
      int depth;
    } group_api;
    struct {
      const char* func;
      std::size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool captured;
    } coll_api;
    struct {
      const char* func;
      std::size_t count;
      const char* datatype;
      void* stream;
      bool captured;
    } p2p_api;
    struct {
      void* stream;
    } launch;
    struct {
      u64 seq;
      const char* func;
      const void* send;
      void* recv;
      std::size_t count;
      int root;
      const char* datatype;
      u8 n_channels;
      u8 n_warps;
      const char* algo;
      const char* proto;
      void* parent_group;
    } coll;
    struct {
      const char* func;
      void* buffer;
      const char* datatype;
      std::size_t count;
      int peer;
      u8 n_channels;
      void* parent_group;
    } p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
    KernelCh kernel_ch;
    NetEvent net;
    struct {
      u64 seq;
      const char* func;
      const void* send;
      void* recv;
      std::size_t count;
      int root;
      const char* datatype;
      const char* sync;
      bool intra_batch_sync;
      u32 batch_size;
      u32 n_batches;
      u32 ce_seq;
      void* stream;
    } ce_coll;
  };
};
static_assert(sizeof(Event6) == 112 && offsetof(Event6, parent) == 8);
static_assert(offsetof(Event6, rank) == 16 && offsetof(Event6, coll) == 24);
static_assert(offsetof(Event6, group_api.depth) == 28 && offsetof(Event6, coll_api.count) == 32);
static_assert(offsetof(Event6, coll_api.root) == 48 && offsetof(Event6, coll_api.stream) == 56);
static_assert(offsetof(Event6, coll_api.captured) == 64 && offsetof(Event6, p2p_api.stream) == 48);
static_assert(offsetof(Event6, p2p_api.captured) == 56 && offsetof(Event6, coll.func) == 32);
static_assert(offsetof(Event6, coll.count) == 56 && offsetof(Event6, coll.root) == 64);
static_assert(offsetof(Event6, coll.datatype) == 72 && offsetof(Event6, coll.n_channels) == 80);
static_assert(offsetof(Event6, coll.algo) == 88 && offsetof(Event6, coll.parent_group) == 104);
static_assert(offsetof(Event6, p2p.peer) == 56 && offsetof(Event6, p2p.n_channels) == 60);
static_assert(offsetof(Event6, proxy_op.channel) == 28 && offsetof(Event6, proxy_op.peer) == 32);
static_assert(offsetof(Event6, proxy_op.n_steps) == 36 && offsetof(Event6, proxy_op.is_send) == 44);
static_assert(offsetof(Event6, kernel_ch.timer_ns) == 32 && offsetof(Event6, net.data) == 32);
static_assert(offsetof(Event6, ce_coll.sync) == 80 && offsetof(Event6, ce_coll.ce_seq) == 100);
static_assert(offsetof(Event6, ce_coll.stream) == 104);

// Version 7 (NCCL 2.31) has more behind the same members: a tag of the program's, the kernel's
// variant. Nothing of it is read.
struct Event7 : Event6 {
  char more[24];
};
static_assert(sizeof(Event7) == 136);

struct Event4 {
  u8 type;
  void* parent;
  int rank;
  union {
    struct {
      u64 seq;
      const char* func;
      const void* send;
      void* recv;
      std::size_t count;
      int root;
      const char* datatype;
      u8 n_channels;
      u8 n_warps;
      const char* algo;
      const char* proto;
    } coll;
    struct {
      const char* func;
      void* buffer;
      const char* datatype;
      std::size_t count;
      int peer;
      u8 n_channels;
    } p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
    KernelCh kernel_ch;
    NetEvent net;
  };
};
static_assert(sizeof(Event4) == 104 && offsetof(Event4, coll) == 24);
static_assert(offsetof(Event4, coll.func) == 32 && offsetof(Event4, coll.algo) == 88);
static_assert(offsetof(Event4, p2p.peer) == 56 && offsetof(Event4, kernel_ch.timer_ns) == 32);

struct Event3 {
  u8 type;
  void* parent;
  int rank;
  union {
    struct {
      const char* name;
      u64 comm_hash;
      u64 seq;
      const char* func;
      const void* send;
      void* recv;
      std::size_t count;
      int root;
      const char* datatype;
      u8 max_channels;
      u8 n_warps;
      const char* algo;
      const char* proto;
    } coll;
    NamedP2p p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
    struct {
      u8 channel;
    } kernel_ch;
    NetEvent net;
  };
};
static_assert(sizeof(Event3) == 120 && offsetof(Event3, coll.comm_hash) == 32);
static_assert(offsetof(Event3, coll.func) == 48 && offsetof(Event3, p2p.func) == 40);

struct Event2 {
  u8 type;
  void* parent;
  int rank;
  union {
    struct {
      const char* name;
      u64 comm_hash;
      u64 seq;
      const char* func;
      const void* send;
      void* recv;
      std::size_t count;
      int root;
      const char* datatype;
      std::size_t traffic_bytes;
      u8 max_channels;
      u8 n_warps;
      const char* algo;
      const char* proto;
    } coll;
    NamedP2p p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
  };
};
static_assert(sizeof(Event2) == 128 && offsetof(Event2, coll.func) == 48);

struct Event1 {
  u8 type;
  void* parent;
  int rank;
  union {
    struct {
      const char* name;
      u64 comm_hash;
      u64 seq;
      u8 func;
      const void* send;
      void* recv;
      std::size_t count;
      int root;
      u8 datatype;
      u32 op;
      std::size_t traffic_bytes;
      u8 max_channels;
      u8 n_warps;
      u8 algo;
      u8 proto;
      int is_collnet;
      int is_nvls;
    } coll;
    struct {
      const char* name;
      u64 comm_hash;
      u8 func;
      void* buffer;
      u8 datatype;
      std::size_t count;
      int peer;
    } p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
  };
};
static_assert(sizeof(Event1) == 120 && offsetof(Event1, coll.func) == 48);
static_assert(offsetof(Event1, p2p.func) == 40 && offsetof(Event1, p2p.peer) == 72);

// The data of NCCL's own network plugins behind `net.data`; `net.id` gives the type. Only builds of
// NCCL with NET_PROFILER=1 send it, one event per work request, as a child of a proxy step.
inline constexpr i64 kNetIb1 = 1 << 16 | 1;      // type 1, version 1 of its descriptor
inline constexpr i64 kNetSocket1 = 2 << 16 | 1;  // type 2
inline constexpr u8 kNetQp = 1;
inline constexpr u8 kNetSocket = 1;

struct NetIb1 {
  u8 type;  // kNetQp
  struct {
    int device;  // of those that make up the NIC in use
    u64 wr_id;
    int opcode;
    int qp;
    std::size_t bytes;
  } request;
};
static_assert(sizeof(NetIb1) == 40 && offsetof(NetIb1, request.device) == 8);
static_assert(offsetof(NetIb1, request.wr_id) == 16 && offsetof(NetIb1, request.qp) == 28);

struct NetSocket1 {
  u8 type;  // kNetSocket
  struct {
    int fd;
    int op;
    std::size_t bytes;
  } transfer;
};
static_assert(sizeof(NetSocket1) == 24 && offsetof(NetSocket1, transfer.fd) == 8);

union Args1 {  // versions 1 to 3
  struct {
    std::size_t bytes;
    int steps;
  } proxy_op;
  int appended;
};
union Args4 {  // versions 4 to 6
  std::size_t step_bytes;
  int appended;
  void* net_data;
  u64 timer_ns;
};
static_assert(sizeof(Args1) == 16 && sizeof(Args4) == 8);

// ---------------------------------------------------------------- plugins

template <class Event, class Args, class... InitArgs>
struct Plugin {
  const char* name;
  int (*init)(void** context, InitArgs...);
  int (*start)(void* context, void** handle, Event* event);
  int (*stop)(void* handle);
  int (*state)(void* handle, int state, Args* args);
  int (*finalize)(void* context);
};
using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                        const char* text, ...);
using Plugin1 = Plugin<Event1, Args1, int*>;
using Plugin2 = Plugin<Event2, Args1, int*>;
using Plugin3 = Plugin<Event3, Args1, int*>;
using Plugin4 = Plugin<Event4, Args4, int*, const char*, u64, int, int, int, Logger>;
using Plugin6 = Plugin<Event6, Args4, u64, int*, const char*, int, int, int, Logger>;
using Plugin5 = Plugin6;  // the same signatures
using Plugin7 = Plugin<Event7, Args4, u64, int*, const char*, int, int, int, Logger>;
static_assert(sizeof(Plugin1) == 48 && sizeof(Plugin7) == 48);

// ---------------------------------------------------------------- public interface

struct UniqueId {
  char bytes[128];
};
static_assert(sizeof(UniqueId) == 128);

// Head of ncclConfig_t; never copied, its size grows with every version.
struct ConfigHead {
  std::size_t bytes;
  unsigned magic;
  unsigned version;
  int blocking;
};

}  // namespace fr::nccl
