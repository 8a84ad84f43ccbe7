// torch_adapter.cpp - records every torch.distributed operation, from Python and from C++.
//
// Compiled on the user's machine against the torch that is installed there (adapter.py), because
// the C++ interface of torch changes from version to version. It speaks fr's C ABI through a table
// of functions and never links libfr.
//
// All operations of c10d::ProcessGroup go through the dispatcher as operators of the namespace
// c10d. For each that takes a process group, a boxed kernel stands on BackendSelect: above the
// backends, below autograd and Python, empty for these operators, active in every thread, also
// under no_grad and inference_mode.
//
//     python, DDP's reducer, functional collectives...
//          |  dispatcher
//       Hook: fr_begin -> redispatch -> Work -> completion
//                                                |- future:    its callback, on the backend's
//                                                |             thread -> fr_end
//                                                |- wait-only: the Work is wrapped, wait() -> fr_end
//                                                |- device:    fr follows NCCL itself
//                                                `- untracked: its future completes at enqueue
//
// The GIL is not held here and never taken.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/version.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "arguments.hpp"
#include "completion.hpp"
#include "fingerprint.hpp"
#include "fr/fr.h"
#include "groups.hpp"
#include "plan.hpp"
#include "store.hpp"
#include "tensors.hpp"

namespace {

// The flags of the record are needed before the first Work of an operator has been seen.
__attribute__((cold, noinline)) Mode guess_mode(const Plan& plan, const c10d::ProcessGroup& pg,
                                                bool cpu, c10::DeviceType device) {
  std::string backend;
  try {
    backend = const_cast<c10d::ProcessGroup&>(pg).getBackend(device)->getBackendName();
  } catch (...) {
    // unknown
  }
  const bool gloo = backend.find("gloo") != std::string::npos;
  if (gloo && plan.gloo_wait_only) {
    return kWaitOnly;
  }
  if (!cpu && backend.find("nccl") != std::string::npos && g_api->nccl_active() != 0) {
    return kDevice;
  }
  return cpu || gloo ? kFuture : kUntracked;
}

struct Issued {
  fr_ticket ticket{};
  uint16_t flags = 0;
  int own_rank = -1;                     // in the group; set for sampled operations
  std::atomic<uint8_t>* mode = nullptr;  // where the mode of the Work is kept
  std::shared_ptr<OutputSample> sample;  // sample of the outputs; null: not sampled
};

// Reads the inputs: at once on the CPU, on the caller's current stream on a device.
__attribute__((cold, noinline)) void sample_operation(const Plan& plan, const c10::IValue* args,
                                                      const fr_op& op, uint32_t generation,
                                                      Issued& issued) {
  const int out = plan.same_out ? plan.in : plan.out;
  const c10::TensorImpl* first = plan.device >= 0 ? first_tensor(args[plan.device]) : nullptr;
  if (!plan.has_tensors || first == nullptr) {
    return;
  }
  const c10::Device device = first->device();
  const bool on_device = DeviceSamples::serves(device);
  if (!on_device && !device.is_cpu()) {
    static std::atomic<bool> said{false};
    if (!said.exchange(true)) {
      const std::string text = "FR_FINGERPRINT: tensors on " + device.str() +
                               " are not sampled by this adapter, those on the CPU are";
      g_api->log(1, text.c_str());
    }
    return;
  }
  Sampled of = {op, issued.ticket, FR_SAMPLE_INPUT};
  // Only the root contributes to a broadcast.
  if (plan.in >= 0 && (!plan.is_from_root || op.peer == issued.own_rank)) {
    Digest digest;
    if (on_device) {
      of.op.stack = g_api->stack_here();
      device_samples(generation).take(args[plan.in], device, kCount, of);
    } else {
      const bool is_read = add_all(args[plan.in], kCount, digest);
      record_sample(of.op, of.ticket, is_read ? of.side : FR_SAMPLE_MISSED,
                    is_read ? digest : Digest());
    }
  }
  if (out >= 0) {
    of.side = plan.has_same_output ? FR_SAMPLE_SAME_OUTPUT : FR_SAMPLE_OUTPUT;
    issued.sample = std::make_shared<OutputSample>(args[out], of, device);
  }
}

uint32_t op_id(Plan& plan, uint64_t generation) {
  const uint64_t known = plan.op_id.load(std::memory_order_relaxed);
  if (known >> 32 == generation) {
    return static_cast<uint32_t>(known);
  }
  const uint32_t id = g_api->intern(plan.name.data(), plan.name.size());
  plan.op_id.store(generation << 32 | id, std::memory_order_relaxed);
  return id;
}

void issue(Plan& plan, const c10::IValue* args, uint32_t generation, Issued& issued) {
  const c10d::ProcessGroup* pg = borrowed<c10d::ProcessGroup>(args[plan.pg]);
  if (pg == nullptr) {
    return;
  }
  fr_op op;
  std::memset(&op, 0, sizeof op);
  Shape shape;
  if (plan.has_tensors) {
    uint32_t n_in = 0;
    uint32_t n_out = 0;
    uint32_t flags = 0;
    if (plan.in >= 0) {
      if (!shape.add(args[plan.in])) {
        return;
      }
      n_in = shape.count;
      op.in_numel = shape.numel;
      op.in_dtype = shape.dtype;
    }
    if (plan.same_out) {
      n_out = n_in;
      op.out_numel = op.in_numel;
      op.out_dtype = op.in_dtype;
      flags |= FR_SHAPE_SAME_OUT;
    } else if (plan.out >= 0) {
      shape.next_side();
      if (!shape.add(args[plan.out])) {
        return;
      }
      n_out = shape.count;
      op.out_numel = shape.numel;
      op.out_dtype = shape.dtype;
    }
    if (plan.in_splits >= 0 && plan.out_splits >= 0 &&
        (!args[plan.in_splits].toListRef().empty() || !args[plan.out_splits].toListRef().empty())) {
      shape.splits(args[plan.in_splits]);
      shape.splits(args[plan.out_splits]);
      flags |= FR_SHAPE_SPLITS;
    }
    op.n_shape = shape.finish(n_in, n_out, flags);
    op.shape = shape.words();
  }
  const c10::TensorImpl* tensor = plan.device >= 0 ? first_tensor(args[plan.device]) : nullptr;
  const c10::DeviceType device = tensor != nullptr ? tensor->device_type() : c10::DeviceType::CPU;
  if (device == c10::DeviceType::Meta) {
    return;
  }
  const bool cpu = device == c10::DeviceType::CPU;
  GroupEntry* group = group_of(pg, generation);
  issued.mode = &group->modes[static_cast<size_t>(plan.index)][cpu ? 0 : 1];
  auto mode = static_cast<Mode>(issued.mode->load(std::memory_order_relaxed));
  if (mode == kUnknown) {
    mode = guess_mode(plan, *pg, cpu, device);
  }
  op.struct_bytes = sizeof op;
  op.group = group->group;
  op.op = op_id(plan, generation);
  op.kind = plan.kind;
  op.flags = plan.flags;
  if (mode == kWaitOnly) {
    op.flags |= FR_WAIT_ONLY;
  } else if (mode == kUntracked) {
    op.flags |= FR_UNTRACKED;
  }
  if (plan.async_op >= 0 && args[plan.async_op].isBool() && args[plan.async_op].toBool()) {
    op.flags |= FR_ASYNC;
  }
  op.peer = plan.peer >= 0 ? static_cast<int32_t>(args[plan.peer].toInt()) : -1;
  if (plan.reduce_op >= 0) {
    if (const auto* reduce = borrowed<c10d::ReduceOp>(args[plan.reduce_op])) {
      op.reduce_op = static_cast<uint8_t>(reduce->op_ + 1);
    }
  }
  op.timeout_ms = group->timeout_ms.load(std::memory_order_relaxed);
  if (plan.timeout >= 0) {
    const int64_t timeout = args[plan.timeout].toInt();
    if (timeout > 0) {
      op.timeout_ms = static_cast<uint32_t>(timeout < 0xffffffffll ? timeout : 0xffffffffll);
    }
  }
  op.stack = FR_STACK_CAPTURE;
  issued.flags = op.flags;
  g_api->begin(&op, &issued.ticket);
  if (is_sampled(issued.ticket, generation)) {
    issued.own_rank = pg->getRank();
    sample_operation(plan, args, op, generation, issued);
  }
}

void wrap_sampled(const std::shared_ptr<OutputSample>& sample, c10::IValue& returned) {
  returned = c10::IValue(c10::static_intrusive_pointer_cast<c10d::Work>(
      c10::make_intrusive<SampledWork>(returned.toCustomClass<c10d::Work>(), sample)));
}

// The operation was issued and returned; watch its Work. May replace the Work on the stack.
void watch(const Issued& issued, c10::IValue& returned) {
  c10d::Work* work = borrowed<c10d::Work>(returned);
  if (work == nullptr) {
    if ((issued.flags & FR_UNTRACKED) == 0) {
      g_api->end(&issued.ticket, FR_RELEASED, nullptr);
    }
    return;
  }
  const Mode mode = mode_of(*work);
  issued.mode->store(mode, std::memory_order_relaxed);
  if ((issued.flags & FR_UNTRACKED) != 0) {
    return;
  }
  if (mode == kFuture) {
    end_with_future(*work, issued.ticket);
  } else if (mode == kWaitOnly) {
    returned = c10::IValue(c10::static_intrusive_pointer_cast<c10d::Work>(
        c10::make_intrusive<WatchedWork>(returned.toCustomClass<c10d::Work>(), issued.ticket)));
  } else {
    g_api->end(&issued.ticket, FR_RELEASED, nullptr);  // the first guess counted it as tracked
    return;
  }
  if (issued.sample && !issued.sample->is_on_device()) [[unlikely]] {
    wrap_sampled(issued.sample, returned);
  }
}

// Called once the operation is enqueued. Without a Work the current stream waits for it. Within a
// group of NCCL calls the operation is only enqueued when the group ends.
__attribute__((cold, noinline)) void sample_device_output(const Issued& issued,
                                                          c10::IValue& returned) noexcept {
  c10d::Work* work = borrowed<c10d::Work>(returned);
  const int grouped = g_api->nccl_grouped();
  if (grouped > 0 || (work == nullptr && grouped < 0)) {
    issued.sample->miss("operations were issued within a group of NCCL's calls, or may have been");
  } else if (work == nullptr) {
    issued.sample->take();
  } else if (std::strstr(typeid(*work).name(), "PyWork") == nullptr) {
    try {
      wrap_sampled(issued.sample, returned);
    } catch (...) {
      // no memory: the sample is missed
    }
  }
}

class Hook final : public c10::OperatorKernel {
 public:
  Hook(Plan* plan, bool returns_work) : plan_(plan), returns_work_(returns_work) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER,
                                                                 c10::DispatchKey::BackendSelect);
    Issued issued;
    if (const uint32_t generation = g_api->generation(); generation != 0) {
      try {
        issue(*plan_, stack->data() + stack->size() - static_cast<size_t>(plan_->n_args),
              generation, issued);
      } catch (...) {
        // Sizes that cannot be read, out of memory: the operation itself must go on.
      }
    }
    if (issued.ticket.ticket == 0) {
      op.redispatchBoxed(below, stack);
      return;
    }
    g_api->enter(&issued.ticket);
    try {
      op.redispatchBoxed(below, stack);
    } catch (...) {
      if (g_api->leave() == 0 && (issued.flags & FR_UNTRACKED) == 0) {
        const std::exception_ptr error = std::current_exception();
        end_with_error(issued.ticket, error, is_refusal(error) ? FR_REFUSED : FR_FAILED);
      }
      throw;
    }
    const bool is_followed = g_api->leave() != 0;  // the device side reports its completion
    if (is_followed) {
      if (issued.mode != nullptr) {
        issued.mode->store(kDevice, std::memory_order_relaxed);
      }
    } else if (!returns_work_) {
      if ((issued.flags & FR_UNTRACKED) == 0) {
        g_api->end(&issued.ticket, FR_OK, nullptr);
      }
    } else {
      try {
        watch(issued, stack->back());
      } catch (...) {
        // Not observed: the outcome stays unknown.
        if ((issued.flags & FR_UNTRACKED) == 0) {
          g_api->end(&issued.ticket, FR_RELEASED, nullptr);
        }
      }
    }
    if (issued.sample && issued.sample->is_on_device() && returns_work_) [[unlikely]] {
      sample_device_output(issued, stack->back());
    }
  }

 private:
  Plan* plan_;
  bool returns_work_;
};

