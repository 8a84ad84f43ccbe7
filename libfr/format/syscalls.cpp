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
constexpr Syscall kCalls[] = {
    {SYS_read, "read", kDescriptor},
    {SYS_readv, "readv", kDescriptor},
    {SYS_pread64, "pread64", kDescriptor},
    {SYS_write, "write", kDescriptor},
    {SYS_writev, "writev", kDescriptor},
    {SYS_pwrite64, "pwrite64", kDescriptor},
    {SYS_recvfrom, "recvfrom", kDescriptor},
    {SYS_recvmsg, "recvmsg", kDescriptor},
    {SYS_recvmmsg, "recvmmsg", kDescriptor},
    {SYS_sendto, "sendto", kDescriptor},
    {SYS_sendmsg, "sendmsg", kDescriptor},
    {SYS_accept, "accept", kDescriptor},
    {SYS_accept4, "accept4", kDescriptor},
    {SYS_connect, "connect", kDescriptor},
    {SYS_ioctl, "ioctl", kDescriptor},
    {SYS_fcntl, "fcntl", kDescriptor},
    {SYS_flock, "flock", kDescriptor},
    {SYS_fsync, "fsync", kDescriptor},
    {SYS_fdatasync, "fdatasync", kDescriptor},
    {SYS_ftruncate, "ftruncate", kDescriptor},
    {SYS_fallocate, "fallocate", kDescriptor},
    {SYS_fstat, "fstat", kDescriptor},
    {SYS_lseek, "lseek", kDescriptor},
    {SYS_getdents64, "getdents64", kDescriptor},
    {SYS_close, "close", kDescriptor},
    {SYS_sendfile, "sendfile", kDescriptor},
    {SYS_splice, "splice", kDescriptor},
    {SYS_epoll_pwait, "epoll_pwait", kDescriptor},
    {SYS_openat, "openat", kPathSecond},
    {SYS_newfstatat, "newfstatat", kPathSecond},
    {SYS_statx, "statx", kPathSecond},
    {SYS_faccessat, "faccessat", kPathSecond},
    {SYS_unlinkat, "unlinkat", kPathSecond},
    {SYS_mkdirat, "mkdirat", kPathSecond},
    {SYS_readlinkat, "readlinkat", kPathSecond},
    {SYS_ppoll, "ppoll", kPollSet},
    {SYS_pselect6, "pselect6", kNothing},
    {SYS_futex, "futex", kFutex},
    {SYS_wait4, "wait4", kProcess},
    {SYS_waitid, "waitid", kNothing},
    {SYS_nanosleep, "nanosleep", kNothing},
    {SYS_clock_nanosleep, "clock_nanosleep", kNothing},
    {SYS_rt_sigtimedwait, "rt_sigtimedwait", kNothing},
    {SYS_rt_sigsuspend, "rt_sigsuspend", kNothing},
    {SYS_sched_yield, "sched_yield", kNothing},
    {SYS_semtimedop, "semtimedop", kNothing},
    {SYS_msgrcv, "msgrcv", kNothing},
    {SYS_mmap, "mmap", kNothing},
    {SYS_munmap, "munmap", kNothing},
    {SYS_madvise, "madvise", kNothing},
    {SYS_msync, "msync", kNothing},
    {SYS_exit_group, "exit_group", kNothing},
    {SYS_io_getevents, "io_getevents", kNothing},
    {SYS_restart_syscall, "restart_syscall", kNothing},
    {SYS_preadv, "preadv", kDescriptor},
    {SYS_pwritev, "pwritev", kDescriptor},
    {SYS_preadv2, "preadv2", kDescriptor},
    {SYS_pwritev2, "pwritev2", kDescriptor},
    {SYS_sendmmsg, "sendmmsg", kDescriptor},
    {SYS_shutdown, "shutdown", kDescriptor},
    {SYS_copy_file_range, "copy_file_range", kDescriptor},
    {SYS_sync_file_range, "sync_file_range", kDescriptor},
    {SYS_syncfs, "syncfs", kDescriptor},
    {SYS_readahead, "readahead", kDescriptor},
    {SYS_fadvise64, "fadvise64", kDescriptor},
    {SYS_fstatfs, "fstatfs", kDescriptor},
    {SYS_fchmod, "fchmod", kDescriptor},
    {SYS_fchown, "fchown", kDescriptor},
    {SYS_fsetxattr, "fsetxattr", kDescriptor},
    {SYS_fgetxattr, "fgetxattr", kDescriptor},
    {SYS_vmsplice, "vmsplice", kDescriptor},
    {SYS_tee, "tee", kDescriptor},
    {SYS_inotify_add_watch, "inotify_add_watch", kDescriptor},
    {SYS_io_uring_enter, "io_uring_enter", kDescriptor},
    {SYS_epoll_ctl, "epoll_ctl", kDescriptor},
    {SYS_statfs, "statfs", kPathFirst},
    {SYS_truncate, "truncate", kPathFirst},
    {SYS_chdir, "chdir", kPathFirst},
    {SYS_getxattr, "getxattr", kPathFirst},
    {SYS_execve, "execve", kPathFirst},
    {SYS_umount2, "umount2", kPathFirst},
    {SYS_openat2, "openat2", kPathSecond},
    {SYS_faccessat2, "faccessat2", kPathSecond},
    {SYS_renameat, "renameat", kPathSecond},
    {SYS_renameat2, "renameat2", kPathSecond},
    {SYS_linkat, "linkat", kPathSecond},
    {SYS_mknodat, "mknodat", kPathSecond},
    {SYS_fchmodat, "fchmodat", kPathSecond},
    {SYS_fchownat, "fchownat", kPathSecond},
    {SYS_utimensat, "utimensat", kPathSecond},
    {SYS_mount, "mount", kPathSecond},
    {SYS_symlinkat, "symlinkat", kNothing},
    {SYS_sync, "sync", kNothing},
    {SYS_brk, "brk", kNothing},
    {SYS_mprotect, "mprotect", kNothing},
    {SYS_mremap, "mremap", kNothing},
    {SYS_mlock, "mlock", kNothing},
    {SYS_mlockall, "mlockall", kNothing},
    {SYS_munlock, "munlock", kNothing},
    {SYS_mbind, "mbind", kNothing},
    {SYS_migrate_pages, "migrate_pages", kNothing},
    {SYS_move_pages, "move_pages", kNothing},
    {SYS_membarrier, "membarrier", kNothing},
    {SYS_clone, "clone", kNothing},
    {SYS_semop, "semop", kNothing},
    {SYS_msgsnd, "msgsnd", kNothing},
    {SYS_mq_timedreceive, "mq_timedreceive", kNothing},
    {SYS_mq_timedsend, "mq_timedsend", kNothing},
    {SYS_getrandom, "getrandom", kNothing},
    {SYS_process_vm_readv, "process_vm_readv", kProcess},
    {SYS_process_vm_writev, "process_vm_writev", kProcess},
    {SYS_init_module, "init_module", kNothing},
    {SYS_finit_module, "finit_module", kDescriptor},
    {SYS_io_submit, "io_submit", kNothing},
#ifdef SYS_clone3
    {SYS_clone3, "clone3", kNothing},
#endif
#ifdef SYS_epoll_pwait2
    {SYS_epoll_pwait2, "epoll_pwait2", kDescriptor},
#endif
#ifdef SYS_futex_waitv
    {SYS_futex_waitv, "futex_waitv", kNothing},
#endif
#if defined(__x86_64__)
    {SYS_open, "open", kPathFirst},
    {SYS_stat, "stat", kPathFirst},
    {SYS_lstat, "lstat", kPathFirst},
    {SYS_access, "access", kPathFirst},
    {SYS_unlink, "unlink", kPathFirst},
    {SYS_poll, "poll", kPollSet},
    {SYS_select, "select", kNothing},
    {SYS_pause, "pause", kNothing},
    {SYS_epoll_wait, "epoll_wait", kDescriptor},
    {SYS_rename, "rename", kPathFirst},
    {SYS_rmdir, "rmdir", kPathFirst},
    {SYS_mkdir, "mkdir", kPathFirst},
    {SYS_readlink, "readlink", kPathFirst},
    {SYS_creat, "creat", kPathFirst},
    {SYS_chmod, "chmod", kPathFirst},
    {SYS_getdents, "getdents", kDescriptor},
    {SYS_fork, "fork", kNothing},
    {SYS_vfork, "vfork", kNothing},
#endif
};

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
