#include "cold/site.hpp"

#include <cstdio>

#include "fr/fr.h"

namespace fr {
namespace {

bool is_operation(u16 kind) {
  return kind >= FR_COLLECTIVE && kind <= FR_RECV;
}

bool has_ended(const RecordCopy& r) {
  return r.has_status &&
         (r.state == State::kCompleted || r.state == State::kFailed || r.state == State::kReleased);
}

}  // namespace

bool is_library_file(std::string_view file) noexcept {
  static constexpr std::string_view kParts[] = {
      "-packages/torch/", "/torch/distributed/",  "/torch/nn/",     "/torch/autograd/",
      "/torch/utils/",    "/torch/optim/",        "/torch/_",       "/torch/multiprocessing/",
      "-packages/fr/",    "/python/fr/",          "/contextlib.py", "/runpy.py",
      "/functools.py",    "/typing_extensions.py"};
  if (file.empty() || file.front() == '<') {
    return true;  // <frozen runpy>, <string>
  }
  for (const auto part : kParts) {
    if (file.find(part) != std::string_view::npos) {
      return true;
    }
  }
  return file.find(".so") != std::string_view::npos;
}

Site user_site(const View& view, u32 stack) noexcept {
  const auto frames = view.stack(stack);
  if (frames.empty()) {
    return {};
  }
  FrameRow found = view.frame(frames[0]);
  for (const u32 id : frames) {
    const FrameRow f = view.frame(id);
    if (!is_library_file(view.string(f.file))) {
      found = f;
      break;
    }
  }
  return {view.string(found.file), view.string(found.func), found.line};
}

bool oldest_in_flight(const View& view, u32 group, RecordCopy& out) noexcept {
  RecordCopy r;
  bool found = false;
  for (u32 slot = 0; slot < view.n_slots(); ++slot) {
    if (view.read(slot, r) != Slot::kWhole || r.payload.group != group ||
        r.payload.kind > FR_LIFECYCLE || has_ended(r) || (r.payload.flags & FR_UNTRACKED) != 0) {
      continue;
    }
    if ((r.payload.flags & FR_WAIT_ONLY) != 0 && !(r.has_status && r.state == State::kWaiting)) {
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

bool last_operation(const View& view, RecordCopy& out) noexcept {
  RecordCopy r;
  bool found = false;
  for (u32 slot = 0; slot < view.n_slots(); ++slot) {
    if (view.read(slot, r) == Slot::kWhole && is_operation(r.payload.kind) &&
        (!found || r.ticket > out.ticket)) {
      out = r;
      out.shape = nullptr;
      found = true;
    }
  }
  return found;
}

void describe(const View& view, const RecordCopy& record, char* out, std::size_t bytes) noexcept {
  const Payload& p = record.payload;
  const GroupRow* g = view.group(p.group);
  std::string_view group = g != nullptr ? view.string(g->desc) : std::string_view{};
  if (group.empty() && g != nullptr) {
    group = view.string(g->name);
  }
  const std::string_view op = view.string(p.op);
  const Site site = user_site(view, p.stack);
  const std::size_t slash = site.file.rfind('/');
  const std::string_view file =
      slash == std::string_view::npos ? site.file : site.file.substr(slash + 1);
  int n = std::snprintf(out, bytes, "%.*s #%llu", static_cast<int>(op.size()), op.data(),
                        static_cast<unsigned long long>(p.seq));
  const auto rest = [&] {
    return n < static_cast<int>(bytes) ? bytes - static_cast<unsigned>(n) : 0;
  };
  if (p.group != 0 && rest() > 0) {
    n += std::snprintf(out + n, rest(), " of %.*s", static_cast<int>(group.size()), group.data());
  }
  if (!file.empty() && rest() > 0) {
    std::snprintf(out + n, rest(), " at %.*s:%u (%.*s)", static_cast<int>(file.size()), file.data(),
                  site.line, static_cast<int>(site.function.size()), site.function.data());
  }
}

}  // namespace fr
