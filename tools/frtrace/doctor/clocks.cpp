// clocks.cpp - time, and when this machine started.
#include <fmt/format.h>
#include <sys/timex.h>

#include "doctor/checks.hpp"

namespace frtrace::doctor {

namespace {

// "status of adjtimex() and its greatest error in microseconds"
std::optional<std::string> kernel_clock() {
  timex t{};
  const int state = ::adjtimex(&t);
  return state < 0 ? std::nullopt : std::optional(fmt::format("{} {}", state, t.maxerror));
}

}  // namespace

Finding check_clock_source(Machine& m) {
  const std::string source =
      m.line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  if (source.empty()) {
    return unknown("/sys/devices/system/clocksource");
  }
  m.alike("clocksource", source);
  return source == "hpet" || source == "acpi_pm" || source == "xen" || source == "jiffies"
             ? warn(source)
             : ok(source);
}

Finding check_ntp(Machine& m) {
  const std::vector<std::string> w = words_of(m.ask("adjtimex", kernel_clock).value_or(""));
  if (w.size() != 2) {
    return unknown("adjtimex()");
  }
  const double error_ms = number_of(w[1]) / 1e3;
  return w[0] == fmt::format("{}", TIME_ERROR) ? warn("the clock is not synchronised")
         : error_ms > 100 ? warn(fmt::format("may be off by {:.0f} ms", error_ms))
                          : ok(fmt::format("within {:.1f} ms", error_ms));
}

Finding check_restart(Machine& m) {
  const double up = m.uptime_s();
  if (up <= 0) {
    return unknown("/proc/uptime");
  }
  return up < 600 ? warn(fmt::format("booted {:.0f} min ago", up / 60))
                  : ok(fmt::format("up for {:.1f} h", up / 3600));
}

}  // namespace frtrace::doctor
