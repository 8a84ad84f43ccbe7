// library.cpp - NCCL's part: communicators between real processes. Their threads call the profiler
// as NCCL's threads do, in the same order. Kernels and the network are simulated over shared
// memory: a step of a buffer is filled, sent, received, taken. There is no data. host_next() sets
// the fault.
//
// Facts, by file and function of NCCL's source (2.23.4 to 2.30.7, and the one that has version 7):
//   init: up to version 3 before the ranks meet (init.cc, commAlloc), then at the end of
//     initTransportsRank.
//   A call reports GroupApi and CollApi when it is appended (enqueue.cc, ncclEnqueueCheck and
//     taskAppend), KernelLaunch around the launch; Group, Coll and P2p after that, then their
//     transfers are given to the progress thread, then Coll and Group are stopped (enqueue.cc,
//     hostStreamPlanTask): stopped means launched.
//   Behind a running graph hostStreamPlanTask runs in a callback of CUDA (enqueue.cc,
//     ncclLaunchPrepare).
//   ncclBroadcast from 2.29.2 on has GroupApi and CollApi alone: its task is turned into a
//     collective's without its mask (enqueue.cc, ncclPrepareTasks; also where version 7 is).
//   Sends and receives of the rank itself have no proxy operation (enqueue.cc, addP2pToPlan), so
//     none of a kernel's channels either.
//   KernelCh comes from the progress thread (transport/profiler.cc), with version 7 from a thread
//     of its own (plugin/profiler.cc, profilerProgressOps).
//   Kernels are numbered by the host when they are issued (proxy.cc, incWorkCounter), by the device
//     when they run, also those of graphs (device/common.h, profiler). NCCL reports the kernel that
//     has the host's number. Only the device numbers the sends of a rank to itself (enqueue.cc,
//     addP2pToPlan) and, as seen on a GPU with 2.28.9, operations captured without KernelCh in the
//     mask.
//   Sends and receives of a group are done in pairs, and the first warp reports the end of a pair
//     (seen on a GPU with 2.28.9: a receive was reported as ended together with its pair's send,
//     although its peer had not sent).
//   Steps of a transfer: transport/net.cc, sendProxyProgress and recvProxyProgress; up to 8 are
//     posted; in versions 1 to 3 the operation has states with counts beside those of its steps.
//   A transfer of a connection begins when the one before it is over (proxy.cc, ProxyAppend); it is
//     reported when it is appended, up to version 3 when it begins.
#include <thread>

#include "simulation.hpp"

namespace host {
namespace {

// ---------------------------------------------------------------- the device

class Device {
 public:
  static Device& instance() {
    static auto* d = new Device;
    return *d;
  }
  void enter(Plan* p) {
    using Gate = void (*)(void*, std::atomic<int>*, std::atomic<int>*);
    static void* cuda = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
    static Gate gate =
        cuda != nullptr ? reinterpret_cast<Gate>(dlsym(cuda, "standin_cuda_gate")) : nullptr;
    if (gate != nullptr) {
      p->reached.store(0);
      gate(p->stream, &p->reached, &p->opened);
    }
    const std::lock_guard guard(lock_);
    streams_[p->stream].push_back(p);
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { run(); });
    }
  }
  bool is_empty(void* stream) {
    const std::lock_guard guard(lock_);
    return streams_[stream].empty();
  }

 private:
  static bool fill(Block& b) {
    Lane& l = *b.send;
    const uint64_t room = l.networked ? l.posted.load() : l.wire->taken.load() + kDepth - l.base;
    if (b.sends >= l.steps || b.sends >= room) {
      return false;
    }
    l.wire->filled.fetch_add(1);
    ++b.sends;
    return true;
  }
  static bool take(Block& b) {
    Lane& l = *b.recv;
    const uint64_t there = l.networked ? l.flushed.load() : l.wire->filled.load() - l.base;
    if (b.recvs >= l.steps || there <= b.recvs) {
      return false;
    }
    l.wire->taken.fetch_add(1);
    ++b.recvs;
    return true;
  }

