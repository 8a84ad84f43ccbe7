// threads.cpp - sampled threads of a rank: their activity, their innermost user frame.
#include "model/threads.hpp"

#include <cxxabi.h>
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>

#include "format/call_site.hpp"

namespace frtrace {

std::string demangled(std::string symbol) {
  if (symbol.compare(0, 2, "_Z") != 0) {
    return symbol;
  }
  int status = 0;
  char* plain = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  if (plain != nullptr && status == 0) {
    symbol = plain;
  }
  std::free(plain);
  return symbol;
}

namespace {

std::string_view base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool is_interpreter(std::string_view file) {
  const std::string_view base = base_name(file);
  return base.substr(0, 9) == "libpython" || base.substr(0, 6) == "python";
}

// Every wait ends in the C library: the frame adds nothing to the system call.
bool is_c_library(const ThreadFrame& f) {
  const std::string_view base = base_name(f.file);
  return base.substr(0, 5) == "libc." || base.substr(0, 5) == "libc-" ||
         base.substr(0, 10) == "libpthread" || base.substr(0, 9) == "libstdc++";
}

const ThreadFrame* at(const ThreadsEvidence& all, const ThreadStack& t, std::size_t i) {
  return i < t.stack.size() && t.stack[i] < all.frames.size() ? &all.frames[t.stack[i]] : nullptr;
}

}  // namespace

std::string_view short_file(std::string_view file, std::string_view cwd) {
  // The directory that a library is installed in is left out, even below cwd.
  if (const std::string_view path = fr::installed_path(file); !path.empty()) {
    return path;
  }
  if (!cwd.empty() && file.size() > cwd.size() + 1 && file.substr(0, cwd.size()) == cwd &&
      file[cwd.size()] == '/') {
    file.remove_prefix(cwd.size() + 1);
    return file;
  }
  const std::size_t lib = file.find("/lib/python3");
  const std::size_t slash = lib != std::string_view::npos ? file.find('/', lib + 12) : lib;
  return slash != std::string_view::npos ? file.substr(slash + 1) : file;
}

bool is_plumbing(const ThreadFrame& f) {
  if (f.python) {
    return f.file.find("<frozen ") == 0 || fr::is_own_file(f.file);
  }
  const std::string_view base = base_name(f.file);
  if (is_interpreter(f.file) || base.substr(0, 5) == "libfr" || base.substr(0, 4) == "_fr.") {
    return true;
  }
  return f.function == "_start" || f.function == "__libc_start_main" ||
         f.function == "__libc_start_call_main" || f.function == "start_thread" ||
         f.function == "__restore_rt" || f.function == "clone" || f.function == "clone3" ||
         f.function == "__clone3" || (f.function.empty() && base.substr(0, 5) == "libc.");
}

const ThreadStack* thread_of(const ThreadsEvidence& all, int tid) {
  for (const ThreadStack& t : all.threads) {
    if (t.tid == tid) {
      return &t;
    }
  }
  return nullptr;
}

const ThreadStack* main_thread(const ThreadsEvidence& all, int pid) {
  return thread_of(all, pid);
}

bool script_is_over(const ThreadsEvidence& all, int pid) {
  const ThreadStack* t = main_thread(all, pid);
  const auto is_python = [&](std::uint32_t frame) { return all.frames[frame].python; };
  const auto shuts_down = [&](std::uint32_t frame) {
    return !all.frames[frame].python && all.frames[frame].function == "Py_FinalizeEx";
  };
  if (t == nullptr) {
    return false;
  }
  if (std::ranges::any_of(t->stack, shuts_down)) {
    return true;  // exit handlers in Python, or the interpreter after them
  }
  if (!t->whole) {
    return false;
  }
  const auto outermost = std::find_if(t->stack.rbegin(), t->stack.rend(), is_python);
  return outermost != t->stack.rend() && all.frames[*outermost].function != "<module>" &&
         all.frames[*outermost].function != "_run_module_as_main";
}

bool waits_for_threads(const ThreadsEvidence& all, int pid) {
  const ThreadStack* t = main_thread(all, pid);
  return t != nullptr && std::ranges::any_of(t->stack, [&](std::uint32_t frame) {
           const ThreadFrame& f = all.frames[frame];
           return f.python && f.function == "_shutdown" && base_name(f.file) == "threading.py";
         });
}

const ThreadStack* gil_holder(const ThreadsEvidence& all) {
  for (const ThreadStack& t : all.threads) {
    if (t.gil == fr::Gil::kHolds) {
      return &t;
    }
  }
  return nullptr;
}

std::string frame_text(const ThreadFrame& f, std::string_view cwd) {
  if (f.python) {
    return fmt::format("{}:{} {}", short_file(f.file, cwd), f.line, f.function);
  }
  if (f.function.empty()) {
    return fmt::format("{}+0x{:x}", base_name(f.file), f.offset);
  }
  return fmt::format("{} ({})", f.function, base_name(f.file));
}

std::string short_frame(const std::string& frame) {
  const std::size_t file = frame.rfind(" (");
  if (frame.size() < 2 || file == std::string::npos || frame.find("::") == std::string::npos) {
    return frame;
  }
  constexpr std::size_t kTemplate = 24;  // characters shown between < and >
  constexpr std::string_view kNamed[] = {"(anonymous namespace)", "operator()"};
  std::string out;
  const auto skip = [&](std::size_t from, char open, char close) {
    int depth = 0;
    for (std::size_t i = from; i < file; ++i) {
      depth += frame[i] == open ? 1 : frame[i] == close && frame[i - 1] != '-' ? -1 : 0;
      if (depth == 0) {
        return i + 1;
      }
    }
    return file;
  };
  for (std::size_t i = 0; i < file;) {
    const std::string_view rest = std::string_view(frame).substr(i, file - i);
    std::size_t kept = 0;
    for (const std::string_view name : kNamed) {
      kept = rest.starts_with(name) ? name.size() : kept;
    }
    if (kept != 0) {
      out.append(frame, i, kept);
      i += kept;
    } else if (frame[i] == '(') {
      i = skip(i, '(', ')');
    } else if (frame[i] == '<' && !out.ends_with("operator") && !out.ends_with("operator<")) {
      const std::size_t end = skip(i, '<', '>');
      out += end - i > kTemplate ? "<...>" : frame.substr(i, end - i);
      i = end;
    } else {
      out += frame[i++];
    }
  }
  for (const std::string_view tail : {" [clone .cold]", " const"}) {
    if (out.ends_with(tail)) {
      out.resize(out.size() - tail.size());
    }
  }
  return out + frame.substr(file);
}

const ThreadFrame* user_frame(const ThreadsEvidence& all, const ThreadStack& t) {
  const auto file_of = [&](int i) {
    const ThreadFrame* f = at(all, t, static_cast<std::size_t>(i));
    return f != nullptr && f->python ? std::string_view(f->file) : std::string_view();
  };
  const int user = fr::user_frame(static_cast<int>(t.stack.size()), file_of).user;
  return user < 0 ? nullptr : at(all, t, static_cast<std::size_t>(user));
}

std::string where_text(const ThreadsEvidence& all, const ThreadStack& t, std::string_view cwd) {
  const ThreadFrame* innermost = nullptr;
  const ThreadFrame* user = user_frame(all, t);
  const ThreadFrame* native = nullptr;
  for (std::size_t i = 0; i < t.stack.size(); ++i) {
    const ThreadFrame* f = at(all, t, i);
    if (f == nullptr) {
      continue;
    }
    if (f->python && innermost == nullptr && !is_plumbing(*f)) {
      innermost = f;
    }
    const bool better = native == nullptr || (is_c_library(*native) && !is_c_library(*f));
    if (!f->python && better && innermost == nullptr && !is_plumbing(*f)) {
      native = f;
    }
  }
  if (innermost == nullptr) {
    return native != nullptr ? short_frame(frame_text(*native)) : std::string();
  }
  const auto place = [&](const ThreadFrame& f) {
    return fmt::format("{}{} at {}:{}", f.function, f.function.starts_with('<') ? "" : "()",
                       short_file(f.file, cwd), f.line);
  };
  std::string out = place(user != nullptr ? *user : *innermost);
  out += user != nullptr && user != innermost ? ", in " + place(*innermost) : "";
  const bool told = native != nullptr && is_c_library(*native) && !t.syscall.empty();
  if (native != nullptr && !native->function.empty() && !told) {
    out += fmt::format(", within {}", short_frame(frame_text(*native)));
  }
  return out;
}

bool only_sleeps(std::string_view call) {
  return call.ends_with("nanosleep") || call == "pselect6";
}

namespace {

// " of pipe:[4711]"; for a sleep, the time left.
std::string on_text(const std::string& call, const std::string& on) {
  return on.empty() || call == "futex" ? ""
         : only_sleeps(call)           ? " (" + on + " left)"
                                       : " of " + on;
}

}  // namespace

std::string doing_text(const ThreadsEvidence& all, const ThreadStack& t) {
  std::string out = fr::word(t.activity);
  out += t.activity == fr::Activity::kInterrupted ? " by the signal" : "";
  if (!t.syscall.empty()) {
    // A call restarted after a stop has lost its name; the wait channel has it.
    const bool restarted = t.syscall == "restart_syscall" && !t.wchan.empty();
    out += " in " + t.syscall + (restarted ? " (" + t.wchan + ")" : "");
    out += on_text(t.syscall, t.syscall_on);
  } else if (t.activity == fr::Activity::kRunning) {
    out += ", no system call";
  } else if (t.activity == fr::Activity::kRunnable) {
    out += ", no processor is free";
  }
  if (!t.wchan.empty() && t.activity != fr::Activity::kStopped &&
      (t.activity == fr::Activity::kUninterruptible || t.syscall.empty())) {
    out += " (" + t.wchan + ")";
  }
  if (t.gil == fr::Gil::kHolds) {
    out += "; holds the GIL";
  } else if (t.gil == fr::Gil::kWaits) {
    out += "; waits for the GIL";
    if (const ThreadStack* holder = gil_holder(all); holder != nullptr) {
      const std::string where = where_text(all, *holder);
      out += fmt::format(", which thread {} holds", holder->tid);
      out += where.empty() ? "" : " in " + where;
    }
  }
  if (t.answer == fr::Answer::kBlocked) {
    out += "; it blocks the sampling signal";
  } else if (t.answer == fr::Answer::kUnanswered) {
    out += "; it did not answer the sampling signal";
  }
  return out;
}

std::string child_text(const ThreadsEvidence& all, const ChildProcess& c, std::string_view cwd) {
  if (c.state == "Z") {
    return WIFSIGNALED(c.wait_status)
               ? fmt::format("was killed by signal {}", WTERMSIG(c.wait_status))
           : c.wait_status >= 0
               ? fmt::format("has exited with status {}", WEXITSTATUS(c.wait_status))
               : "has ended";
  }
  std::string out = std::string("is ") + fr::word(c.activity);
  out += c.syscall.empty() ? "" : " in " + c.syscall;
  out += on_text(c.syscall, c.syscall_on);
  out += c.syscall.empty() && !c.wchan.empty() ? " (" + c.wchan + ")" : "";
  ThreadStack main;
  main.stack = c.stack;
  const std::string where = where_text(all, main, cwd);
  return out + (where.empty() ? "" : ", in " + where);
}

}  // namespace frtrace
