"""The fault table, one row per fault: ranks.py has what ranks do, drive.py what is done to them."""

from dataclasses import dataclass, field

import drive

TERM, INT, HUP, QUIT, USR1 = 15, 2, 1, 3, 10
ALL = (0, 1, 2, 3)


@dataclass
class Row:
    name: str
    fault: str  # of ranks.py, on rank 2
    kind: str | tuple = "exited"  # of the verdict; "" none is read
    ranks: tuple = (2,)
    cause: str = ""  # pattern that the report must have: what ended it
    evidence: int = 4  # ranks with a file in the dump directory
    ends: int | None = None  # status of the guilty process; None: not looked at
    others: str = "meet"
    before: str = ""  # of ranks.py, before the group is made
    env: dict = field(default_factory=dict)
    prepare: object = drive.nothing  # (run): before they start; may raise Skip
    drive: object = drive.nothing  # (run): while the ranks run; may raise Skip
    read: tuple = ("dumps",)  # directories below the scratch directory
    shim: bool = False  # with shim.c preloaded
    may_fail: str = ""  # why this row does not decide the exit status


SEGV, ABRT, FPE, ILL, BUS, KILL = 11, 6, 8, 4, 7, 9
SLOW = {"FR_TIMEOUT_S": "600", "FR_WARN_S": "600"}
SMALL_STACK = "cause: where the processor has AVX-512, the kernel's own frame fills it"
NATIVE_THREAD = "cause: a thread that fr never sees has no alternate stack, the kernel ends it"


def crash(name, fault, signal=SEGV, cause=None, **more):
    names = {SEGV: "SIGSEGV", ABRT: "SIGABRT", FPE: "SIGFPE", ILL: "SIGILL", BUS: "SIGBUS"}
    return Row(name, fault, cause=names[signal] if cause is None else cause, ends=-signal, **more)


def hang(name, fault, **more):
    return Row(name, fault, kind="missing", **more)


def own_name(name, job):
    return Row(f"FR_JOB {name}", "kill", env={"FR_JOB": job}, drive=drive.nothing_elsewhere)


