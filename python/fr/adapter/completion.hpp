// completion.hpp - how the end of an operation is observed: by its Work's future, in wait(), or not
// at all.
#pragma once

#include <ATen/core/ivalue.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <typeinfo>
#include <utility>
#include <vector>

#include "fr/fr.h"
#include "groups.hpp"

namespace {

// How the completion of an operation is observed.
enum Mode : uint8_t { kUnknown = 0, kFuture, kWaitOnly, kUntracked, kDevice };

// Text of an exception without the cost and the length of a C++ backtrace, and without the GIL that
// the text of a Python exception needs.
std::string describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    const char* type = typeid(e).name();
    if (std::strstr(type, "error_already_set") != nullptr ||
        std::strstr(type, "python_error") != nullptr) {
      return "Python exception";
    }
    return e.what();
  } catch (...) {
    return "unknown C++ exception";
  }
}

// Whether a call that threw refused an argument: errors of peers and of the network have types of
// their own, or none of torch's; those of devices, in older versions of torch, and of gloo's
// monitored_barrier are told by their text.
bool is_refusal(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::DistError&) {
    return false;
  } catch (const c10::OutOfMemoryError&) {
    return false;
  } catch (const c10::Error& e) {
    const char* text = e.what_without_backtrace();
    return std::strstr(text, "CUDA") == nullptr && std::strstr(text, "NCCL") == nullptr &&
           std::strstr(text, "HIP") == nullptr && std::strstr(text, "monitoredBarrier") == nullptr;
  } catch (const std::invalid_argument&) {
    return true;
  } catch (...) {
    return false;
  }
}

void end_with_error(const fr_ticket& ticket, const std::exception_ptr& error, int result) {
  std::string text;
  try {
    text = describe(error);
  } catch (...) {
    // out of memory
  }
  g_api->end(&ticket, result, text.c_str());
}

