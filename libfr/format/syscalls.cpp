// syscalls.cpp - the table of system calls that may wait. Numbers differ between architectures, and
// old kernel headers lack the newest.
#include "format/syscalls.hpp"

#include <sys/syscall.h>

namespace fr {
namespace {

using enum SyscallArgument;

struct Syscall {
  long number;
  const char* name;
  SyscallArgument argument;
};
// The letter says what the arguments tell; name and number come from the system's header.
// clang-format off
constexpr Syscall kCalls[] = {
#define CALL(name, what) {SYS_##name, #name, what}
#define D(name) CALL(name, kDescriptor)
#define P(name) CALL(name, kPathFirst)
#define Q(name) CALL(name, kPathSecond)
#define F(name) CALL(name, kFutex)
#define S(name) CALL(name, kPollSet)
#define T(name) CALL(name, kProcess)
#define N(name) CALL(name, kNothing)
    D(read), D(readv), D(pread64), D(write), D(writev), D(pwrite64), D(recvfrom), D(recvmsg),
    D(recvmmsg), D(sendto), D(sendmsg), D(accept), D(accept4), D(connect), D(ioctl), D(fcntl),
    D(flock), D(fsync), D(fdatasync), D(ftruncate), D(fallocate), D(fstat), D(lseek),
    D(getdents64), D(close), D(sendfile), D(splice), D(epoll_pwait), D(preadv), D(pwritev),
    D(preadv2), D(pwritev2), D(sendmmsg), D(shutdown), D(copy_file_range), D(sync_file_range),
    D(syncfs), D(readahead), D(fadvise64), D(fstatfs), D(fchmod), D(fchown), D(fsetxattr),
    D(fgetxattr), D(vmsplice), D(tee), D(inotify_add_watch), D(io_uring_enter), D(epoll_ctl),
    D(finit_module),
    P(statfs), P(truncate), P(chdir), P(getxattr), P(execve), P(umount2),
    Q(openat), Q(newfstatat), Q(statx), Q(faccessat), Q(unlinkat), Q(mkdirat), Q(readlinkat),
    Q(openat2), Q(faccessat2), Q(renameat), Q(renameat2), Q(linkat), Q(mknodat), Q(fchmodat),
    Q(fchownat), Q(utimensat), Q(mount),
    F(futex),
    S(ppoll),
    T(wait4), T(process_vm_readv), T(process_vm_writev),
    CALL(nanosleep, kSleep), CALL(clock_nanosleep, kClockSleep), CALL(pselect6, kSelect),
    N(waitid), N(rt_sigtimedwait),
    N(rt_sigsuspend), N(sched_yield), N(semtimedop), N(msgrcv), N(mmap), N(munmap),
    N(madvise), N(msync), N(exit_group), N(io_getevents), N(restart_syscall), N(symlinkat),
    N(sync), N(brk), N(mprotect), N(mremap), N(mlock), N(mlockall), N(munlock), N(mbind),
    N(migrate_pages), N(move_pages), N(membarrier), N(clone), N(semop), N(msgsnd),
    N(mq_timedreceive), N(mq_timedsend), N(getrandom), N(init_module), N(io_submit),
#ifdef SYS_clone3
    N(clone3),
#endif
#ifdef SYS_epoll_pwait2
    D(epoll_pwait2),
#endif
#ifdef SYS_futex_waitv
    N(futex_waitv),
#endif
#if defined(__x86_64__)
    D(epoll_wait), D(getdents),
    P(open), P(stat), P(lstat), P(access), P(unlink), P(rename), P(rmdir), P(mkdir),
    P(readlink), P(creat), P(chmod),
    S(poll),
    N(select), N(pause), N(fork), N(vfork),
#endif
#undef CALL
#undef D
#undef P
#undef Q
#undef F
#undef S
#undef T
#undef N
};
// clang-format on

const Syscall* find(i64 number) noexcept {
  for (const Syscall& call : kCalls) {
    if (call.number == number) {
      return &call;
    }
  }
  return nullptr;
}

}  // namespace

const char* syscall_name(i64 number) noexcept {
  const Syscall* call = find(number);
  return call != nullptr ? call->name : "";
}

SyscallArgument syscall_argument(i64 number) noexcept {
  const Syscall* call = find(number);
  return call != nullptr ? call->argument : SyscallArgument::kNothing;
}

}  // namespace fr
