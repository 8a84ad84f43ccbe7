// host.hpp - loads libfr.so as NCCL loads a profiler plugin, and plays its part.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "format/view.hpp"
#include "fr/fr.h"
#include "nccl/abi.hpp"

namespace fr::test {

using namespace fr::nccl;

// libfr.so in this process, once.
struct Library {
  void* handle;
  template <class F>
  F get(const char* name) const {
    void* p = dlsym(handle, name);
    if (p == nullptr) {
      throw std::runtime_error(std::string("libfr.so has no ") + name);
    }
    return reinterpret_cast<F>(p);
  }
  static Library& instance() {
    static Library library{dlopen(FR_LIBRARY, RTLD_NOW | RTLD_LOCAL)};
    if (library.handle == nullptr) {
      throw std::runtime_error(dlerror());
    }
    return library;
  }
  View view() const {
    size_t bytes = 0;
    const void* base = get<const void* (*)(size_t*)>("fr_region")(&bytes);
    return View::of(base, bytes);
  }
};

// NCCL looks for the newest version it knows and takes the first it finds.
inline int newest_version(void* library, int known) {
  for (int v = known; v > 0; --v) {
    if (dlsym(library, ("ncclProfiler_v" + std::to_string(v)).c_str()) != nullptr) {
      return v;
    }
  }
  return 0;
}

// A communicator of one rank as NCCL with plugin version 5 to 7 shows it.
class Comm6 {
 public:
  explicit Comm6(u64 hash, int n_ranks = 2, int rank = 0, int version = 6, const char* name = "")
      : plugin(*Library::instance().get<Plugin6*>(
            ("ncclProfiler_v" + std::to_string(version)).c_str())) {
    plugin.init(&context, hash, &mask, name, 1, n_ranks, rank, nullptr);
  }
  ~Comm6() {
    if (!finalized) {
      finalize();
    }
  }
  void finalize() {
    finalized = true;
    plugin.finalize(context);
  }

  void* start(const Event6& e) {
    void* handle = reinterpret_cast<void*>(0xdead);
    Event7 newest{};  // the others are its beginning
    static_cast<Event6&>(newest) = e;
    plugin.start(context, &handle, &newest);
    return handle;
  }
  void stop(void* handle) { plugin.stop(handle); }
  void state(void* handle, int s, u64 value = 0) {
    Args4 args;
    args.timer_ns = value;
    plugin.state(handle, s, &args);
  }

