// writer_thread.cpp - a ring of written files between the watchdog and the thread that delivers them.
#include "watch/writer_thread.hpp"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ctime>

#include "format/text.hpp"
#include "format/view.hpp"
#include "recorder/own_thread.hpp"
#include "sample/map_file.hpp"

namespace fr {
namespace {

std::atomic<fr_writer> g_kept_writer{nullptr};
std::atomic<void*> g_kept_writer_user{nullptr};

}  // namespace

void keep_writer(fr_writer writer, void* user) noexcept {
  g_kept_writer_user.store(user);
  g_kept_writer.store(writer);
}

bool WriterThread::init() noexcept {
  event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  void* queue = mmap(nullptr, sizeof(Written) * kQueue, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  queue_ = queue != MAP_FAILED ? static_cast<Written*>(queue) : nullptr;
  return event_fd_ >= 0 && queue_ != nullptr;
}

void WriterThread::set(fr_writer writer, void* user) noexcept {
  if (writer == nullptr) {
    await(5000);
  }
  writer_user_.store(user);
  writer_.store(writer);
  if (writer != nullptr && !started_) {
    started_ = start_thread(thread_main, this, "fr-writer");
  }
}

void WriterThread::set_kept() noexcept {
  if (const fr_writer writer = g_kept_writer.load()) {
    set(writer, g_kept_writer_user.load());
  }
}

void WriterThread::queue(u64 incident, const char* reason, const char* path) noexcept {
  if (writer_.load() == nullptr || get(queued_) - get(delivered_) >= kQueue) {
    return;
  }
  Written& w = queue_[get(queued_) % kQueue];
  w.incident = incident;
  format(w.reason, sizeof w.reason, "%s", reason);
  format(w.path, sizeof w.path, "%s", path);
  queued_.fetch_add(1);
  const u64 one = 1;
  [[maybe_unused]] const ssize_t n = write(event_fd_, &one, sizeof one);  // never full: kQueue rows
}

void WriterThread::await(int most_ms) const noexcept {
  const timespec pause{0, 1'000'000};
  for (int i = 0; i < most_ms && get(delivered_) < get(queued_); ++i) {
    nanosleep(&pause, nullptr);
  }
}

void* WriterThread::thread_main(void* self) noexcept {
  auto& w = *static_cast<WriterThread*>(self);
  for (;;) {
    u64 one = 0;
    if (read(w.event_fd_, &one, sizeof one) != sizeof one) {
      continue;
    }
    const Written& item = w.queue_[get(w.delivered_) % kQueue];
    Mapping m = map_file(item.path);
    const fr_writer writer = w.writer_.load();
    if (writer != nullptr && m.base != nullptr) {
      writer(item.path, m.base, m.bytes, item.incident, item.reason, w.writer_user_.load());
    }
    unmap_file(m);
    w.delivered_.fetch_add(1);
  }
}

}  // namespace fr
