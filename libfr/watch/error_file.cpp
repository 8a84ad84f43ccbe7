// error_file.cpp - the text and the JSON of torchrun's error file, without stdio or allocation.
#include "watch/error_file.hpp"

#include <cstring>

#include "format/call_site.hpp"
#include "format/codes.hpp"
#include "format/text.hpp"
#include "recorder/in_flight.hpp"

namespace fr {
namespace {

bool is_kind(const ExitRecord& e, dump::ExitBy kind) noexcept {
  return e.ready.load(std::memory_order_acquire) != 0 && code<dump::ExitBy>(e.kind) == kind;
}

// Appends a JSON string's content; false where it does not fit.
class Json {
 public:
  Json(char* to, std::size_t bytes) noexcept : to_(to), bytes_(bytes) {}
  void raw(const char* s) noexcept {
    while (*s != '\0') {
      put(*s++);
    }
  }
  // Control characters but line breaks, and what is no UTF-8, become blanks.
  void text(const char* s) noexcept {
    put('"');
    for (std::size_t left = std::strlen(s); left != 0;) {
      const std::size_t n = printable_bytes(s, left);
      if (*s == '\n') {
        raw("\\n");
      } else if (n == 1 && (*s == '"' || *s == '\\')) {
        put('\\');
        put(*s);
      } else if (n == 0) {
        put(' ');
      } else {
        for (std::size_t i = 0; i < n; ++i) {
          put(s[i]);
        }
      }
      s += n == 0 ? 1 : n;
      left -= n == 0 ? 1 : n;
    }
    put('"');
  }
  std::size_t size() const noexcept { return fits_ ? used_ : 0; }

 private:
  void put(char c) noexcept {
    fits_ = fits_ && used_ < bytes_;
    if (fits_) {
      to_[used_++] = c;
    }
  }

  char* to_;
  std::size_t bytes_;
  std::size_t used_ = 0;
  bool fits_ = true;
};

}  // namespace

void describe_end(const View& view, char* out, std::size_t bytes) noexcept {
  const Header& h = view.header();
  const ExitRecord& e = h.exit;
  const bool told = e.ready.load(std::memory_order_acquire) != 0;
  static RecordCopy r;  // fr-verdict's; 2 KiB
  static char what[200];
  static char how[sizeof e.message + sizeof e.type + 64];
  if (told && is_kind(e, dump::ExitBy::kSignal)) {
    format(how, sizeof how, "was ended by %s%s%s", e.type, e.message[0] != '\0' ? ", " : "",
           e.message);
  } else if (told && is_kind(e, dump::ExitBy::kCrash)) {
    format(how, sizeof how, "crashed with %s: %s", e.type, e.message);
  } else if (told && is_kind(e, dump::ExitBy::kException)) {
    format(how, sizeof how, "ended with %s%s%s", e.type, e.message[0] != '\0' ? ": " : "",
           e.message);
  } else {
    format(how, sizeof how, "ended with exit status %d", e.status.load());
  }
  bool in_flight = false;
  for (u32 i = 0; i < view.n_groups() && !in_flight; ++i) {
    in_flight = count_in_flight(*view.group(i)) != 0 && oldest_in_flight(view, i, r);
  }
  what[0] = '\0';
  if (in_flight || last_operation(view, r)) {
    describe(view, r, what, sizeof what);
  }
  format(out, bytes, "rank %d (host %s, pid %d) %s%s%s%s", h.rank.load(), h.host, h.pid, how,
         what[0] == '\0' ? ""
         : in_flight     ? ", with "
                         : ", after ",
         what, in_flight ? " in flight" : "");
}

u64 time_of_end_s(const Header& h, u64 now_unix_ns) noexcept {
  constexpr u64 kSecond_ns = 1'000'000'000;
  const ExitRecord& e = h.exit;
  const u64 at = e.time_unix_ns.load();
  const bool follows = is_kind(e, dump::ExitBy::kSignal) ||
                       (!is_kind(e, dump::ExitBy::kCrash) && h.failed.load() != 0);
  return follows ? now_unix_ns / kSecond_ns + 2 : (at != 0 ? at : now_unix_ns) / kSecond_ns;
}

std::size_t format_error_file(char* out, std::size_t bytes, const char* message, const char* lines,
                              u64 time_s) noexcept {
  char time[24];
  format(time, sizeof time, "%l", time_s);
  Json json(out, bytes);
  json.raw("{\"message\": {\"message\": ");
  json.text(message);
  json.raw(", \"extraInfo\": {\"py_callstack\": ");
  json.text(lines);
  json.raw(", \"timestamp\": ");
  json.text(time);
  json.raw("}}}\n");
  return json.size();
}

}  // namespace fr
