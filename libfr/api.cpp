// api.cpp - the C ABI: forwards to the folders; no exception leaves it.
#include <dlfcn.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/waits.hpp"
#include "format/codes.hpp"
#include "format/secrets.hpp"
#include "format/ticks.hpp"
#include "format/version.hpp"
#include "fr/fr.h"
#include "nccl/announce.hpp"
#include "nccl/tracker/tracker.hpp"
#include "nccl/wrappers.hpp"
#include "net/nodes.hpp"
#include "recorder/log.hpp"
#include "recorder/native_stack.hpp"
#include "recorder/recorder.hpp"
#include "recorder/start.hpp"
#include "recorder/status.hpp"
#include "sample/memory_read.hpp"
#include "sample/thread_sampler.hpp"
#include "stop/crash.hpp"
#include "watch/control_page.hpp"
#include "watch/shut_down.hpp"
#include "watch/watchdog.hpp"

namespace {

using namespace fr;

std::size_t copy_out(const std::string& text, char* to, std::size_t bytes) noexcept {
  if (to != nullptr && bytes > 0) {
    const std::size_t n = text.size() < bytes - 1 ? text.size() : bytes - 1;
    std::memcpy(to, text.data(), n);
    to[n] = '\0';
  }
  return text.size();
}

// Text without secrets, cut to fit. Pass several times the kept length of a longer text: a secret
// that is cut at its end is not always recognised.
template <std::size_t kBytes>
struct Masked {
  char text[kBytes];
  std::size_t bytes;

  Masked(const char* from, std::size_t n) noexcept : bytes(n < kBytes ? n : kBytes - 1) {
    std::memcpy(text, from, bytes);
    bytes = mask_secrets(text, bytes);
    text[bytes] = '\0';
  }
  explicit Masked(const char* from) noexcept
      : Masked(from != nullptr ? from : "", from != nullptr ? std::strlen(from) : 0) {}
};

std::string recorder_status() {
  const Recorder* r = recorder();
  if (r == nullptr) {
    return status_json(0, "");
  }
  DumpStore::Path path;
  r->watchdog->last_path(path);
  return status_json(r->watchdog->incident(), path);
}

// FR_STACKS=native: C++ frames first, then the provider's (Python's).
[[gnu::cold, gnu::noinline]] u32 native_stack(Recorder& r) noexcept {
  fr_frame frames[FR_MAX_FRAMES];
  u32 n = native_frames(*r.tables, frames, FR_MAX_FRAMES);
  const auto provider = g_stack_provider.load(std::memory_order_acquire);
  const auto python = r.view.stack(provider != nullptr ? provider() : 0);
  if (!python.empty()) {
    n = n < FR_MAX_FRAMES / 2 ? n : FR_MAX_FRAMES / 2;  // room for the user's own lines
  }
  for (std::size_t i = 0; i < python.size() && n < FR_MAX_FRAMES; ++i) {
    const FrameRow f = r.view.frame(python[i]);
    frames[n++] = {f.file, f.func, f.line};
  }
  return r.tables->stack(frames, n);
}

}  // namespace

