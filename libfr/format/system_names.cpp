#include "format/system_names.hpp"

#include <cerrno>
#include <csignal>

namespace fr {

const char* signal_name(int signal) noexcept {
  switch (signal) {
#define FR_SIGNAL(name) \
  case SIG##name:       \
    return #name;
    FR_SIGNAL(HUP)
    FR_SIGNAL(INT)
    FR_SIGNAL(QUIT)
    FR_SIGNAL(ILL)
    FR_SIGNAL(TRAP)
    FR_SIGNAL(ABRT)
    FR_SIGNAL(BUS)
    FR_SIGNAL(FPE)
    FR_SIGNAL(KILL)
    FR_SIGNAL(USR1)
    FR_SIGNAL(SEGV)
    FR_SIGNAL(USR2)
    FR_SIGNAL(PIPE)
    FR_SIGNAL(ALRM)
    FR_SIGNAL(TERM)
    FR_SIGNAL(STKFLT)
    FR_SIGNAL(CHLD)
    FR_SIGNAL(CONT)
    FR_SIGNAL(STOP)
    FR_SIGNAL(TSTP)
    FR_SIGNAL(TTIN)
    FR_SIGNAL(TTOU)
    FR_SIGNAL(URG)
    FR_SIGNAL(XCPU)
    FR_SIGNAL(XFSZ)
    FR_SIGNAL(VTALRM)
    FR_SIGNAL(PROF)
    FR_SIGNAL(WINCH)
    FR_SIGNAL(POLL)
    FR_SIGNAL(PWR)
    FR_SIGNAL(SYS)
#undef FR_SIGNAL
    default:
      return nullptr;
  }
}

const char* error_text(int error) noexcept {
  switch (error) {
    case EPERM:
      return "Operation not permitted";
    case ENOENT:
      return "No such file or directory";
    case EIO:
      return "Input/output error";
    case ENOMEM:
      return "Cannot allocate memory";
    case EACCES:
      return "Permission denied";
    case EEXIST:
      return "File exists";
    case ENODEV:
      return "No such device";
    case ENOTDIR:
      return "Not a directory";
    case EISDIR:
      return "Is a directory";
    case EINVAL:
      return "Invalid argument";
    case ENFILE:
      return "Too many open files in system";
    case EMFILE:
      return "Too many open files";
    case EFBIG:
      return "File too large";
    case ENOSPC:
      return "No space left on device";
    case EROFS:
      return "Read-only file system";
    case ENAMETOOLONG:
      return "File name too long";
    case ENOSYS:
      return "Function not implemented";
    case ELOOP:
      return "Too many levels of symbolic links";
    case EOPNOTSUPP:
      return "Operation not supported";
    case ESTALE:
      return "Stale file handle";
    case EDQUOT:
      return "Disk quota exceeded";
    case EHOSTDOWN:
      return "Host is down";
    case ETIMEDOUT:
      return "Connection timed out";
    case ENOTCONN:
      return "Transport endpoint is not connected";
    default:
      return "error";
  }
}

}  // namespace fr