  static Event6 event(u64 type, void* parent = nullptr) {
    Event6 e;
    std::memset(&e, 0, sizeof e);
    e.type = type;
    e.parent = parent;
    return e;
  }
  void* group_api(bool captured = false) {
    Event6 e = event(kEvGroupApi);
    e.group_api.captured = captured;
    e.group_api.depth = 1;
    return start(e);
  }
  void* coll_api(void* group, const char* func = "AllReduce", size_t count = 1024,
                 bool captured = false) {
    Event6 e = event(kEvCollApi, group);
    e.coll_api.func = func;
    e.coll_api.count = count;
    e.coll_api.datatype = "ncclFloat32";
    e.coll_api.root = 1;
    e.coll_api.stream = reinterpret_cast<void*>(0x5000);
    e.coll_api.captured = captured;
    return start(e);
  }
  void* p2p_api(void* group, const char* func, size_t count = 16) {
    Event6 e = event(kEvP2pApi, group);
    e.p2p_api.func = func;
    e.p2p_api.count = count;
    e.p2p_api.datatype = "ncclFloat16";
    return start(e);
  }
  void* launch(void* group) { return start(event(kEvKernelLaunch, group)); }
  void* coll(void* parent, u8 channels, const char* func = "AllReduce") {
    Event6 e = event(kEvColl, parent);
    e.rank = 0;
    e.coll.func = func;
    e.coll.datatype = "ncclInt8";
    e.coll.n_channels = channels;
    e.coll.algo = "RING";
    e.coll.proto = "SIMPLE";
    return start(e);
  }
  void* p2p(void* parent, const char* func, int peer, u8 channels) {
    Event6 e = event(kEvP2p, parent);
    e.p2p.func = func;
    e.p2p.datatype = "ncclFloat16";
    e.p2p.peer = peer;
    e.p2p.count = 16;
    e.p2p.n_channels = channels;
    return start(e);
  }
  void* kernel(void* task, u8 channel, u64 ns = 0) {
    Event6 e = event(kEvKernelCh, task);
    e.kernel_ch.channel = channel;
    e.kernel_ch.timer_ns = ns;
    return start(e);
  }
  void kernel_stop(void* handle, u64 ns = 0) {
    state(handle, kStKernelChStop, ns);
    stop(handle);
  }
  void* transfer(void* task, bool send, int peer, u8 channel = 0, int steps = 8, int pid = 0) {
    Event6 e = event(kEvProxyOp, task);
    e.proxy_op.pid = pid != 0 ? pid : static_cast<int>(getpid());
    e.proxy_op.channel = channel;
    e.proxy_op.peer = peer;
    e.proxy_op.n_steps = steps;
    e.proxy_op.is_send = send ? 1 : 0;
    return start(e);
  }
  void* step(void* transfer_handle, int number) {
    Event6 e = event(kEvProxyStep, transfer_handle);
    e.proxy_step.step = number;
    return start(e);
  }
  void* net(void* step_handle, i64 id, void* data) {
    Event6 e = event(kEvNetPlugin, step_handle);
    e.net.id = id;
    e.net.data = data;
    return start(e);
  }
  // A whole collective up to its launch; returns the task.
  void* enqueue(u8 channels = 2, const char* func = "AllReduce", size_t count = 1024) {
    void* group = group_api();
    void* api = coll_api(group, func, count);
    stop(api);
    state(group, kStGroupEndApiStart);
    void* l = launch(group);
    stop(l);
    void* task = coll(api, channels, func);
    stop(task);
    stop(group);
    return task;
  }

  Plugin6& plugin;
  void* context = nullptr;
  int mask = 0;
  bool finalized = false;
};

// ---------------------------------------------------------------- evidence

inline View view() {
  return Library::instance().view();
}

inline u32 group_named(const View& view, const std::string& name) {
  for (u32 i = 1; i < view.n_groups(); ++i) {
    if (view.string(view.group(i)->name) == name) {
      return i;
    }
  }
  return 0;
}

inline std::string comm_name(u64 hash) {
  char text[32];
  std::snprintf(text, sizeof text, "nccl:%016llx", static_cast<unsigned long long>(hash));
  return text;
}

// Records of a communicator's group, oldest first.
inline std::vector<RecordCopy> records_of(const View& view, u64 hash) {
  std::vector<RecordCopy> out;
  const u32 group = group_named(view, comm_name(hash));
  static RecordCopy copy;
  for (u32 slot = 0; slot < view.n_slots() && group != 0; ++slot) {
    if (view.read(slot, copy) == Slot::kWhole && copy.payload.group == group &&
        copy.payload.kind <= FR_RECV) {
      out.push_back(copy);
    }
  }
  return out;
}

inline std::vector<DeviceOpCopy> device_ops(const View& view, u64 hash) {
  std::vector<DeviceOpCopy> out;
  for (u32 i = 0; i < view.n_device_ops(); ++i) {
    DeviceOpCopy op;
    const CommRow* comm = view.read_device_op(i, op) ? view.comm(op.comm) : nullptr;
    if (comm != nullptr && comm->hash.load() == hash) {
      out.push_back(op);
    }
  }
  return out;
}

inline std::vector<PhaseCopy> live_phases(const View& view) {
  std::vector<PhaseCopy> out;
  for (u32 i = 0; i < view.n_phases(); ++i) {
    PhaseCopy p;
    if (view.read_phase(i, p) && p.is_live()) {
      out.push_back(p);
    }
  }
  return out;
}

inline i64 in_flight(const View& view, u64 hash) {
  const u32 id = group_named(view, comm_name(hash));
  if (id == 0) {
    return 0;
  }
  const GroupRow& g = *view.group(id);
  const u64 issued = (g.issued.load() & kSeqMask) + g.p2p_issued.load();
  return static_cast<i64>(issued - g.untracked.load() - g.ended.load() - g.p2p_ended.load());
}

}  // namespace fr::test