// Never destroyed at exit: threads may still issue operations then.
torch::Library* g_library = nullptr;
std::array<std::unique_ptr<Plan>, kMaxPlans>* g_plans = nullptr;
int g_n_plans = 0;
std::string* g_message = nullptr;

}  // namespace

extern "C" {

// Installs the hooks. Returns NULL, or why it could not.
__attribute__((visibility("default"))) const char* fr_torch_install(const fr_api* api) {
  if (g_message == nullptr) {
    g_message = new std::string;
  }
  if (api == nullptr || api->struct_bytes < sizeof(fr_api)) {
    return "libfr is older than this adapter";
  }
  g_api = api;
  if (g_library != nullptr) {
    return nullptr;
  }
  try {
    if (g_plans == nullptr) {
      g_plans = new std::array<std::unique_ptr<Plan>, kMaxPlans>;
    }
    auto library = std::make_unique<torch::Library>(
        torch::Library::IMPL, "c10d", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
    g_n_plans = 0;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (!starts_with(name.name, "c10d::") || g_n_plans == kMaxPlans) {
        continue;
      }
      const auto handle = c10::Dispatcher::singleton().findOp(name);
      if (!handle.has_value() || !handle->hasSchema()) {
        continue;
      }
      auto plan = std::make_unique<Plan>();
      if (!make_plan(handle->schema(), *plan)) {
        continue;
      }
      plan->index = g_n_plans;
      Plan* kept = plan.get();
      // A plan of an earlier installation may still be in use by another thread.
      (*g_plans)[static_cast<size_t>(g_n_plans)].release();
      (*g_plans)[static_cast<size_t>(g_n_plans)] = std::move(plan);
      ++g_n_plans;
      const std::string op =
          name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      library->impl(op.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Hook>(
                                    kept, !handle->schema().returns().empty())));
    }
    if (g_n_plans == 0) {
      return "this torch has no c10d operators";
    }
    g_library = library.release();
  } catch (const c10::Error& error) {
    *g_message = error.what_without_backtrace();
    return g_message->c_str();
  } catch (const std::exception& error) {
    *g_message = error.what();
    return g_message->c_str();
  }
  return nullptr;
}