ROWS = [
    # ---- ends
    Row("SIGKILL one rank", "kill", ends=-KILL),
    Row(
        "SIGKILL all at work",
        "works",
        others="work",
        ranks=ALL,
        drive=drive.kill_all,
        read=("shm",),
        evidence=0,
    ),
    Row(
        "SIGKILL all, 1 s into a hang",
        "idle",
        kind="missing",
        drive=drive.kill_all_in_a_hang,
        read=("shm",),
        evidence=0,
        env=SLOW,
    ),
    Row(
        "the same, dumps by the next attempt",
        "idle",
        kind="missing",
        env=SLOW,
        drive=drive.kill_all_and_try_again,
    ),
    hang("SIGSTOP one rank", "stop"),
    Row(
        "SIGSTOP for 4 s: a stall that passes",
        "stop",
        kind=("ok", "slow"),
        ranks=(),
        drive=drive.go_on,
        cause="rank 2 kept ranks 0,1,3 waiting",
        ends=0,
    ),
    Row(
        "a late rank: a stall that passes",
        "late",
        kind=("ok", "slow"),
        ranks=(),
        drive=drive.let_go,
        cause="rank 2 kept ranks 0,1,3 waiting",
        ends=0,
    ),
    hang("ptrace-stopped, as by gdb", "idle", drive=drive.trace),
    Row("os._exit(0)", "os_exit_0", ends=0),
    Row("os._exit(7)", "os_exit_7", ends=7),
    Row("sys.exit(0)", "sys_exit", cause="exit", env={"FR_TIMEOUT_S": "10"}),  # torch ends slowly
    Row("exception", "raises", cause="loss is nan"),
    hang("exception in a thread, main hangs", "raises_in_thread", cause="prefetch failed"),
    Row("execve", "execs", kind=("missing", "exited")),
    Row(
        "OOM kill in a control group",
        "eat_memory",
        prepare=drive.control_group,
        drive=drive.limit_memory,
        cause="OOM killer",
        ends=-KILL,
    ),
    # ---- crashes
    crash("SIGSEGV main", "segv"),
    crash("SIGSEGV, faulthandler before", "segv", before="faulthandler_before"),
    crash("SIGSEGV, faulthandler after", "segv_faulthandler_after"),
    crash("SIGSEGV in a daemon thread", "segv_daemon"),
    crash("SIGSEGV on a thread of 128 KiB", "segv_thread"),
    crash("SIGSEGV on a thread of 16 KiB", "segv_small_thread"),
    crash("overflow main, C", "overflow"),
    # repr looks through all that it is in: on a busy machine it takes seconds to overflow
    crash("overflow main, Python", "overflow_python", env={"FR_TIMEOUT_S": "20"}),
    crash("overflow main, faulthandler before", "overflow", before="faulthandler_before"),
    crash("overflow thread, C", "overflow_thread", may_fail=NATIVE_THREAD),
    crash("overflow thread, Python", "overflow_python_thread", env={"FR_TIMEOUT_S": "20"}),
    crash("std::terminate main", "terminate", ABRT),
    crash("std::terminate thread", "terminate_thread", ABRT),
    crash("abort()", "abort", ABRT),
    crash("SIGFPE", "fpe", FPE),
    crash("SIGILL", "ill", ILL),
    crash("SIGBUS of a short file", "bus", BUS),
    crash("kill(self, SIGSEGV)", "kill_segv"),
    crash("call of NULL", "call_null"),
    crash("stack pointer 8", "bad_stack_pointer"),
    crash("eight threads at once", "eight_at_once"),
    crash("in malloc, arena damaged", "damaged_arena", ABRT),
    crash("under the loader's lock", "under_loader_lock"),
    crash("all signals blocked", "all_blocked", cause=""),
    crash("no thread pointer, main", "no_thread_pointer", cause=""),
    crash("no thread pointer, thread", "no_thread_pointer_thread", cause=""),
    crash("while a dump is written", "segv_during_dump"),
    crash("host's alternate stack of 8 KiB", "segv_host_stack_8"),
    crash("host's alternate stack of 4 KiB", "segv_host_stack_4", may_fail=SMALL_STACK),
    Row(
        "host handler that returns",
        "survived",
        before="host_returns",
        kind=("ok", "slow"),
        ranks=(),
        drive=drive.let_go,
        ends=0,
        cause="went on",
    ),
    Row(
        "host handler that jumps",
        "survived",
        before="host_jumps",
        kind=("ok", "slow"),
        ranks=(),
        drive=drive.let_go,
        ends=0,
        cause="went on",
    ),
    crash(
        "second crash, after one survived by return",
        "survived_then_segv",
        before="host_returns",
        cause="address 0x10",
    ),
    crash(
        "second crash, after one survived by longjmp",
        "survived_then_segv",
        before="host_jumps",
        cause="address 0x10",
    ),
    # ---- signals
    Row(
        "SIGTERM to all in a hang",
        "idle",
        kind="missing",
        drive=drive.signals(TERM),
        ends=-TERM,
        cause="SIGTERM|ended from outside|signal 15",
    ),
    Row("SIGTERM twice", "idle", kind="missing", drive=drive.signals(TERM, TERM), ends=-TERM),
    Row(
        "SIGTERM twice during a dump",
        "idle",
        kind="missing",
        env={"FR_TIMEOUT_S": "1"},
        drive=drive.signals(TERM, TERM, when="dump"),
        ends=-TERM,
    ),
    Row("SIGTERM then SIGQUIT", "idle", kind="missing", drive=drive.signals(TERM, QUIT)),
    Row("SIGTERM then SIGHUP", "idle", kind="missing", drive=drive.signals(TERM, HUP)),
    Row("SIGTERM then SIGINT", "idle", kind="missing", drive=drive.signals(TERM, INT)),
    Row("SIGTERM x 200", "idle", kind="missing", drive=drive.signals(*[TERM] * 200), ends=-TERM),
    Row(
        "SIGTERM, the script's own handler",
        "idle",
        kind="missing",
        before="own_sigterm",
        drive=drive.checkpoint,
        ends=0,
    ),
    Row(
        "SIGTERM with a disk that hangs",
        "idle",
        kind="missing",
        shim=True,
        env=SLOW,
        drive=drive.term_with_hanging_disk,
        ends=-TERM,
        read=("dumps", "shm"),
        evidence=0,
    ),
    Row(
        "the same, the script's own handler",
        "idle",
        kind="missing",
        shim=True,
        env=SLOW,
        before="own_sigterm",
        drive=drive.checkpoint_with_hanging_disk,
        ends=0,
        read=("dumps", "shm"),
        evidence=0,
    ),
    Row(
        "SIGTERM with a full disk",
        "idle",
        kind="missing",
        prepare=drive.small("dumps", 8),
        drive=drive.signals(TERM, when="seen"),
        ends=-TERM,
        read=("dumps", "tmp"),
        evidence=0,
    ),
    # ---- much of something
    hang("500 threads", "threads_500"),
    hang("200 GB and 30,000 mappings", "mappings"),
    hang("300 forked children", "children_300"),
    Row("30 incidents: four are kept", "dumps_30", kind="", drive=drive.four_kept),
    # ---- what fr needs is taken away
    Row("closerange of all descriptors", "close_all"),
    hang("descriptors used up", "no_descriptors"),
    hang("setuid away from the directory", "other_user"),
    hang("seccomp: fsync", "no_fsync"),
    hang("seccomp: process_vm_readv, tgsigqueue, getdents, link", "no_calls"),
    hang("chroot", "chroot"),
    hang("RLIMIT_FSIZE 4096", "small_files"),
    crash("seccomp: mmap, sigaltstack; then SIGSEGV", "segv_no_mmap"),
    Row("own ring unmapped", "unmap_ring", evidence=3),
    Row("own ring truncated", "truncate_ring", evidence=3),
    Row("own ring deleted, then SIGKILL", "delete_ring", evidence=3),
    Row(
        "control page truncated",
        "truncate_page",
        kind="",
        evidence=0,
        drive=drive.rings_remain,
        may_fail="needs the same user: all ranks die of it",
    ),
    Row(
        "control page filled with noise",
        "noise_in_page",
        kind="",
        evidence=0,
        others="work",
        drive=drive.train_on,
    ),
    Row("shm full before the start, SIGKILL", "kill", prepare=drive.small("shm", 64), evidence=3),
    hang("shm full before the start, hang", "idle", prepare=drive.small("shm", 64)),
    Row("shm full after the start", "fill_shm", prepare=drive.small("shm", 40 << 10)),
    Row(
        "dump disk full, then TMPDIR",
        "kill",
        prepare=drive.small("dumps", 8),
        read=("dumps", "tmp"),
        evidence=0,
    ),
    Row(
        "both full",
        "kill",
        prepare=drive.small("dumps", 8, "tmp", 8),
        read=("dumps", "tmp", "shm"),
        evidence=0,
    ),
    Row("dump directory read-only", "kill", prepare=drive.read_only, read=("tmp",), evidence=0),
    Row("dump directory removed", "dump_dir_removed"),
    Row("dump directory a symlink", "kill", prepare=drive.linked(True)),
    Row(
        "dump directory a dangling symlink",
        "kill",
        prepare=drive.linked(False),
        read=("dumps", "tmp"),
        evidence=0,
    ),
    # ---- clocks
    hang("clock + 1 day", "idle", shim=True, drive=drive.clock(86400)),
    Row("clock + 1 day, SIGKILL", "late", shim=True, drive=drive.clock(86400, kill=True)),
    hang("clock - 1 day", "idle", shim=True, drive=drive.clock(-86400)),
    hang("clock - 1 hour", "idle", shim=True, drive=drive.clock(-3600)),
    Row("clock - 1 day, SIGKILL", "late", shim=True, drive=drive.clock(-86400, kill=True)),
    # ---- names, and places that others have prepared
    own_name("../../..", "../../.."),
    own_name("newline and ESC", "a\n\x1b[31mb"),
    own_name("of 300 bytes", "x" * 300),
    own_name("empty", ""),
    own_name(".", "."),
    own_name("quotes and $()", "'\"$(id)`id`"),
    own_name("UTF-8", "größe-任务"),
    Row("ring directory of another user", "kill", prepare=drive.planted("owner"), evidence=3),
    Row(
        "ring directory a symlink to a trap",
        "kill",
        prepare=drive.planted("trap"),
        evidence=3,
        drive=drive.trap_is_empty,
    ),
    Row("ring directory a symlink to an own one", "kill", prepare=drive.planted("own"), evidence=3),
    Row("ring directory is a file", "kill", prepare=drive.planted("file"), evidence=3),
    Row(
        "ring directory open, with another's page",
        "kill",
        prepare=drive.planted("page"),
        evidence=3,
    ),
    Row("umask 0: modes of what is written", "kill", before="umask_0", drive=drive.modes),
    Row(
        "an absurd incident number is planted",
        "kill",
        prepare=drive.absurd_number,
        env={"LOCAL_WORLD_SIZE": "2"},
        drive=drive.number_is_small,
    ),
]
