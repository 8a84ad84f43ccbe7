// shim.c - preloaded for some rows: another clock (SHIM_CLOCK: file with the offset in ns), and a
// disk that hangs while the file SHIM_HANG is there.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t offset_ns(void) {
  const char* path = getenv("SHIM_CLOCK");
  int64_t value = 0;
  if (path != NULL) {
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
      if (syscall(SYS_read, fd, &value, sizeof value) != sizeof value) {
        value = 0;
      }
      syscall(SYS_close, fd);
    }
  }
  return value;
}

int clock_gettime(clockid_t clock, struct timespec* t) {
  const int result = (int)syscall(SYS_clock_gettime, clock, t);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    const int64_t now = t->tv_sec * INT64_C(1000000000) + t->tv_nsec + offset_ns();
    t->tv_sec = now / 1000000000;
    t->tv_nsec = now % 1000000000;
  }
  return result;
}

int gettimeofday(struct timeval* restrict t, void* restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec;
  t->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* t) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (t != NULL) {
    *t = now.tv_sec;
  }
  return now.tv_sec;
}

int fsync(int fd) {
  const char* path = getenv("SHIM_HANG");
  while (path != NULL && access(path, F_OK) == 0) {
    const struct timespec pause = {0, 10000000};
    nanosleep(&pause, NULL);
  }
  return (int)syscall(SYS_fsync, fd);
}