  static bool run_block(const Work& w, Block& b) {
    bool moved = false;
    if (!b.started) {
      b.start_ns = device_ns();
      b.started = moved = true;
    }
    if (w.fault == kHostStands) {
      return moved;
    }
    // The root's own, or a ring's first step, needs nothing; others are passed on once received.
    const bool passes_on = std::strcmp(w.func, "Broadcast") == 0;
    const auto may_fill = [&] {
      return b.send != nullptr && (b.recv == nullptr || b.recvs >= b.sends + (passes_on ? 1 : 0));
    };
    for (bool more = true; more;) {
      more = may_fill() && fill(b);
      more = (b.recv != nullptr && take(b)) || more;
      moved = moved || more;
    }
    const bool done = (b.send == nullptr || b.sends == b.send->steps) &&
                      (b.recv == nullptr || b.recvs == b.recv->steps);
    if (done && !b.ended && !(w.fault == kHostSpins && b.channel == 1)) {
      b.end_ns = device_ns();
      b.ended = moved = true;
    }
    return moved;
  }

  static bool run_kernel(Plan& p) {
    bool moved = false, over = true;
    for (auto& w : p.works) {
      for (Block& b : w->blocks) {
        const bool absent =
            w->fault == kHostNoKernel || (w->fault == kHostOneChannel && b.channel == 1);
        moved = (!absent && !b.ended && run_block(*w, b)) || moved;
        over = over && b.ended;
      }
    }
    p.kernel_over.store(over);
    return moved;
  }

  void run() {
    Nap nap;
    for (;;) {
      bool moved = false;
      std::vector<Plan*> heads;
      {
        const std::lock_guard guard(lock_);
        for (auto& [stream, queue] : streams_) {
          if (!queue.empty() && queue.front()->reached.load() != 0) {
            heads.push_back(queue.front());
          }
        }
      }
      for (Plan* p : heads) {
        moved = run_kernel(*p) || moved;
        if (p->kernel_over.load()) {
          p->opened.store(1);
          const std::lock_guard guard(lock_);
          streams_[p->stream].pop_front();
          moved = true;
        }
      }
      nap(moved);
    }
  }

  std::mutex lock_;
  std::map<void*, std::deque<Plan*>> streams_;
  std::thread thread_;
};

// ---------------------------------------------------------------- calls and launches

thread_local int t_depth = 0;
thread_local Comm* t_first = nullptr;
thread_local void* t_group = nullptr;
thread_local std::vector<std::unique_ptr<Work>> t_works;
std::atomic<int> g_fault{kHostNone};

void add_lane(Work& w, int channel, int peer, bool send) {
  Comm& c = *w.comm;
  Lane& l = w.lanes.emplace_back();
  l.peer = peer;
  l.channel = channel;
  l.send = send;
  l.networked = c.node(peer) != c.node(c.rank);
  l.steps = static_cast<uint64_t>(number("HOST_STEPS", 4));
  auto& by = shared().wires[c.index][w.is_p2p ? 1 : 0];
  l.wire = send ? &by[c.rank][peer][channel] : &by[peer][c.rank][channel];
  uint64_t& before = c.used[{l.wire, send ? 1 : 0}];
  l.base = before;
  before += l.steps;
  Block& b = w.blocks.back();
  (send ? b.send : b.recv) = &l;
}

void make_lanes(Work& w) {
  const Comm& c = *w.comm;
  const int next = (c.rank + 1) % c.n_ranks, before = (c.rank + c.n_ranks - 1) % c.n_ranks;
  for (int channel = 0; channel < c.channels(); ++channel) {
    w.blocks.emplace_back().channel = channel;
    if (w.is_p2p) {
      if (!w.is_self()) {
        add_lane(w, channel, w.root, w.is_send);
      }
      continue;
    }
    const bool chain = std::strcmp(w.func, "Broadcast") == 0;
    if (!chain || next != w.root) {
      add_lane(w, channel, next, true);
    }
    if (!chain || c.rank != w.root) {
      add_lane(w, channel, before, false);
    }
  }
}

// hostStreamPlanTask: reports the launch and gives the transfers to the progress thread.
void tell_launched(Plan& p) {
  Comm& c = *p.comm;
  bool any = false;
  for (auto& w : p.works) {
    any = any || !w->is_silent;
  }
  void* group = any ? c.profiler.start(Event{kGroup}) : nullptr;
  for (auto& w : p.works) {
    if (w->is_silent) {
      continue;
    }
    Event e{w->is_p2p ? kP2p : kColl};
    e.parent = Profiler::api() >= 5 ? w->api : group;
    e.group = group;
    e.func = w->func;
    e.send = w->sends;
    e.recv = w->receives;
    e.count = w->count;
    e.root = w->root;
    e.seq = w->is_p2p ? 0 : c.coll_seq++;
    e.channels = c.channels();
    w->task = c.profiler.start(e);
  }
  {
    const std::lock_guard guard(c.lock);
    c.uploaded.push_back(&p);
    c.kernels.push_back(&p);
  }
  for (auto& w : p.works) {
    c.profiler.stop(w->task);
  }
  c.profiler.stop(group);
}