// Stands in for a Work and forwards every call; derived classes override some of them.
class ForwardedWork : public c10d::Work {
 public:
  void abort() override { inner_->abort(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override { inner_->synchronize(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return inner_->getFuture(); }
  float getDuration() const override { return inner_->getDuration(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }
#ifdef FR_WORK_HAS_getFutureResult
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return inner_->getFutureResult();
  }
#endif
#ifdef FR_WORK_HAS_blockCurrentStream
  void blockCurrentStream() override { inner_->blockCurrentStream(); }
#endif

 protected:
  explicit ForwardedWork(c10::intrusive_ptr<c10d::Work> inner)
      : Work(-1, inner->retrieveOpType()), inner_(std::move(inner)) {}

  const c10::intrusive_ptr<c10d::Work> inner_;
};

// Stands in for a Work without a future: only wait() observes the completion of its operation.
class WatchedWork final : public ForwardedWork {
 public:
  WatchedWork(c10::intrusive_ptr<c10d::Work> inner, const fr_ticket& ticket)
      : ForwardedWork(std::move(inner)), ticket_(ticket), generation_(g_api->generation()) {}

  ~WatchedWork() override { end(FR_RELEASED, nullptr); }

  bool isCompleted() override {
    const bool completed = inner_->isCompleted();
    if (completed && !ended_.load(std::memory_order_relaxed)) {
      if (inner_->isSuccess()) {
        end(FR_OK, nullptr);
      } else {
        failed(inner_->exception());
      }
    }
    return completed;
  }

  bool wait(std::chrono::milliseconds timeout) override {
    // Not after a fork (the ticket is the parent's), nor where the record was not marked in time.
    const bool ours = (ticket_.flags & FR_WAIT_ONLY) != 0 && generation_ == g_api->generation() &&
                      !ended_.load(std::memory_order_relaxed);
    if (ours) {
      g_api->wait_begin(&ticket_);
    }
    bool completed = false;
    try {
      completed = inner_->wait(timeout);
    } catch (...) {
      failed(std::current_exception());
      if (ours) {
        g_api->wait_end(&ticket_);
      }
      throw;
    }
    if (completed) {
      end(FR_OK, nullptr);
    } else {
      end(FR_FAILED, "aborted");
    }
    if (ours) {
      g_api->wait_end(&ticket_);
    }
    return completed;
  }

  void abort() override {
    inner_->abort();
    end(FR_FAILED, "aborted");
  }

 private:
  void end(int result, const char* message) noexcept {
    if (!ended_.exchange(true, std::memory_order_relaxed) && generation_ == g_api->generation()) {
      g_api->end(&ticket_, result, message);
    }
  }

  void failed(const std::exception_ptr& error) noexcept {
    if (!ended_.exchange(true, std::memory_order_relaxed) && generation_ == g_api->generation()) {
      if (error) {
        end_with_error(ticket_, error, FR_FAILED);
      } else {
        g_api->end(&ticket_, FR_FAILED, nullptr);
      }
    }
  }

  const fr_ticket ticket_;
  const uint32_t generation_;
  std::atomic<bool> ended_{false};
};

// How Works of a type complete. Learned from the first of each type, for a refused getFuture()
// throws, which costs microseconds.
struct WorkType {
  std::atomic<const std::type_info*> type{nullptr};
  std::atomic<uint8_t> mode{kUnknown};
};
std::array<WorkType, 64> g_work_types;
std::mutex g_work_types_lock;

__attribute__((cold, noinline)) Mode learn_work_type(const std::type_info& type, c10d::Work& work) {
  Mode mode = kWaitOnly;
  if (std::strstr(type.name(), "PyWork") != nullptr) {
    mode = kUntracked;  // Python code may inspect its own class: not to be wrapped
  } else {
    try {
      const c10::intrusive_ptr<c10::ivalue::Future> future = work.getFuture();
      if (future) {
        // A future that knows devices completes when the work is enqueued there.
        mode = future->devices().empty() ? kFuture : kUntracked;
      }
    } catch (...) {
      // no future
    }
  }
  const std::lock_guard<std::mutex> guard(g_work_types_lock);
  for (WorkType& row : g_work_types) {
    const std::type_info* known = row.type.load(std::memory_order_relaxed);
    if (known == &type) {
      break;
    }
    if (known == nullptr) {
      row.mode.store(mode, std::memory_order_relaxed);
      row.type.store(&type, std::memory_order_release);
      break;
    }
  }
  return mode;
}

Mode mode_of(c10d::Work& work) {
  const std::type_info& type = typeid(work);
  for (const WorkType& row : g_work_types) {
    const std::type_info* known = row.type.load(std::memory_order_acquire);
    if (known == &type) {
      return static_cast<Mode>(row.mode.load(std::memory_order_relaxed));
    }
    if (known == nullptr) {
      break;
    }
  }
  return learn_work_type(type, work);
}

// A collective's ticket in 16 bytes, which std::function holds without an allocation. Memory that
// this thread allocates for a callback is freed by the backend's thread, so that every such
// allocation misses the caches of malloc.
struct SmallTicket {
  uint64_t ticket : 48, group : 16;
  uint64_t seq : 48, kind : 8, flags : 8;

  // False where something does not fit, as for a record that found no slot.
  bool set(const fr_ticket& t) {
    ticket = t.ticket;
    group = t.group;
    seq = t.seq;
    kind = t.kind;
    flags = t.flags;
    return ticket == t.ticket && group == t.group && seq == t.seq && t.lane == 0;
  }
  fr_ticket whole() const {
    fr_ticket t{};
    t.ticket = ticket;
    t.group = static_cast<uint32_t>(group);
    t.seq = seq;
    t.kind = static_cast<uint8_t>(kind);
    t.flags = static_cast<uint8_t>(flags);
    return t;
  }
};

void end_by_future(const fr_ticket& ticket, c10::ivalue::Future& future) {
  if (!future.hasError()) {
    g_api->end(&ticket, FR_OK, nullptr);
  } else {
    end_with_error(ticket, future.exception_ptr(), FR_FAILED);
  }
}

// The callback runs on the backend's thread, or here where the operation is over already.
void end_with_future(c10d::Work& work, const fr_ticket& ticket) {
  SmallTicket small;
  const auto future = work.getFuture();
  if (small.set(ticket)) {
    const auto call = [small](c10::ivalue::Future& f) { end_by_future(small.whole(), f); };
    static_assert(sizeof call <= 2 * sizeof(void*));
    future->addCallback(call, /*uses_future=*/false);
  } else {
    future->addCallback([ticket](c10::ivalue::Future& f) { end_by_future(ticket, f); },
                        /*uses_future=*/false);
  }
}

}  // namespace
