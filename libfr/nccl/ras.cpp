// ras.cpp - the thread fr-ras: socket, protocol and time limits of a query.
#include "nccl/ras.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "format/ticks.hpp"
#include "recorder/own_thread.hpp"
#include "recorder/recorder.hpp"

namespace fr::nccl {
namespace {

constexpr char kDefaultPort[] = "28028";

int left_ms(u64 deadline_ns) {
  const u64 now = monotonic_ns();
  return now < deadline_ns ? static_cast<int>((deadline_ns - now) / 1'000'000) + 1 : 0;
}

bool await(int fd, short events, u64 deadline_ns) {
  for (;;) {
    pollfd p{fd, events, 0};
    const int n = poll(&p, 1, left_ms(deadline_ns));
    if (n > 0) {
      return true;
    }
    if (n == 0 || errno != EINTR) {
      errno = n == 0 ? ETIMEDOUT : errno;
      return false;
    }
  }
}

struct Socket {
  int fd = -1;
  ~Socket() {
    if (fd >= 0) {
      close(fd);
    }
  }
};

bool connect_to(const addrinfo& to, Socket& s, u64 deadline_ns) {
  s.fd = socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (s.fd < 0) {
    return false;
  }
  if (connect(s.fd, to.ai_addr, to.ai_addrlen) == 0) {
    return true;
  }
  if (errno != EINPROGRESS || !await(s.fd, POLLOUT, deadline_ns)) {
    return false;
  }
  int error = 0;
  socklen_t bytes = sizeof error;
  getsockopt(s.fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
  errno = error;
  return error == 0;
}

// "host:port", "[host]:port", "host"; an IPv6 address alone has more colons than one.
void split_address(const char* address, char (&host)[256], char (&port)[16]) {
  std::string_view text = address;
  std::string_view name = text;
  std::string_view number = kDefaultPort;
  const std::size_t end = text.rfind(']');
  const std::size_t colon = text.rfind(':');
  if (text.starts_with('[') && end != std::string_view::npos) {
    name = text.substr(1, end - 1);
    number = colon != std::string_view::npos && colon > end ? text.substr(colon + 1) : number;
  } else if (colon != std::string_view::npos && text.find(':') == colon) {
    name = text.substr(0, colon);
    number = text.substr(colon + 1);
  }
  std::snprintf(host, sizeof host, "%.*s", static_cast<int>(name.size()), name.data());
  std::snprintf(port, sizeof port, "%.*s", static_cast<int>(number.size()), number.data());
}

// Takes the first line off.
std::string_view take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
}

}  // namespace

bool Ras::start(const char* address) noexcept {
  int none = -1;
  const int fd = eventfd(0, EFD_CLOEXEC);
  if (fd < 0 || !event_fd_.compare_exchange_strong(none, fd)) {
    if (fd >= 0) {
      close(fd);
    }
    return is_started();
  }
  std::snprintf(answer_.address, sizeof answer_.address, "%s", address);
  std::memcpy(pending_.address, answer_.address, sizeof pending_.address);
  return start_thread(thread_main, this, "fr-ras");
}

void Ras::query(bool as_json, u64 max_age_ns) noexcept {
  const u64 now = monotonic_ns();
  if (!is_started() || state_.load(std::memory_order_acquire) == kAsked ||
      (asked_ns_ != 0 && now - asked_ns_ < max_age_ns)) {
    return;
  }
  as_json_ = as_json;
  asked_ns_ = now;
  asked_unix_ns_ = unix_now_ns();
  state_.store(kAsked, std::memory_order_release);
  const u64 one = 1;
  [[maybe_unused]] const ssize_t n = write(event_fd_.load(), &one, sizeof one);
}

const RasAnswer* Ras::take(u64 limit_ns) noexcept {
  if (asked_ns_ == 0) {
    return nullptr;
  }
  const u64 deadline = monotonic_ns() + limit_ns;
  while (state_.load(std::memory_order_acquire) == kAsked) {
    if (monotonic_ns() >= deadline) {
      pending_.asked_unix_ns = asked_unix_ns_;
      pending_.took_ns = monotonic_ns() - asked_ns_;
      pending_.error = "no answer yet";
      return &pending_;
    }
    const timespec t{0, 1'000'000};
    nanosleep(&t, nullptr);
  }
  return &answer_;
}

void* Ras::thread_main(void* self) noexcept {
  static_cast<Ras*>(self)->run();
  return nullptr;
}

void Ras::run() noexcept {
  for (;;) {
    u64 n = 0;
    if (read(event_fd_.load(), &n, sizeof n) != sizeof n ||
        state_.load(std::memory_order_acquire) != kAsked) {
      continue;
    }
    const u64 begun = monotonic_ns();
    answer_.asked_unix_ns = unix_now_ns();
    answer_.json = as_json_;
    answer_.cut = false;
    answer_.text = text_;
    answer_.bytes = 0;
    const char* error = converse(begun + kLimit_ns);
    answer_.error = error != nullptr ? error : "";
    answer_.took_ns = monotonic_ns() - begun;
    state_.store(kAnswered, std::memory_order_release);
  }
}

// All is sent at once: each request is a line and gets one, STATUS gets the report and the end of
// the connection. Servers before 2.28 do not know SET FORMAT; their line says so and they go on.
const char* Ras::converse(u64 deadline_ns) noexcept {
  char host[256];
  char port[16];
  split_address(answer_.address, host, port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host, port, &hints, &found); error != 0) {
    return gai_strerror(error);
  }
  Socket s;
  const addrinfo* at = found;
  for (; at != nullptr; at = at->ai_next) {
    if (connect_to(*at, s, deadline_ns)) {
      break;
    }
    std::snprintf(error_, sizeof error_, "cannot connect: %s", std::strerror(errno));
    close(std::exchange(s.fd, -1));
  }
  freeaddrinfo(found);
  if (at == nullptr) {
    return error_;
  }
  const std::string_view request = as_json_ ? "CLIENT PROTOCOL 2\nTIMEOUT 2\nSET FORMAT json\n"
                                              "VERBOSE STATUS\n"
                                            : "CLIENT PROTOCOL 2\nTIMEOUT 2\nVERBOSE STATUS\n";
  if (send(s.fd, request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return "the connection was closed before the question";
  }
  std::size_t size = 0;
  const char* wrong = nullptr;
  for (;;) {
    if (size == sizeof text_) {
      answer_.cut = true;
      break;
    }
    if (!await(s.fd, POLLIN, deadline_ns)) {
      answer_.cut = true;
      wrong = size == 0 ? "no answer" : "the answer did not end in time";
      break;
    }
    const ssize_t n = recv(s.fd, text_ + size, sizeof text_ - size, 0);
    if (n > 0) {
      size += static_cast<std::size_t>(n);
    } else if (n == 0) {
      break;
    } else if (errno != EINTR && errno != EAGAIN) {
      answer_.cut = true;
      wrong = "the connection broke";
      break;
    }
  }
  for (std::size_t i = 0; i < size; ++i) {  // whoever listens there: text is what is kept
    const auto c = static_cast<unsigned char>(text_[i]);
    text_[i] = (c >= ' ' && c < 0x7f) || c == '\n' || c == '\t' || c == '\r' ? text_[i] : '?';
  }
  std::string_view rest(text_, size);
  const std::string_view greeting = take_line(rest);
  if (!greeting.starts_with("SERVER PROTOCOL")) {
    if (size != 0) {
      std::snprintf(error_, sizeof error_, "not the service of NCCL: it says \"%.*s\"",
                    static_cast<int>(greeting.size() < 60 ? greeting.size() : 60), greeting.data());
      return error_;
    }
    return wrong != nullptr ? wrong : "the connection was closed without an answer";
  }
  take_line(rest);  // of TIMEOUT
  if (as_json_ && take_line(rest) != "OK") {
    answer_.json = false;
  }
  answer_.text = rest.data();
  answer_.bytes = static_cast<u32>(rest.size());
  return wrong != nullptr ? wrong
         : rest.empty()   ? "the connection was closed without a report"
                          : nullptr;
}

// ---------------------------------------------------------------- of this process

namespace {

constexpr u64 kAnswerIsOld_ns = 10'000'000'000;
constexpr i32 kNodesThatAsk = 8;  // one question of each goes to all processes of the job
constexpr i32 kRanksInJson = 32;  // about what fits; NCCL's text sums up instead

std::atomic<Ras*> g_ras{nullptr};  // of the recorder in force; never freed, its thread uses it

}  // namespace

void renew_ras(Recorder& r) {
  // A forked child that becomes a rank gets one of its own; its parent's stays referenced, for its
  // thread may have been at work when the child was made.
  static std::vector<Ras*>& all = *new std::vector<Ras*>;
  const bool asks = !r.options.ras.empty() && r.region.header().local_rank.load() <= 0;
  if (asks) {
    all.push_back(new Ras);
  }
  g_ras.store(asks ? all.back() : nullptr);
}

void use_ras() noexcept {
  Ras* ras = g_ras.load();
  if (const Recorder* r = recorder(); ras != nullptr && r != nullptr) {
    ras->start(r->options.ras.c_str());
  }
}

void query_ras(Recorder& r) noexcept {
  const Header& h = r.region.header();
  const i32 per_node = h.local_world_size > 0 ? h.local_world_size : 1;
  if (Ras* ras = g_ras.load(); ras != nullptr && h.rank.load() < kNodesThatAsk * per_node) {
    ras->query(h.world_size.load() <= kRanksInJson, kAnswerIsOld_ns);
  }
}

const RasAnswer* ras_answer(u64 limit_ns) noexcept {
  Ras* ras = g_ras.load();
  return ras != nullptr ? ras->take(limit_ns) : nullptr;
}

}  // namespace fr::nccl