void launch(Plan& p) {
  Comm& c = *p.comm;
  void* told = nullptr;
  for (auto& w : p.works) {
    if (!w->is_silent && told == nullptr) {
      Event e{kKernelLaunch};
      e.parent = p.group;
      e.stream = p.stream;
      told = c.profiler.start(e);
    }
  }
  bool later = false;
  for (auto& w : p.works) {
    if (w->fault == kHostInLaunch) {
      hang();
    }
    later = later || w->fault == kHostBehindGraph;
    const std::lock_guard guard(c.lock);
    const bool counted = !w->is_self() && (!w->is_captured() || c.profiler.wants(kKernelCh));
    w->number = counted ? ++c.issued : 0;
    c.numbered[++c.run] = w->is_captured() ? nullptr : w.get();
  }
  c.profiler.stop(told);
  if (p.works.front()->is_captured()) {
    return;
  }
  Device::instance().enter(&p);
  if (!later) {
    tell_launched(p);
    return;
  }
  std::thread([&p] {
    // The call returns meanwhile: the callback runs when the graph is over.
    usleep(20'000);
    tell_launched(p);
  }).detach();
}

void launch_all() {
  if (t_first == nullptr) {
    return;
  }
  t_first->profiler.state(t_group, kGroupEndStart);
  std::vector<Plan*> plans;  // one for each communicator; they outlive everything
  for (auto& w : t_works) {
    Plan* of = nullptr;
    for (Plan* p : plans) {
      of = p->comm == w->comm ? p : of;
    }
    if (of == nullptr) {
      plans.push_back(of = new Plan);
      of->comm = w->comm;
      of->stream = w->stream;
      of->group = t_group;
    }
    of->works.push_back(std::move(w));
  }
  for (Plan* p : plans) {
    for (auto& w : p->works) {
      if (!w->is_captured()) {
        make_lanes(*w);
      }
    }
    launch(*p);
  }
  t_first->profiler.stop(t_group);
  t_works.clear();
  t_first = nullptr;
  t_group = nullptr;
}

int append(void* comm, const char* func, size_t count, int root, void* stream, const void* sends,
           void* receives) {
  Comm& c = *static_cast<Comm*>(comm);
  auto w = std::make_unique<Work>();
  w->comm = &c;
  w->func = func;
  w->count = count;
  w->root = root;
  w->stream = stream;
  w->sends = sends;
  w->receives = receives;
  w->fault = g_fault.exchange(kHostNone);
  w->is_send = std::strcmp(func, "Send") == 0;
  w->is_p2p = w->is_send || std::strcmp(func, "Recv") == 0;
  w->is_silent = std::strcmp(func, "Broadcast") == 0 && Profiler::library() >= 22902;
  if (t_first == nullptr) {
    t_first = &c;
    Event group{kGroupApi};
    group.captured = w->is_captured();
    t_group = c.profiler.start(group);
    c.profiler.state(t_group, kGroupStartStop);
  }
  Event e{w->is_p2p ? kP2pApi : kCollApi};
  e.parent = t_group;
  e.func = func;
  e.count = count;
  e.root = root;
  e.stream = stream;
  e.captured = w->is_captured();
  w->api = c.profiler.start(e);
  c.profiler.stop(w->api);
  t_works.push_back(std::move(w));
  if (t_depth == 0) {
    launch_all();
  }
  return 0;
}

// NCCL's hash of the unique id (utils.cc): two accumulators, eight bytes at a time.
uint64_t hash_of(const HostId& id) {
  uint64_t acc[2] = {1 ^ sizeof id.bytes, 1};
  for (size_t i = 0; i < sizeof id.bytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, id.bytes + i, 8);
    acc[0] += acc[1];
    acc[1] ^= acc[0];
    acc[0] ^= acc[0] >> 31;
    acc[0] *= 0x9de62bbc8cef3ce3ull;
    acc[1] ^= acc[1] >> 32;
    acc[1] *= 0x485cd6311b599e79ull;
    acc[0] += word;
  }
  uint64_t h = acc[0];
  h ^= h >> 31;
  h *= 0xbac3bd562846de6bull;
  h += acc[1];
  h ^= h >> 32;
  return h * 0x995a187a14e7b445ull;
}

}  // namespace
}  // namespace host