// {NaN, Inf, sum, weighted sum} of the TensorImpl at that address; 0: its elements cannot be read.
__attribute__((visibility("default"))) int fr_torch_digest(const c10::TensorImpl* tensor,
                                                           uint64_t out[4]) {
  Digest d;
  if (!add_tensor(*tensor, kCount | kSum, d)) {
    return 0;
  }
  out[0] = d.nan;
  out[1] = d.inf;
  out[2] = d.sum;
  out[3] = d.weighted;
  return 1;
}

// The same, computed on the device; waits for the device's stream. For tests.
__attribute__((visibility("default"))) int fr_torch_device_digest(const c10::TensorImpl* tensor,
                                                                  uint64_t out[4]) {
  uint64_t words[kResultWords] = {};
  const uint64_t nonce = reinterpret_cast<uint64_t>(out);
  {
    const Unseen unseen;
    DeviceDigest digest(tensor->device(), kCount | kSum);
    if (!digest.add(*tensor)) {
      return 0;
    }
    const at::Tensor result = digest.result(nonce).to(at::kCPU);
    std::memcpy(words, result.const_data_ptr(), sizeof words);
  }
  std::memcpy(out, words, 4 * sizeof *out);
  return is_whole(words, nonce) ? 1 : -1;
}

// 1: tensors on the CPU are sampled as if on a device, and their samples arrive when released; 2:
// at once; 0: as ever. For tests.
__attribute__((visibility("default"))) void fr_torch_rehearse(int how) {
  g_rehearsal.store(how);
}

