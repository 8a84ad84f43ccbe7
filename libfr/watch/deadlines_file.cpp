// deadlines_file.cpp - reads and writes the file of FR_DEADLINES.
#include "watch/deadlines_file.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "format/hash.hpp"
#include "format/schema.hpp"
#include "format/system_names.hpp"
#include "format/text.hpp"
#include "format/ticks.hpp"
#include "recorder/identity.hpp"
#include "recorder/log.hpp"
#include "recorder/own_thread.hpp"
#include "recorder/recorder.hpp"
#include "sample/map_file.hpp"
#include "watch/control_page.hpp"
#include "watch/deadlines.hpp"
#include "watch/durable_write.hpp"

namespace fr {
namespace {

constexpr int kPeriod_ms = 60'000;
constexpr std::size_t kTextBytes = 64 * 1024;
constexpr const char* kMagic = "fr deadlines 1\n";
constexpr u64 kMostVisits = 128;  // that count after a restart

constexpr SiteLongest SiteRow::* kMeasures[] = {&SiteRow::absent, &SiteRow::asleep,
                                                &SiteRow::together};

}  // namespace

std::size_t format_deadlines(const SiteRow* rows, u32 n, const char* of, char* to,
                             std::size_t bytes) noexcept {
  std::size_t used = format(to, bytes, "%s%s\n", kMagic, of);
  for (u32 i = 0; i + 1 < n; ++i) {  // the last row is that of many sites
    const SiteRow& r = rows[i];
    if (get(r.key) == 0) {
      continue;
    }
    used += format(to + used, bytes - used, "%x %l %u %u %u %u %u %u %s\n", get(r.key),
                   get(r.visits), schema::longest_ms(r.absent), schema::longest_ms(r.asleep),
                   schema::longest_ms(r.together), r.absent.doublings.load(),
                   r.asleep.doublings.load(), r.together.doublings.load(), r.text);
  }
  used += format(to + used, bytes - used, "end %x\n", hash_bytes(to, used));
  return used + 1 < bytes ? used : 0;
}

Deadlines parse_deadlines(const std::string& text, const char* of, SiteRow* rows, u32 n,
                          u64 now_ns) {
  if (text.rfind(kMagic, 0) != 0) {
    return Deadlines::kForeign;
  }
  const std::size_t end = text.rfind("end ");
  char last[32];
  format(last, sizeof last, "end %x\n",
         end != std::string::npos ? hash_bytes(text.data(), end) : 0);
  if (end == std::string::npos || text.substr(end) != last) {
    return Deadlines::kDamaged;
  }
  std::istringstream lines(text.substr(std::strlen(kMagic), end - std::strlen(kMagic)));
  std::string line;
  if (!std::getline(lines, line) || line != of) {
    return Deadlines::kOfAnother;
  }
  while (std::getline(lines, line)) {
    unsigned long long key = 0;
    unsigned long long visits = 0;
    unsigned ms[3];
    unsigned doublings[3];
    int at = 0;
    const int found =
        std::sscanf(line.c_str(), "%llx %llu %u %u %u %u %u %u %n", &key, &visits, &ms[0], &ms[1],
                    &ms[2], &doublings[0], &doublings[1], &doublings[2], &at);
    visits = std::min<unsigned long long>(visits, kMostVisits) / 2;
    if (found < 8 || at == 0 || key == 0 || visits == 0) {
      continue;
    }
    SiteRow& row = site_of(rows, n, key, line.c_str() + at);
    row.visits.store(visits);
    row.noted.store(1);
    for (int i = 0; i < 3; ++i) {
      SiteLongest& l = row.*kMeasures[i];
      l.ms.store(ms[i]);
      l.recent_ms[0].store(ms[i]);
      l.doublings.store(static_cast<u16>(std::min(doublings[i], 3u)));
      l.alarmed_s.store(static_cast<u32>(now_ns / 1'000'000'000));
    }
  }
  return Deadlines::kTaken;
}

void DeadlinesFile::open(Recorder& r) {
  const std::string& option = r.options.deadlines;
  if (option.empty() || !r.options.adapt) {
    return;
  }
  recorder_ = &r;
  const std::string path = option.front() == '/' ? option : working_directory() + "/" + option;
  const std::string program =
      r.options.traits.program.empty() ? "a program" : r.options.traits.program;
  const i32 world_size = r.region.header().world_size.load();
  format(of_, sizeof of_, "%s, %d ranks", program.c_str(), world_size);
  std::ifstream in(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  const Deadlines found = text.empty()
                              ? Deadlines::kTaken
                              : parse_deadlines(text, of_, r.region.section<SiteRow>(kSecSites),
                                                kSites, monotonic_ns());
  const bool says = r.env.local_rank <= 0;  // the others would say the same
  if (found == Deadlines::kForeign) {
    log_line(says ? kLogWarn : kLogInfo, "FR_DEADLINES: %s is no file of deadlines: left as it is",
             path.c_str());
    return;
  }
  if (found != Deadlines::kTaken) {
    log_line(says ? kLogWarn : kLogInfo, "FR_DEADLINES: %s is %s: replaced", path.c_str(),
             found == Deadlines::kDamaged ? "damaged" : "another program's or world size's");
  }
  // The last rank, with what its node's other ranks know: rank 0 is the one that others wait for.
  if (world_size > 0 && r.env.rank == world_size - 1) {
    dir_ = path.substr(0, path.rfind('/'));
    name_ = path.substr(path.rfind('/') + 1);
    merged_ = new SiteRow[kSites]{};
    text_ = new char[kTextBytes];
    wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  }
}

void DeadlinesFile::start() noexcept {
  if (!name_.empty() && wake_fd_ >= 0 && !start_thread(thread_main, this, "fr-deadlines")) {
    name_.clear();
  }
}

void* DeadlinesFile::thread_main(void* self) noexcept {
  auto& file = *static_cast<DeadlinesFile*>(self);
  for (;;) {
    pollfd fd{file.wake_fd_, POLLIN, 0};
    poll(&fd, 1, kPeriod_ms);
    const bool is_last = file.asked_.load();
    file.write();
    if (is_last) {
      file.done_.store(true);
      return nullptr;
    }
  }
}

void DeadlinesFile::merge(const View& view) noexcept {
  for (u32 i = 0; i + 1 < view.n_sites(); ++i) {  // not the one that many sites share
    const SiteRow* from = view.site(i);
    if (from == nullptr) {
      continue;
    }
    char text[kSiteTextBytes];
    format(text, sizeof text, "%.*s", static_cast<int>(strnlen(from->text, sizeof text - 1)),
           from->text);
    SiteRow& to = site_of(merged_, kSites, get(from->key), text);
    to.visits.store(std::max(get(to.visits), get(from->visits)));
    for (const auto measure : kMeasures) {
      SiteLongest& l = to.*measure;
      l.ms.store(std::max(l.ms.load(), schema::longest_ms(from->*measure)));
      l.doublings.store(std::max(l.doublings.load(), (from->*measure).doublings.load()));
    }
  }
}

void DeadlinesFile::write() noexcept {
  Recorder& r = *recorder_;
  merge(r.view);  // into what was there before: ranks end one after the other, with what they know
  for (const PeerRow& peer : r.control->page().peers) {
    if (&peer == r.control->own() || peer.ring[0] == '\0' ||
        peer.state.load(std::memory_order_acquire) != kPeerLive || is_dead(peer)) {
      continue;
    }
    char path[PATH_MAX];
    format(path, sizeof path, "%s/%s", r.region.dir.c_str(), peer.ring);
    Mapping m = map_file(path);
    const View view = View::of(m.base, m.bytes);
    if (view.ok()) {
      merge(view);
    }
    unmap_file(m);
  }
  const std::size_t bytes = format_deadlines(merged_, kSites, of_, text_, kTextBytes);
  char path[PATH_MAX];
  if (bytes == 0 || !write_durably(dir_.c_str(), name_.c_str(), text_, bytes, path, sizeof path)) {
    log_line(is_failure_said_ ? kLogInfo : kLogWarn, "FR_DEADLINES: cannot write %s/%s: %s",
             dir_.c_str(), name_.c_str(), error_text(errno));
    is_failure_said_ = true;
  }
}

void DeadlinesFile::finish(u64 limit_ns) noexcept {
  if (name_.empty() || wake_fd_ < 0 || asked_.exchange(true)) {
    return;
  }
  eventfd_write(wake_fd_, 1);
  const u64 end = monotonic_ns() + limit_ns;
  while (!done_.load() && monotonic_ns() < end) {
    usleep(1000);
  }
}

}  // namespace fr
