// encode_device.cpp - a region into a dump: NCCL's and CUDA's part.
#include "format/packer.hpp"

namespace fr::packing {

using schema::get;

namespace {

// State of fr's own thread for CUDA; nil: there is none.
void pack_observer(Packer& p, const View& view, const Times& times) {
  const Cuda* c = view.cuda();
  text(p, "observer");
  if (c == nullptr || c->observer_tid.load() == 0) {
    p.pack_nil();
    return;
  }
  // The id first: since is then of this call or of a later one, never of an earlier.
  const u32 call = c->call.load(std::memory_order_acquire);
  pack_map(p, times, schema::kObserver, schema::ObserverCells{view, *c, call});
}

// The first asynchronous error of CUDA; nil: none was seen.
void pack_cuda_error(Packer& p, const View& view, const Times& times) {
  const Cuda* c = view.cuda();
  text(p, "error");
  if (c == nullptr || c->error_ready.load(std::memory_order_acquire) == 0) {
    p.pack_nil();
    return;
  }
  pack_map(p, times, schema::kCudaError, schema::CudaErrorCells{view, *c});
}

}  // namespace

// Reports of the device library; nil: it was not asked.
void pack_device(Packer& p, const View& view, const Times& times) {
  text(p, "device");
  const Device* device = view.device();
  if (!view.has_device()) {
    p.pack_nil();
    return;
  }
  p.pack_map(12);
  key_uint(p, "process", handle_salt(view.header().pid, view.header().proc_start));
  key_uint(p, "library_version", device->library_version.load());
  key_uint(p, "plugin_api", device->plugin_api.load());
  key_uint(p, "events", device->events.load());
  key_uint(p, "hooked", device->hooked.load());
  key_uint(p, "followed", view.cuda() != nullptr ? get(view.cuda()->followed) : 0);
  text(p, "losses");
  const Cuda* cuda = view.cuda();
  constexpr u32 kOwn = std::tuple_size_v<decltype(schema::kDeviceLosses)>;
  constexpr u32 kOfCuda = std::tuple_size_v<decltype(schema::kCudaLosses)>;
  p.pack_map(cuda != nullptr ? kOwn + kOfCuda : kOwn);
  pack_members(p, times, schema::kDeviceLosses, *device);
  if (cuda != nullptr) {
    pack_members(p, times, schema::kCudaLosses, *cuda);
  }
  pack_observer(p, view, times);
  pack_cuda_error(p, view, times);

  pack_table(p, times, "comms", schema::kComms, view.n_comms(), [&](u32 i, auto row) {
    const CommRow* comm = view.comm(i);
    if (comm != nullptr) {
      row(schema::CommCells{i, *comm});
    }
    return comm != nullptr;
  });
  pack_table(p, times, "operations", schema::kOperations, view.n_device_ops(),
             [&](u32 i, auto row) {
               DeviceOpCopy op;
               const bool is_used = view.read_device_op(i, op);
               if (is_used) {
                 row(schema::OperationCells{i, op});
               }
               return is_used;
             });
  pack_table(p, times, "phases", schema::kPhases, view.n_phases(), [&](u32 i, auto row) {
    PhaseCopy phase;
    const bool is_used = view.read_phase(i, phase);
    if (is_used) {
      row(schema::PhaseCells(phase));
    }
    return is_used;
  });
}

}  // namespace fr::packing