__attribute__((visibility("default"))) void fr_torch_release(size_t n) {
  device_samples(g_api->generation()).release(n);
}

// {recorded, missed, on their way}: samples of this process; false: FR_FINGERPRINT is off.
__attribute__((visibility("default"))) bool fr_torch_samples(uint64_t out[3]) {
  const uint32_t generation = g_api->generation();
  const bool is_on = every(generation) != 0;
  DeviceSamples* samples = g_device_samples.load(std::memory_order_acquire);
  out[0] = g_recorded.load();
  out[1] = g_missed.load();
  out[2] = samples != nullptr && samples->generation() == generation ? samples->waiting() : 0;
  return is_on;
}

// The release of torch that this was compiled against.
__attribute__((visibility("default"))) const char* fr_torch_version() {
  return TORCH_VERSION;
}

// Number of operators hooked.
__attribute__((visibility("default"))) int fr_torch_hooked() {
  return g_n_plans;
}

// The function that reads a tensor in a hung frame; NULL if this torch has another layout.
__attribute__((visibility("default"))) size_t (*fr_torch_tensor_reader())(uint64_t, char*, size_t) {
#ifdef FR_TENSOR_LAYOUT
  return &describe_tensor;
#else
  return nullptr;
#endif
}

// The nodes of the job find each other through the TCPStore at this address.
__attribute__((visibility("default"))) void fr_torch_join_nodes(const char* host, int port) {
  auto own = std::make_unique<OwnStore>();
  own->host = host;
  own->port = port;
  const fr_store store = {sizeof(fr_store), own->host.c_str(), port,      own.get(),  store_add,
                          store_set,        store_keep,        store_get, store_close};
  own.release();  // until store_close
  g_api->join_nodes(&store);
}

// A process group was made or destroyed.
__attribute__((visibility("default"))) void fr_torch_groups_changed() {
  g_epoch.fetch_add(1, std::memory_order_acq_rel);
}

__attribute__((visibility("default"))) void fr_torch_uninstall() {
  delete g_library;
  g_library = nullptr;
}

}  // extern "C"
