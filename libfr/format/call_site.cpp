// call_site.cpp - innermost user frame, oldest operation in flight, and their texts.
#include "format/call_site.hpp"

#include <algorithm>
#include <cstring>

#include "format/text.hpp"
#include "fr/fr.h"

namespace fr {
namespace {

bool is_operation(u16 kind) {
  return kind >= FR_COLLECTIVE && kind <= FR_RECV;
}

bool inside(std::string_view file, std::string_view part) noexcept {
  return file.find(part) != std::string_view::npos;
}

bool has_ended(const RecordCopy& r) {
  return r.has_status &&
         (r.state == State::kCompleted || r.state == State::kFailed || r.state == State::kReleased);
}

bool is_native(std::string_view file) noexcept {
  return file.ends_with(".so") || inside(file, ".so.");
}

// ".../lib/python3.11/socket.py", ".../lib64/python3.11/...", ".../lib/python311.zip/...".
bool is_standard_library(std::string_view file) noexcept {
  static constexpr std::string_view kBegins[] = {"/lib/python3", "/lib64/python3", "/lib/pypy3"};
  for (const auto begin : kBegins) {
    const std::size_t at = file.find(begin);
    std::size_t end = at == std::string_view::npos ? at : at + begin.size();
    while (end < file.size() && (file[end] == '.' || (file[end] >= '0' && file[end] <= '9'))) {
      ++end;
    }
    const std::string_view rest = end < file.size() ? file.substr(end) : std::string_view{};
    if (rest.starts_with('/') || rest.starts_with("zip/") || rest.starts_with("t/")) {
      return true;
    }
  }
  return false;
}

// /venv/bin/accelerate; python3.11 itself, where other tools give native frames its name.
bool is_command(std::string_view file) noexcept {
  const std::size_t slash = file.rfind('/');
  return slash != std::string_view::npos && file.substr(0, slash).ends_with("/bin") &&
         !file.ends_with(".py");
}

}  // namespace

std::string_view installed_path(std::string_view file) noexcept {
  static constexpr std::string_view kPackages[] = {"/site-packages/", "/dist-packages/"};
  for (const auto directory : kPackages) {
    if (const std::size_t at = file.rfind(directory); at != std::string_view::npos) {
      return file.substr(at + directory.size());
    }
  }
  return {};
}

bool is_own_file(std::string_view file) noexcept {
  // Unpacked anywhere: the module with the functions that stand in calls of the program.
  return inside(file, "-packages/fr/") || inside(file, "/python/fr/") ||
         file.ends_with("/fr/capture.py");
}

Origin origin_of(std::string_view file) noexcept {
  // torch may lie in its own source tree; a user's directory may be named so, too. Modules of the
  // standard library that call the user's code may lie anywhere.
  static constexpr std::string_view kParts[] = {"/torch/distributed/", "/torch/nn/",
                                                "/torch/autograd/",    "/torch/utils/",
                                                "/torch/optim/",       "/torch/_",
                                                "/torch/cuda/",        "/torch/csrc/",
                                                "/contextlib.py",      "/torch/multiprocessing/",
                                                "/runpy.py",           "/functools.py",
                                                "/threading.py"};
  if (file.empty() || file == "??" || is_native(file)) {
    return Origin::kCore;
  }
  if (file.front() == '<') {
    const bool typed =
        file.starts_with("<string>") || file.starts_with("<stdin>") || file.starts_with("<ipython");
    return typed ? Origin::kUser : Origin::kCore;
  }
  if (is_own_file(file)) {
    return Origin::kCore;
  }
  if (const std::string_view path = installed_path(file); !path.empty()) {
    const bool core = path.starts_with("torch/") || path == "typing_extensions.py";
    return core ? Origin::kCore : Origin::kPackage;
  }
  for (const auto part : kParts) {
    if (inside(file, part)) {
      return Origin::kCore;
    }
  }
  if (is_standard_library(file)) {
    return Origin::kCore;
  }
  return is_command(file) ? Origin::kCommand : Origin::kUser;
}

std::string_view package_of(std::string_view file) noexcept {
  std::string_view name = installed_path(file);
  name = name.substr(0, name.find('/'));
  return name.ends_with(".py") ? name.substr(0, name.size() - 3) : name;
}

std::string_view plain_name(std::string_view function) noexcept {
  const std::size_t dot = function.rfind('.');
  if (dot == std::string_view::npos || function.substr(dot + 1).starts_with("__")) {
    return function;
  }
  return function.substr(dot + 1);
}

Site user_site(const View& view, u32 stack) noexcept {
  const auto frames = view.stack(stack);
  if (frames.empty()) {
    return {};
  }
  const auto row = [&](int i) { return view.frame(frames[static_cast<std::size_t>(i)]); };
  const UserFrame at =
      user_frame(static_cast<int>(frames.size()), [&](int i) { return view.string(row(i).file); });
  const FrameRow found = row(std::max(at.user, 0));
  Site site{view.string(found.file), view.string(found.func), found.line, {}, {}};
  if (at.within >= 0) {
    site.package = package_of(view.string(row(at.within).file));
    site.called = plain_name(view.string(row(at.within).func));
  }
  return site;
}

bool oldest_in_flight(const View& view, u32 group, RecordCopy& out) noexcept {
  RecordCopy r;
  bool found = false;
  for (u32 slot = 0; slot < view.n_slots(); ++slot) {
    if (view.read(slot, r) != Slot::kWhole || r.payload.group != group ||
        r.payload.kind > FR_LIFECYCLE || has_ended(r)) {
      continue;
    }
    // Untracked and wait-only operations count only while a thread waits for them.
    const bool waited = r.has_status && r.state == State::kWaiting;
    const bool idle = r.has_status && r.state == State::kIdle;
    if (idle || ((r.payload.flags & (FR_UNTRACKED | FR_WAIT_ONLY)) != 0 && !waited)) {
      continue;
    }
    if (!found || r.ticket < out.ticket) {
      out = r;
      out.shape = nullptr;
      found = true;
    }
  }
  return found;
}

bool last_operation(const View& view, RecordCopy& out, u32 tid) noexcept {
  RecordCopy r;
  bool found = false;
  for (u32 slot = 0; slot < view.n_slots(); ++slot) {
    if (view.read(slot, r) == Slot::kWhole && is_operation(r.payload.kind) &&
        (tid == 0 || r.payload.tid == tid) && (!found || r.ticket > out.ticket)) {
      out = r;
      out.shape = nullptr;
      found = true;
    }
  }
  return found;
}

GroupLabel::GroupLabel(const View& view, const GroupRow* group) noexcept {
  if (group == nullptr) {
    return;
  }
  text_ = view.string(group->desc.load());
  if (text_.empty()) {
    text_ = view.string(group->name.load());
  }
  const auto ranges = view.group_ranks(*group);  // {first, count, stride}...
  if (text_ != "undefined" || ranges.empty()) {  // what torch calls a group that nobody described
    return;
  }
  constexpr u32 kShown = 5;
  std::size_t n = format(own_, sizeof own_, "group ");
  u32 shown = 0;
  const auto add = [&](u32 first, u32 last) {
    n += shown == kShown  ? format(own_ + n, sizeof own_ - n, ",...")
         : shown < kShown ? format(own_ + n, sizeof own_ - n, first == last ? "%s%u" : "%s%u-%u",
                                   shown == 0 ? "{" : ",", first, last)
                          : 0;
    ++shown;
  };
  for (std::size_t i = 0; i + 2 < ranges.size(); i += 3) {
    const u32 first = ranges[i], count = ranges[i + 1], stride = ranges[i + 2];
    if (stride == 1 && count > 2) {
      add(first, first + count - 1);
      continue;
    }
    for (u32 k = 0; k < count && shown <= kShown; ++k) {
      add(first + k * stride, first + k * stride);
    }
  }
  n += format(own_ + n, sizeof own_ - n, "}");
  text_ = {own_, n};
}

namespace {

// The member at that place in the group; -1: the ring does not have it.
i64 member_at(std::span<const u32> ranges, i32 place) noexcept {
  u32 left = static_cast<u32>(place);
  for (std::size_t i = 0; i + 2 < ranges.size() && place >= 0; i += 3) {
    if (left < ranges[i + 1]) {
      return i64{ranges[i]} + i64{left} * ranges[i + 2];
    }
    left -= ranges[i + 1];
  }
  return -1;
}

}  // namespace

void describe(const View& view, const RecordCopy& record, char* out, std::size_t bytes) noexcept {
  const Payload& p = record.payload;
  const GroupRow* g = view.group(p.group);
  const GroupLabel label(view, g);
  const std::string_view group = label.text();
  const std::string_view op = view.string(p.op);
  const Site site = user_site(view, p.stack);
  const std::size_t slash = site.file.rfind('/');
  const std::string_view file =
      slash == std::string_view::npos ? site.file : site.file.substr(slash + 1);
  std::size_t n =
      format(out, bytes, "%.*s #%l", static_cast<int>(op.size()), op.data(), u64{p.seq});
  if (p.group != 0) {
    n += format(out + n, bytes - n, " of %.*s", static_cast<int>(group.size()), group.data());
  }
  const bool is_p2p = g != nullptr && p.group != 0 && (p.kind == FR_SEND || p.kind == FR_RECV);
  if (const i64 peer = is_p2p ? member_at(view.group_ranks(*g), p.peer) : -1; peer >= 0) {
    n += format(out + n, bytes - n, p.kind == FR_SEND ? " to rank %l" : " from rank %l",
                static_cast<u64>(peer));
  }
  if (!file.empty()) {
    n += format(out + n, bytes - n, " at %.*s:%u (%.*s", static_cast<int>(file.size()), file.data(),
                site.line, static_cast<int>(site.function.size()), site.function.data());
    if (!site.package.empty()) {
      n += format(out + n, bytes - n, ", in %.*s %.*s", static_cast<int>(site.package.size()),
                  site.package.data(), static_cast<int>(site.called.size()), site.called.data());
    }
    format(out + n, bytes - n, ")");
  }
}

namespace {

void describe_wait(const PhaseCopy& f, char* out, std::size_t bytes) noexcept {
  const char* text = "";
  switch (f.wait()) {
    case Wait::kPeerCredit:
      text = "waits for rank %d to take step %u of %u";
      break;
    case Wait::kData:
      text = "waits for rank %d to send step %u of %u";
      break;
    case Wait::kInFlight:
      text = "has given rank %d step %u of %u, the network has not delivered it";
      break;
    case Wait::kOwnKernel:
      text = "to rank %d waits for our own kernel at step %u of %u";
      break;
    case Wait::kOwnKernelTakes:
      text = "from rank %d waits for our own kernel to take step %u of %u";
      break;
    default:
      text = "with rank %d is at step %u of %u";
  }
  std::size_t used = format(out, bytes, "; channel %u ", f.channel);
  used += format(out + used, bytes - used, text, f.peer, f.oldest_step(), f.n_steps);
  if (f.net() == Net::kIb) {
    format(out + used, bytes - used, " (queue pair %u, NIC device %u)", f.net_number(),
           f.net_device());
  } else if (f.net() == Net::kSocket) {
    format(out + used, bytes - used, " (socket %u)", f.net_number());
  }
}

// The call of CUDA that fr's own thread has not come back from; "" when it has, or is only in it.
std::string_view stuck_cuda_call(const View& view) noexcept {
  constexpr u64 kStuck_ns = 500'000'000;
  const Cuda* c = view.cuda();
  const u32 call = c != nullptr ? c->call.load(std::memory_order_acquire) : 0;
  u64 ticks = 0;
  u64 unix_ns = 0;
  u64 mono = 0;
  if (call == 0 || !read_anchor(view.header().last, ticks, unix_ns, mono)) {
    return "";
  }
  const TickClock clock(view.header());
  const u64 since = clock.unix_ns(c->call_ticks.load());
  return since != 0 && since + kStuck_ns < clock.unix_ns(ticks) ? view.string(call) : "";
}

}  // namespace

void describe_device(const View& view, u64 ticket, char* out, std::size_t bytes) noexcept {
  out[0] = '\0';
  DeviceOpCopy op;
  u32 id = 0;
  while (id < view.n_device_ops() &&
         !(view.read_device_op(id, op) && op.ticket == ticket + 1 && (op.claim & 1) != 0)) {
    ++id;
  }
  if (id >= view.n_device_ops()) {
    return;
  }
  if (op.launching_ticks == 0) {
    format(out, bytes, "not launched yet");
  } else if (op.launched_ticks == 0) {
    format(out, bytes, "the host is inside its launch");
  } else if (const auto call = stuck_cuda_call(view);
             op.started_ticks == 0 && (op.flags & kDevTimed) != 0 && !call.empty()) {
    format(out, bytes, "launched; more is not known, fr's own %.*s has not returned",
           static_cast<int>(call.size()), call.data());
  } else if (op.started_ticks == 0 && (op.flags & kDevUnseen) != 0) {
    format(out, bytes, "launched; whether its kernel runs is not told");
  } else if (op.started_ticks == 0) {
    format(out, bytes, "launched, its kernel does not run");
  } else if (op.channels_started == 0) {
    format(out, bytes, "its stream has reached it");
  } else {
    format(out, bytes, "its kernel runs on %u channel%s", op.channels_started,
           op.channels_started == 1 ? "" : "s");
  }
  // Describe one transfer: one that waits for a peer, else one that waits for the own kernel.
  PhaseCopy f;
  PhaseCopy best{};
  bool found = false;
  for (u32 i = 0; i < view.n_phases(); ++i) {
    if (!view.read_phase(i, f) || !f.is_live() || f.op != id + 1 || f.ticket != ticket + 1 ||
        f.kind == kPhaseKernel) {
      continue;
    }
    const bool ours = f.wait() == Wait::kOwnKernel || f.wait() == Wait::kOwnKernelTakes;
    const bool best_ours =
        found && (best.wait() == Wait::kOwnKernel || best.wait() == Wait::kOwnKernelTakes);
    if (!found || (best_ours && !ours)) {
      best = f;
      found = true;
    }
  }
  if (found) {
    const std::size_t used = std::strlen(out);
    describe_wait(best, out + used, bytes - used);
  }
}

}  // namespace fr
