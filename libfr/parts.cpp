// parts.cpp - what libfr consists of: the one list of the folders that take part in a recorder. The
// order is that of their start; what exits does so in the same order.
#include "recorder/parts.hpp"

#include "cuda/captures.hpp"
#include "cuda/events.hpp"
#include "cuda/waits.hpp"
#include "nccl/ras.hpp"
#include "nccl/tracker/tracker.hpp"
#include "net/nodes.hpp"
#include "stop/crash.hpp"
#include "stop/exit_signals.hpp"
#include "watch/attend.hpp"
#include "watch/mismatch.hpp"
#include "watch/shut_down.hpp"
#include "watch/watch.hpp"
#include "watch/watchdog.hpp"

namespace fr {
namespace {

constexpr Part kTable[] = {
    {.name = "watch", .make = make_watch, .start = start_watch},
    // before what compares: the tick records
    {.name = "foreign tick", .every_tick = call_tick},
    {.name = "mismatch", .make = forget_mismatch, .every_tick = look_for_mismatch},
    {.name = "attendance", .make = forget_attendance, .every_tick = attend},
    {.name = "nodes",
     .make = net::forget_nodes,
     .before_dump = net::wake_endpoint,
     .nodes_answer = net::nodes_answer,
     .stop = net::leave_nodes},
    // after the watchdog: a handler has it write the dump
    {.name = "exit signals", .start = install_end_handlers, .every_second = check_end_handlers},
    {.name = "exit", .start = install_exit_hook},
    {.name = "crash", .start = install_crash_handlers, .every_second = check_survived},
    {.name = "cuda",
     .every_second = cuda::lapse_captures,
     .before_exit = cuda::look,
     .stop = cuda::stop},
    {.name = "nccl",
     .make = nccl::renew_ras,
     .every_tick = nccl::settle_all,
     .before_dump = nccl::query_ras,
     .ras_answer = nccl::ras_answer},
};

}  // namespace

constinit const std::span<const Part> kParts{kTable};

}  // namespace fr