extern "C" {

int fr_start(void) noexcept {
  return start() ? 1 : 0;
}

int fr_enabled(void) noexcept {
  return hot() != nullptr ? 1 : 0;
}

uint32_t fr_generation(void) noexcept {
  const Hot* h = hot();
  return h != nullptr ? h->generation : 0;
}

void fr_set_job(const char* store, const char* program) noexcept {
  keep_job(store, program);
}

void fr_set_run(uint64_t run) noexcept {
  Recorder* r = recorder();
  if (r == nullptr) {
    return;
  }
  Header& h = r->region.header();
  const std::uint64_t before = h.run.exchange(run, std::memory_order_relaxed);
  const std::uint64_t incident = h.incident.load();
  // The process made its groups anew: whatever fails from now on is another incident.
  if (before != 0 && before != run && incident != 0 && r->control->claim_over(incident)) {
    log_line(kLogWarn, "incident %llu is over: the ranks made their groups anew",
             static_cast<unsigned long long>(incident));
  }
}

void fr_set_identity(int32_t rank, int32_t world_size, int32_t local_rank) noexcept {
  Recorder* r = recorder();
  if (r == nullptr) {
    keep_identity(rank, world_size, local_rank);
    return;
  }
  if (r->tables->set_identity(rank, world_size, local_rank)) {
    set_log_rank(rank);
    if (PeerRow* row = r->control->own()) {
      row->rank.store(rank);
    }
  }
}

fr_group_t fr_group(const fr_group_info* info) noexcept {
  Hot* h = start() ? hot() : nullptr;
  if (h == nullptr || info == nullptr || info->struct_bytes < sizeof(fr_group_info)) {
    return 0;
  }
  const u32 group = recorder()->tables->add_group(*info, ticks_now(h->clock));
  // at most half of the ring is protected for quiet groups
  const u32 n_groups = h->header->n_groups.load();
  const u32 share = (h->ring.mask + 1) / (2 * n_groups);
  h->ring.quota.store(share < kQuietQuota ? share : kQuietQuota);
  fr_op op{};
  op.struct_bytes = sizeof op;
  op.group = group;
  op.op = recorder()->tables->intern("group_created", 13, Tables::For::kName);
  op.kind = FR_LIFECYCLE;
  op.peer = -1;
  op.stack = FR_STACK_CAPTURE;
  fr_ticket t;
  fr_begin(&op, &t);
  fr_end(&t, FR_OK, nullptr);
  return group;
}

fr_group_t fr_group_find(const char* name) noexcept {
  return hot() != nullptr && name != nullptr ? recorder()->tables->find_group(name) : 0;
}

void fr_group_destroyed(fr_group_t group) noexcept {
  Hot* h = hot();
  if (h != nullptr && group > 0 && group < h->header->n_groups.load()) {
    h->groups[group].destroyed_ticks.store(ticks_now(h->clock));
  }
}

uint32_t fr_intern(const char* text, size_t bytes) noexcept {
  return hot() != nullptr ? recorder()->tables->intern(text, bytes) : 0;
}

uint32_t fr_stack(const fr_frame* frames, uint32_t n) noexcept {
  return hot() != nullptr ? recorder()->tables->stack(frames, n) : 0;
}

void fr_set_stack_provider(fr_stack_provider provider) noexcept {
  g_stack_provider.store(provider);
}

void fr_set_python(const fr_python* python) noexcept {
  set_python(python);
}

size_t fr_peek(uint64_t address, void* to, size_t bytes) noexcept {
  return peek_some(address, to, bytes);
}

void fr_begin(const fr_op* op, fr_ticket* out) noexcept {
  Hot* h = hot();
  if (h == nullptr) [[unlikely]] {
    *out = {};
    return;
  }
  if (h->native_stacks && op->stack == FR_STACK_CAPTURE) [[unlikely]] {
    fr_op with_stack = *op;
    with_stack.stack = fr_stack_here();
    begin(*h, with_stack, *out);
    return;
  }
  begin(*h, *op, *out);
}

uint32_t fr_stack_here(void) noexcept {
  const Hot* h = hot();
  if (h == nullptr) {
    return 0;
  }
  if (h->native_stacks) {
    Recorder* r = recorder();
    return r != nullptr ? native_stack(*r) : 0;
  }
  const auto provider = g_stack_provider.load(std::memory_order_acquire);
  return h->stacks && provider != nullptr ? provider() : 0;
}

void fr_started(const fr_ticket* t) noexcept {
  Hot* h = hot();
  if (h != nullptr && is_counted(*t)) {
    started(*h, *t);
  }
}

void fr_end(const fr_ticket* t, int result, const char* message) noexcept {
  Hot* h = hot();
  if (h == nullptr || !is_counted(*t)) {
    return;
  }
  if (result == FR_OK) [[likely]] {
    end(*h, *t, State::kCompleted, 0);
    return;
  }
  if (result == FR_RELEASED) {
    end(*h, *t, State::kReleased, 0);
    return;
  }
  u32 error = 0;
  if (message != nullptr) {
    const Masked<2048> masked(message);
    error = fr_intern(masked.text, masked.bytes);
  }
  const bool refused = result == FR_REFUSED;
  end(*h, *t, State::kFailed, error, 0, refused);
  if (Recorder* r = refused ? nullptr : recorder()) {
    r->watchdog->wake();
  }
}

void fr_wait_begin(const fr_ticket* t) noexcept {
  Hot* h = hot();
  if (h != nullptr && is_counted(*t)) {
    wait_begin(*h, *t);
  }
}

void fr_wait_end(const fr_ticket* t) noexcept {
  Hot* h = hot();
  if (h != nullptr && is_counted(*t)) {
    wait_end(*h, *t);
  }
}

void fr_note(const char* text, size_t bytes) noexcept {
  Hot* h = hot();
  if (h != nullptr || (start_unless_child() && (h = hot()) != nullptr)) {
    const Masked<2 * kNoteBytes> masked(text, bytes);
    note(*h, masked.text, masked.bytes);
  }
}

void fr_step(int64_t number) noexcept {
  Hot* h = hot();
  if (h != nullptr || (start_unless_child() && (h = hot()) != nullptr)) {
    step(*h, number);
  }
}

void fr_span_begin(uint32_t name) noexcept {
  if (Hot* h = hot()) {
    span_begin(*h, name);
  }
}

void fr_span_end(void) noexcept {
  if (Hot* h = hot()) {
    span_end(*h);
  }
}

int fr_dump(const char* reason, char* path, size_t path_bytes) noexcept {
  Recorder* r = recorder();
  if (path != nullptr && path_bytes > 0) {
    path[0] = '\0';
  }
  if (r == nullptr) {
    return 0;
  }
  return r->watchdog->request_dump(reason != nullptr ? Masked<512>(reason).text : "manual",
                                   Trigger::kManual, 30'000'000'000ull, path, path_bytes)
             ? 1
             : 0;
}

void fr_register_writer(fr_writer writer, void* user) noexcept {
  keep_writer(writer, user);
  if (Recorder* r = recorder()) {
    r->watchdog->writer().set(writer, user);
  }
}

void fr_replace_file_writer(fr_sink sink, void* user) noexcept {
  if (Recorder* r = start() ? recorder() : nullptr) {
    r->watchdog->store().set_sink(sink, user);
  }
}

void fr_exit_record(const char* kind, const char* type, const char* message,
                    uint32_t stack) noexcept {
  Recorder* r = recorder();
  if (r == nullptr) {
    return;
  }
  ExitRecord& e = r->region.header().exit;
  u32 none = 0;
  if (!e.claimed.compare_exchange_strong(none, 1)) {
    return;  // the first cause counts
  }
  std::snprintf(e.kind, sizeof e.kind, "%s", kind != nullptr ? kind : "");
  std::snprintf(e.type, sizeof e.type, "%s", type != nullptr ? type : "");
  const Masked<2048> masked(message);
  const std::size_t n = masked.bytes < sizeof e.message ? masked.bytes : sizeof e.message - 1;
  std::memcpy(e.message, masked.text, n);
  e.message[n] = '\0';
  e.stack.store(stack);
  e.time_unix_ns.store(unix_now_ns());
  e.ready.store(1, std::memory_order_release);
  e.state.store(kExitNoted, std::memory_order_release);
  // Now, not at exit(): what follows (destroying groups) may hang for ever.
  char reason[256];
  std::snprintf(reason, sizeof reason, "%.23s: %.80s: %.120s", e.kind, e.type, e.message);
  r->watchdog->request_dump(reason, Trigger::kException, 5'000'000'000ull, nullptr, 0);
}

void fr_exit_site(uint32_t stack) noexcept {
  if (Recorder* r = recorder()) {
    r->exit_head.store(r->region.header().head.load());
    r->exit_stack.store(stack);
  }
}

void fr_exit_begins() noexcept {
  if (Recorder* r = recorder()) {
    constexpr std::string_view kName = "interpreter_exit";
    r->watchdog->slow_exit().begin(r->tables->intern(kName.data(), kName.size()), monotonic_ns());
  }
}

void fr_guard_thread() noexcept {
  guard_thread();
}

void fr_shutdown(int status) noexcept {
  if (Recorder* r = recorder()) {
    shut_down(*r, status);
  }
}

size_t fr_status(char* json, size_t bytes) noexcept {
  try {
    return copy_out(recorder_status(), json, bytes);
  } catch (...) {
    return copy_out("{}", json, bytes);
  }
}

void fr_set_layer(const char* name, const char* text) noexcept {
  if (Recorder* r = recorder()) {
    r->tables->set_layer(name, text);
  }
}

void fr_log(int level, const char* text) noexcept {
  log_line(static_cast<LogLevel>(level), "%s", text);
}

void fr_pause(int on) noexcept {
  const Recorder* r = recorder();
  if (PeerRow* row = r != nullptr ? r->control->own() : nullptr) {
    row->paused.store(on != 0 ? 1 : 0);
  }
}

const void* fr_region(size_t* bytes) noexcept {
  const Recorder* r = recorder();
  if (bytes != nullptr) {
    *bytes = r != nullptr ? r->region.bytes : 0;
  }
  return r != nullptr ? r->region.base : nullptr;
}

size_t fr_option(const char* name, char* value, size_t bytes) noexcept {
  try {
    const Recorder* r = recorder();
    return copy_out(r != nullptr ? r->options.value(name) : read_options().value(name), value,
                    bytes);
  } catch (...) {
    return copy_out("", value, bytes);
  }
}

const char* fr_dtype_name(uint8_t code) noexcept {
  return dtype_name(code);
}
const char* fr_reduce_op_name(uint8_t code) noexcept {
  return reduce_op_name(code);
}
const char* fr_version(void) noexcept {
  return version_text();
}

void fr_nccl_announce(void) noexcept {
  try {
    nccl::announce();
  } catch (...) {  // no memory: NCCL then goes without the plugin
  }
}

void fr_nccl_withdraw(void) noexcept {
  try {
    nccl::withdraw();
  } catch (...) {  // no memory: the variable stays
  }
}

uint32_t fr_nccl_hook(void) noexcept {
  return nccl::hook_calls();
}

uint32_t fr_nccl_unhook(void) noexcept {
  return nccl::unhook_calls();
}

int fr_nccl_active(void) noexcept {
  return nccl::is_active() ? 1 : 0;
}

int fr_nccl_grouped(void) noexcept {
  return nccl::grouped();
}

int fr_capturing(void) noexcept {
  return !cuda::sees_waits() ? -1 : cuda::is_capturing() ? 1 : 0;
}

void fr_set_tick(void (*tick)(void)) noexcept {
  set_tick(tick);
}

const char* fr_library_path(void) noexcept {
  static char path[PATH_MAX];
  Dl_info info{};
  if (path[0] == '\0' && dladdr(reinterpret_cast<void*>(&fr_library_path), &info) != 0 &&
      info.dli_fname != nullptr && realpath(info.dli_fname, path) == nullptr) {
    path[0] = '\0';
  }
  return path;
}

void fr_enter(const fr_ticket* t) noexcept {
  if (hot() != nullptr) {
    nccl::enter(*t);
  }
}

int fr_leave(void) noexcept {
  return hot() != nullptr && nccl::leave() ? 1 : 0;
}

void fr_join_nodes(const fr_store* store) noexcept {
  if (store != nullptr && store->struct_bytes >= sizeof(fr_store)) {
    net::join_nodes(recorder(), *store);
  }
}

const fr_api* fr_get_api(void) noexcept {
  static const fr_api api = {sizeof(fr_api), FR_ABI_VERSION, fr_start,       fr_enabled,
                             fr_generation,  fr_group,       fr_group_find,  fr_group_destroyed,
                             fr_intern,      fr_begin,       fr_started,     fr_end,
                             fr_wait_begin,  fr_wait_end,    fr_set_layer,   fr_log,
                             fr_enter,       fr_leave,       fr_nccl_active, fr_peek,
                             fr_join_nodes,  fr_option,      fr_stack_here,  fr_nccl_grouped,
                             fr_set_tick,    fr_capturing};
  return &api;
}

}  // extern "C"
