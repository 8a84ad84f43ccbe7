// shut_down.cpp - the orderly exit: last dump, farewell to the peers, removal of the ring.
#include "watch/shut_down.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "format/call_site.hpp"
#include "format/codes.hpp"
#include "format/system_names.hpp"
#include "format/ticks.hpp"
#include "recorder/in_flight.hpp"
#include "recorder/parts.hpp"
#include "recorder/recorder.hpp"
#include "watch/control_page.hpp"
#include "watch/watchdog.hpp"

namespace fr {
namespace {

constexpr u64 kElected_ns = 2'000'000'000;
constexpr u64 kWord_ns = 8'000'000'000;
constexpr u64 kLastWrite_ns = 1'000'000'000;
constexpr u64 kLastDump_ns = 10'000'000'000;

void at_exit(int status, void*) noexcept {
  Recorder* r = recorder();
  if (r != nullptr && r->pid == getpid()) {
    shut_down(*r, status);
  }
}

void note_exit_site(Recorder& r) noexcept {
  ExitRecord& e = r.region.header().exit;
  const u32 stack = exit_stack(r);
  u32 none = 0;
  if (stack == 0 || !e.claimed.compare_exchange_strong(none, 1)) {
    return;
  }
  std::snprintf(e.kind, sizeof e.kind, "%s", word(dump::ExitBy::kExit));
  std::snprintf(e.type, sizeof e.type, "SystemExit");
  e.stack.store(stack);
  e.ready.store(1, std::memory_order_release);
}

// Peers show this for a rank that leaves no dump.
void fill_farewell(Recorder& r, PeerRow& row) noexcept {
  RecordCopy last;
  if (!last_operation(r.view, last)) {
    return;
  }
  const Site site = user_site(r.view, last.payload.stack);
  const auto op = r.view.string(last.payload.op);
  std::snprintf(row.last_op, sizeof row.last_op, "%.*s #%llu", static_cast<int>(op.size()),
                op.data(), static_cast<unsigned long long>(last.payload.seq));
  std::snprintf(row.last_site, sizeof row.last_site, "%.*s:%u %.*s",
                static_cast<int>(site.file.size()), site.file.data(), site.line,
                static_cast<int>(site.function.size()), site.function.data());
  // The place of its exit behind it, where there is room for all of that: half a line number lies.
  const Site exit = user_site(r.view, exit_stack(r));
  const std::size_t used = std::strlen(row.last_site) + 1;
  const std::string_view file = exit.file.substr(exit.file.rfind('/') + 1);
  if (!file.empty()) {
    const std::size_t room = sizeof row.last_site - used;
    const int n = std::snprintf(row.last_site + used, room, "%.*s:%u %.*s",
                                static_cast<int>(file.size()), file.data(), exit.line,
                                static_cast<int>(exit.function.size()), exit.function.data());
    if (n < 0 || static_cast<std::size_t>(n) >= room) {
      std::memset(row.last_site + used, 0, room);
    }
  }
}

}  // namespace

void install_exit_hook(Recorder&) noexcept {
  static std::atomic<bool> once{false};
  if (!once.exchange(true)) {
    on_exit(at_exit, nullptr);  // unlike atexit() it is told the status
  }
}

void shut_down(Recorder& r, int status) noexcept {
  if (r.ended.exchange(true)) {
    return;
  }
  r.watchdog->slow_exit().end();
  Header& h = r.region.header();
  const u64 since = ticks_now(h.clock_kind);
  // A backend's worker may be about to report what the script has already waited for.
  for (int i = 0; i < 200 && count_in_flight(r.view) != 0; ++i) {
    usleep(1000);
  }
  for_each_part(&Part::before_exit, since);
  const u64 in_flight = count_in_flight(r.view);
  const bool noted = h.exit.claimed.load() != 0;
  note_exit_site(r);
  if (h.exit.time_unix_ns.load() == 0) {
    h.exit.time_unix_ns.store(unix_now_ns());
  }
  h.exit.status.store(status);
  h.exit.state.store(kExiting, std::memory_order_release);
  PeerRow* row = r.control->own();
  const bool failed = h.failed.load() > r.watchdog->failures_dumped();
  const bool clean = status == 0 && in_flight == 0 && !noted && !failed;
  // The dump of the exception that ends the process has everything: nothing was issued since.
  const bool told = noted && status != 0 && in_flight == 0 && !failed &&
                    code<dump::ExitBy>(h.exit.kind) == dump::ExitBy::kException &&
                    r.watchdog->dumped_head() == get(h.head);
  bool safe = true;
  if (!clean && !told) {
    char reason[160];
    if (in_flight != 0) {
      std::snprintf(reason, sizeof reason, "exit with status %d and %llu operations in flight",
                    status, static_cast<unsigned long long>(in_flight));
    } else if (failed && status == 0 && !noted) {
      std::snprintf(reason, sizeof reason, "exit after failed operations");
    } else {
      std::snprintf(reason, sizeof reason, "exit with status %d%s%s", status,
                    noted ? " after " : "", noted ? h.exit.kind : "");
    }
    safe = r.watchdog->request_dump(reason, Trigger::kExit, kLastDump_ns, nullptr, 0);
  } else if (clean && row != nullptr) {
    fill_farewell(r, *row);
  }
  // The dump that the signal left says that the process was told to end; this dump says how it did.
  if (clean && signal_name(h.exit.signal.load()) != nullptr) {
    char reason[64];
    std::snprintf(reason, sizeof reason, "exit with status 0 after SIG%s",
                  signal_name(h.exit.signal.load()));
    safe = r.watchdog->request_dump(reason, Trigger::kExit, kLastDump_ns, nullptr, 0);
  }
  // On a clean exit any hang is over, but the watchdog may not have seen that yet.
  for (int i = 0; clean && i < 200 && r.watchdog->hung() != 0; ++i) {
    r.watchdog->wake();
    usleep(5000);
  }
  r.watchdog->deadlines().finish(kLastWrite_ns);
  for_each_part(&Part::stop);
  r.watchdog->await_peers();
  if (!clean) {
    r.watchdog->writer().await(2000);
    r.watchdog->verdict().await_start(kElected_ns);
    if (status != 0) {
      r.watchdog->verdict().leave_word(kWord_ns);
    }
  }
  g_hot.store(nullptr, std::memory_order_release);
  if (safe && !r.region.name.empty()) {
    unlink((r.region.dir + "/" + r.region.name).c_str());
  }
  if (row != nullptr) {
    row->exit_status.store(status);
    row->exit_unix_ns.store(unix_now_ns());
    row->state.store(clean ? kPeerExitedClean : kPeerExited, std::memory_order_release);
  }
  r.control->remove_if_last();
  if (!r.options.pipe.empty() && h.rank.load() >= 0) {
    unlink((r.options.pipe + std::to_string(h.rank.load()) + ".pipe").c_str());
  }
}

}  // namespace fr