using namespace host;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int ncclGetVersion(int* version) {
  *version = Profiler::library();
  return 0;
}
EXPORT int ncclCommInitRank(void** out, int n_ranks, HostId id, int rank) {
  static std::atomic<int> made{0};
  auto* c = new Comm;
  c->index = made.fetch_add(1);
  c->n_ranks = n_ranks;
  c->rank = rank;
  c->ranks_per_node = number("HOST_RANKS_PER_NODE", 1);
  const int n_nodes = (n_ranks + c->ranks_per_node - 1) / c->ranks_per_node;
  const auto init = [&] { c->profiler.init(hash_of(id), n_nodes, n_ranks, rank); };
  if (Profiler::api() <= 3) {
    init();
  }
  shared().joined[c->index].fetch_add(1);
  await([&] { return shared().joined[c->index].load() >= n_ranks; });
  if (Profiler::api() > 3) {
    init();
  }
  std::thread(run_progress, c).detach();
  if (Profiler::api() >= 7) {
    std::thread(run_kernel_reports, c).detach();
  }
  *out = c;
  return 0;
}
EXPORT int ncclCommCount(const void* comm, int* n) {
  *n = static_cast<const Comm*>(comm)->n_ranks;
  return 0;
}
EXPORT int ncclCommUserRank(const void* comm, int* rank) {
  *rank = static_cast<const Comm*>(comm)->rank;
  return 0;
}
EXPORT int ncclCommGetAsyncError(void*, int* error) {
  *error = 0;
  return 0;
}
EXPORT int ncclGroupStart() {
  ++t_depth;
  return 0;
}
EXPORT int ncclGroupEnd() {
  if (--t_depth == 0) {
    launch_all();
  }
  return 0;
}
EXPORT int ncclAllReduce(const void* s, void* r, size_t n, int, int, void* comm, void* stream) {
  return append(comm, "AllReduce", n, 0, stream, s, r);
}
EXPORT int ncclBroadcast(const void* s, void* r, size_t n, int, int root, void* comm,
                         void* stream) {
  return append(comm, "Broadcast", n, root, stream, s, r);
}
EXPORT int ncclSend(const void* s, size_t n, int, int peer, void* comm, void* stream) {
  return append(comm, "Send", n, peer, stream, s, nullptr);
}
EXPORT int ncclRecv(void* r, size_t n, int, int peer, void* comm, void* stream) {
  return append(comm, "Recv", n, peer, stream, nullptr, r);
}
EXPORT const char* ncclGetErrorString(int) {
  return "no error";
}
EXPORT const char* ncclGetLastError(void*) {
  return "";
}

EXPORT void host_next(int fault) {
  g_fault.store(fault);
}
EXPORT void host_synchronize(void* stream) {
  await([&] { return Device::instance().is_empty(stream); });
}
EXPORT void host_meet() {
  const int n = number("WORLD_SIZE", 1);
  const int place = shared().met.fetch_add(1);
  await([&] { return shared().met.load() >= (place / n + 1) * n; });
}
// Handles that are over, never were, or are another process's; children of a call that was stopped.
EXPORT void host_stale(void* comm) {
  const Profiler& p = static_cast<Comm*>(comm)->profiler;
  Event e{kProxyOp};
  for (const uintptr_t parent :
       {uintptr_t{0}, uintptr_t{0x1000}, uintptr_t{0x7f521234'5678'9abc}, ~uintptr_t{0}}) {
    e.type = kProxyOp;
    e.parent = reinterpret_cast<void*>(parent);
    e.steps = 4;
    void* op = p.start(e);
    e.type = kProxyStep;
    e.parent = op;
    void* step = p.start(e);
    p.state(step, kSendWait, 1);
    for (int twice = 0; twice < 2; ++twice) {
      p.stop(step);
      p.stop(op);
    }
    p.state(step, kSendPeerWait);
    e.type = kKernelCh;
    e.parent = reinterpret_cast<void*>(parent);
    void* kernel = p.start(e);
    p.state(kernel, kKernelChStop, 1);
    p.stop(kernel);
    p.stop(kernel);
    p.state(kernel, kKernelChStop, 2);
  }
}
