// errors.cpp - results of CUDA's calls after which the process's use of the device is lost.
#include "cuda/errors.hpp"

#include <cstdio>
#include <cstring>

#include "cuda/operations.hpp"
#include "cuda/waits.hpp"
#include "recorder/recorder.hpp"

namespace fr::cuda {
namespace {

// Results after which the context, and with it the process's use of the device, is lost: what ran
// on the device before failed, not the call that returns them.
constexpr struct Lasting {
  int code;
  const char* name;
  const char* text;
} kLasting[] = {
    {214, "cudaErrorECCUncorrectable", "uncorrectable memory error"},
    {220, "cudaErrorNvlinkUncorrectable", "uncorrectable NVLink error"},
    {226, "cudaErrorContained", "error contained by the device"},
    {700, "cudaErrorIllegalAddress", "illegal memory access"},
    {702, "cudaErrorLaunchTimeout", "kernel ran too long"},
    {710, "cudaErrorAssert", "device-side assert"},
    {714, "cudaErrorHardwareStackError", "corrupt stack on the device"},
    {715, "cudaErrorIllegalInstruction", "illegal instruction"},
    {716, "cudaErrorMisalignedAddress", "misaligned address"},
    {717, "cudaErrorInvalidAddressSpace", "wrong address space"},
    {718, "cudaErrorInvalidPc", "invalid program counter"},
    {719, "cudaErrorLaunchFailure", "kernel failed"},
    {721, "cudaErrorTensorMemoryLeak", "kernel left tensor memory allocated"},
    {810, "cudaErrorMpsClientTerminated", "ended by the MPS server"},
    {911, "cudaErrorExternalDevice", "error of an external device"},
};

std::atomic<bool> g_reported{false};

}  // namespace

// The oldest operation in flight fails with it: nothing that is known says that the device was at
// another one.
void report_error(int code, const char* call) noexcept {
  const Lasting* found = nullptr;
  for (const Lasting& row : kLasting) {
    found = row.code == code ? &row : found;
  }
  Recorder* r = recorder();
  const Hot* h = hot();
  if (found == nullptr || r == nullptr || h == nullptr) {
    return;
  }
  Cuda& c = *r->region.section<Cuda>(kSecCuda);
  u32 none = 0;
  if (c.error_claimed.load(std::memory_order_relaxed) != 0 ||
      !c.error_claimed.compare_exchange_strong(none, 1)) {
    return;
  }
  c.error_ticks.store(ticks_now(h->clock));
  c.error_code.store(code);
  c.error_tid.store(own_tid());
  c.error_name.store(fr_intern(found->name, std::strlen(found->name)));
  c.error_text.store(fr_intern(found->text, std::strlen(found->text)));
  c.error_call.store(fr_intern(call, std::strlen(call)));
  const auto provider = g_stack_provider.load(std::memory_order_acquire);
  c.error_stack.store(h->stacks && provider != nullptr ? provider() : 0);
  u64 ticket = 0;
  const Operation operation = kOperations.oldest_in_flight(ticket);
  c.error_ticket.store(ticket);
  c.error_ready.store(1, std::memory_order_release);  // before anybody dumps because of it
  char text[160];
  std::snprintf(text, sizeof text, "CUDA: %s (%s, %d), returned by %s", found->text, found->name,
                code, call);
  kOperations.fail(operation, text);
  g_reported.store(true, std::memory_order_release);
}

bool is_error_reported() noexcept {
  return g_reported.load(std::memory_order_acquire);
}

}  // namespace fr::cuda
