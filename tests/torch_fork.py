"""Ranks forked from one process that has imported torch, which alone costs a rank 2.6 s of CPU.

    Forked([sys.executable, "script.py", ...], env=..., ...)    a subprocess.Popen, but for that
    fits(command, env)                                          whether that is the same to the rank

The process is one per test process, has one thread, ends with the test process and never imports
fr. A rank finds itself as its own interpreter would have left it behind `import torch`: arguments,
environment, descriptors, directory and signals are its own, its parent is the test process. What
differs is its /proc/self/cmdline and environ, a frame of this file below its own, and that all such
ranks have the same addresses and the same seed of hash().
"""

import array
import ctypes
import io
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

OWN = ("FR_", "TORCH", "SLURM_")  # variables of ranks
EARLY = ("LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "PYTHON")  # what is read before a script runs
LATE = ("TORCHELASTIC_", "TORCH_FR_", "TORCH_NCCL_")  # `import torch` does not read these
MESSAGE_BYTES = 1 << 17
PR_SET_CHILD_SUBREAPER = 36


# ------------------------------------------------------------------ the test process


def base_environment():
    env = {k: v for k, v in os.environ.items() if not k.startswith(OWN)}
    return env | {"OMP_NUM_THREADS": "1"}


def fits(command, env):
    """Whether no setting of a rank takes effect before `import torch`, which comes before fr."""
    executable, *options, script = command[: 3 if command[1:2] == ["-u"] else 2]
    if executable != sys.executable or not script.endswith(".py"):
        return False
    base = base_environment()
    early = [
        {k: v for k, v in e.items() if k.startswith(EARLY) or k == "LANG"} for e in (base, env)
    ]
    told = any(k.startswith("TORCH") and not k.startswith(LATE) for k in env)
    return early[0] == early[1] and not told and _torch_comes_first(script)


def _torch_comes_first(script):
    imported = []  # by the script itself, in this order
    for line in Path(script).read_text().splitlines():
        if line.startswith(("import ", "from ")):
            imported += [word.split(".")[0] for word in line.replace(",", " ").split()]
    return "torch" in imported and "fr" not in imported[: imported.index("torch")]


class Server:
    """The process that ranks are forked from, as this one sees it."""

    def __init__(self):
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=base_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self.libc = ctypes.CDLL(None, use_errno=True)

    def fork(self, what, descriptors):
        """The pid of a child of this process."""
        message = json.dumps(what).encode()
        assert len(message) <= MESSAGE_BYTES
        self._adopt(1)
        try:
            sent = socket.send_fds(self.channel, [message], descriptors)
            assert sent == len(message)
            answer = self.channel.recv(MESSAGE_BYTES)
        finally:
            self._adopt(0)
        assert answer, f"the process that forks ranks has ended: {self.process.wait()}"
        return json.loads(answer)

    def _adopt(self, whether):
        """Whether those whose parents end become children of this process."""
        if self.libc.prctl(PR_SET_CHILD_SUBREAPER, whether, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


_server = None


class Forked(subprocess.Popen):
    """Of Popen's arguments args, cwd, env, stdin, stdout, stderr and text count."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env,
                       startupinfo, creationflags, shell, *pipes_and_more):  # fmt: skip
        global _server
        if _server is None:
            _server = Server()
        assert preexec_fn is None and not pass_fds and not shell
        pipes = pipes_and_more[:6]
        theirs = (pipes[0], pipes[3], pipes[5])
        standard = [own if fd == -1 else fd for own, fd in enumerate(theirs)]
        what = {"command": list(map(str, args)), "cwd": str(cwd or os.getcwd()), "env": env}
        self.pid = _server.fork(what, standard)
        self._child_created = True
        self._close_pipe_fds(*pipes)


# ------------------------------------------------------------------ the process that forks


def serve(channel):
    """Returns in each rank, with what it was told."""
    assert "fr" not in sys.modules
    while True:
        message, standard, *_ = socket.recv_fds(channel, MESSAGE_BYTES, 3)
        if not message:
            os._exit(0)  # the test process has ended
        assert len(os.listdir("/proc/self/task")) == 1
        pids, go_on = os.pipe(), os.pipe()
        between = os.fork()
        if between == 0:
            rank = os.fork()
            if rank == 0:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                os.close(go_on[1])
                os.read(go_on[0], 1)  # its end: `between` has ended, the test process is the parent
                become(channel, standard)
                return json.loads(message)
            os.write(pids[1], array.array("i", [rank]).tobytes())
            os._exit(0)
        os.waitpid(between, 0)
        (rank,) = array.array("i", os.read(pids[0], 4))
        for fd in (*pids, *go_on, *standard):
            os.close(fd)
        channel.send(json.dumps(rank).encode())


def become(channel, standard):
    """Descriptors of a rank."""
    channel.detach()
    for own, fd in enumerate(standard):
        os.dup2(fd, own)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def dress(told):
    """What else an interpreter makes of its command line and environment."""
    command, env = told["command"], told["env"]
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(env)
    at = 2 if command[1] == "-u" else 1
    unbuffered = at == 2 or bool(env.get("PYTHONUNBUFFERED"))
    sys.orig_argv[:], sys.argv[:] = command, command[at:]
    sys.path[0] = os.path.dirname(os.path.realpath(command[at]))
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        mode, before = "w" if fd else "r", getattr(sys, name)
        file = open(fd, mode + "b", 0 if unbuffered and fd else -1, closefd=False)
        getattr(file, "raw", file).name = f"<{name}>"
        stream = io.TextIOWrapper(
            file,
            before.encoding,
            before.errors,
            line_buffering=fd == 2 and not unbuffered,
            write_through=unbuffered,
        )
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return sys.argv[0]


def main_module(script):
    """__main__ as of `python script`, and its code."""
    from importlib.machinery import SourceFileLoader

    loader = SourceFileLoader("__main__", script)
    sys.modules["torch_fork"] = sys.modules["__main__"]
    main = sys.modules["__main__"] = type(sys)("__main__")
    main.__dict__.update(__file__=script, __loader__=loader, __builtins__=__builtins__)
    main.__dict__.update(__annotations__={}, __cached__=None)
    return main.__dict__, compile(loader.get_data(script), script, "exec", dont_inherit=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test process
    _channel = socket.socket(fileno=int(sys.argv[1]))
    import gc

    import torch.distributed  # noqa: F401  for the ranks

    gc.collect()
    gc.freeze()  # else the first collection of every rank would copy all of it
    _scope, _code = main_module(dress(serve(_channel)))
    exec(_code, _scope)
