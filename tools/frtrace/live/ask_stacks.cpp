#include "live/ask_stacks.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "format/file_name.hpp"
#include "format/layout.hpp"
#include "sample/process.hpp"
#include "system/proc_file.hpp"

namespace frtrace {

namespace {

constexpr auto kAnswerWithin = std::chrono::seconds(5);
constexpr auto kBetweenAnswers = std::chrono::milliseconds(20);

// Whether the process handles the signal; without a handler the signal would end it.
bool catches(int pid, int signal) {
  const std::string status = whole_file(fmt::format("/proc/{}/status", pid)).value_or("");
  const std::size_t at = status.find("\nSigCgt:");
  return signal > 0 && at != std::string::npos &&
         (std::strtoull(status.c_str() + at + 8, nullptr, 16) >> (signal - 1) & 1) != 0;
}

}  // namespace

bool is_stopped_process(int pid) {
  const char state = fr::process_state(pid);
  return state == 'T' || state == 't';
}

std::vector<std::string> ask_stacks(const std::vector<FoundRing>& rings) {
  std::vector<std::string> waited;
  for (const FoundRing& r : rings) {
    sigval value{};
    value.sival_ptr = reinterpret_cast<void*>(fr::kStacksRequest);
    const std::string path = r.path + fr::kStacksEnding;
    if (!r.runs || !r.same_pids) {
      continue;
    }
    ::unlink(path.c_str());  // left by a caller that stopped waiting
    if (!is_stopped_process(r.pid) && catches(r.pid, r.signal) &&
        ::sigqueue(r.pid, r.signal, value) == 0) {
      waited.push_back(path);
    }
  }
  const auto until = std::chrono::steady_clock::now() + kAnswerWithin;
  std::vector<std::string> found;
  while (!waited.empty() && std::chrono::steady_clock::now() < until) {
    std::erase_if(waited, [&](const std::string& path) {
      const bool there = ::access(path.c_str(), R_OK) == 0;
      if (there) {
        found.push_back(path);
      }
      return there;
    });
    std::this_thread::sleep_for(kBetweenAnswers);
  }
  return found;
}

}  // namespace frtrace
