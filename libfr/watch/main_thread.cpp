// main_thread.cpp - the innermost user frame of the main thread, and its system call.
#include "watch/main_thread.hpp"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string_view>

#include "format/call_site.hpp"
#include "format/syscalls.hpp"
#include "fr/fr.h"
#include "sample/proc_task.hpp"
#include "sample/thread_sampler.hpp"

namespace fr {
namespace {

// A file of a debugger or of an interactive interpreter.
bool is_prompt_file(std::string_view file) noexcept {
  const std::string_view name = file.substr(file.rfind('/') + 1);
  const bool is_named = name == "pdb.py" || name == "code.py" || name == "cmd.py";
  return (is_named && origin_of(file) == Origin::kCore) || file.find("/_pyrepl/") != file.npos ||
         file.find("/IPython/") != file.npos;
}

// The Python frames of a thread, innermost first.
struct PythonFrames {
  const ThreadReport& all;
  const NamedFrame* frames[64];
  int n = 0;
  PythonFrames(const ThreadReport& report, const ThreadRow& row) noexcept : all(report) {
    for (u32 i = 0; i < row.n_frames && n < static_cast<int>(std::size(frames)); ++i) {
      const NamedFrame& f = all.frames[all.stack[row.first_frame + i]];
      if (f.python) {
        frames[n++] = &f;
      }
    }
  }
  std::string_view file(int i) const noexcept { return all.text + frames[i]->file; }
  bool is_prompt() const noexcept {
    for (int i = 0; i < n; ++i) {
      if (is_prompt_file(file(i))) {
        return true;
      }
    }
    return user_frame(n, [&](int i) { return file(i); }).user < 0;
  }
};

const ThreadRow* find_main(const ThreadReport* report, i32 pid) noexcept {
  for (u32 i = 0; report != nullptr && i < report->n_threads; ++i) {
    if (report->threads[i].task.tid == pid) {
      return &report->threads[i];
    }
  }
  return nullptr;
}

const char* does_text(const Task& task) noexcept {
  switch (activity(task)) {
    case Activity::kRunning:
    case Activity::kRunnable:
      return ", computing";
    case Activity::kPolling:
      return ", polling";
    case Activity::kUninterruptible:
      return ", in uninterruptible sleep";
    case Activity::kStopped:
      return ", stopped";
    default:
      return ", asleep";
  }
}

}  // namespace

MainPlace main_place(ThreadStacks& threads, i32 rank, i32 pid, char* out,
                     std::size_t bytes) noexcept {
  const ThreadReport* report = threads.collect();
  const ThreadRow* main = find_main(report, pid);
  if (main == nullptr) {
    return MainPlace::kUnknown;
  }
  std::size_t used = 0;
  const auto add = [&](const char* text, auto... values) {
    const int n = std::snprintf(out + used, bytes - used, text, values...);
    used = std::min(bytes - 1, used + static_cast<std::size_t>(std::max(n, 0)));
  };
  const PythonFrames frames(*report, *main);
  const bool is_prompt =
      python() != nullptr && main->answer == Answer::kAnswered && frames.is_prompt();
  const int at = user_frame(frames.n, [&](int i) { return frames.file(i); }).user;
  add("rank %d is", rank);
  if (is_prompt) {
    add(" at a prompt");
  } else if (at >= 0) {
    const std::string_view file = frames.file(at).substr(frames.file(at).rfind('/') + 1);
    add(" in %s() at %.*s:%u", report->text + frames.frames[at]->function,
        static_cast<int>(file.size()), file.data(), frames.frames[at]->line);
  }
  add("%s", at >= 0 || is_prompt ? does_text(main->task) : does_text(main->task) + 1);
  const char* call = syscall_name(main->task.syscall);
  if (call[0] != '\0') {
    add(" in %s", call);
    if (main->task.target[0] != '\0') {
      add(" of %s", main->task.target);
    }
  }
  return is_prompt ? MainPlace::kPrompt : MainPlace::kCode;
}

}  // namespace fr
