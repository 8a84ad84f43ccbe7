"""fr.breakpoint(): some ranks stop in pdb behind a socket, the others wait for them."""

from __future__ import annotations

import contextlib
import json
import pdb
import socket
import sys
import threading
import time

from . import _fr, attach
from .problems import harmless

_WARN = 1
_LOOK_S = 0.3  # between two looks of a waiting rank into the store
_times = 0  # that this process was in a breakpoint


class _Console:
    """The other end is a terminal; once it is gone, there is nothing to read and nobody to tell."""

    encoding = "utf-8"

    def __init__(self, connection, lines):
        self._connection, self._lines = connection, lines

    def readline(self) -> str:
        try:
            return self._lines.readline().decode("utf-8", "replace")
        except (OSError, ValueError):
            return ""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(text.encode("utf-8", "replace"))

    def flush(self) -> None:
        pass


class _Debugger(pdb.Pdb):
    """Leaving it, by any way, lets training go on: it never ends the program."""

    def __init__(self, console, resumed, left):
        super().__init__(stdin=console, stdout=console, nosigint=True, readrc=False)
        self.prompt = "(pdb) "
        self._resumed, self._left = resumed, left

    def interaction(self, *arguments):
        _fr.pause(True)
        super().interaction(*arguments)
        self._resumed()

    def set_continue(self):
        super().set_continue()
        _fr.pause(False)
        if not self.breaks:
            self._left()

    def do_quit(self, _argument):
        self.clear_all_breaks()
        return self.do_continue("")

    do_q = do_exit = do_EOF = do_quit

    def do_run(self, _argument):
        self.message("a rank cannot be started again from here")

    do_restart = do_run


class Stop:
    """A rank that stands in a breakpoint until a debugger comes."""

    def __init__(self):
        self._taken = threading.Lock()
        self._come, self._over = threading.Event(), threading.Event()
        self._console = None

    def take(self) -> bool:
        return self._taken.acquire(blocking=False)

    def debug(self, connection, lines) -> None:
        """In the thread of the connection, until the debugger is left."""
        self._console = _Console(connection, lines)
        self._come.set()
        self._over.wait()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # the debugger may still have it open

    def enter(self, frame, resumed) -> None:
        """In the thread that stands there."""
        while not self._come.wait(1.0):
            pass  # a wait without an end would not hear Ctrl-C
        attach.stopped = None
        _Debugger(self._console, resumed, self._over.set).set_trace(frame)


def _store():
    """The job's store, our rank and the world size; None without a job."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    if module is None or not module.is_initialized():
        return None, json.loads(_fr.status()).get("rank", 0), 1
    return module._get_default_store(), module.get_rank(), module.get_world_size()


@harmless("waiting for ranks in fr.breakpoint()")
def _await(store, keys) -> None:
    _fr.span_begin("fr.breakpoint")
    try:
        for key in keys:
            while not store.check([key]):
                time.sleep(_LOOK_S)
    finally:
        _fr.span_end()


def stop_here(ranks=None) -> None:
    """fr.breakpoint(), called by it: the frame to stop in is two above."""
    global _times
    from . import capture

    if not capture.ensure_started():
        return
    _times += 1
    store, own, world = _store()
    wanted = range(world) if ranks is None else [ranks] if isinstance(ranks, int) else ranks
    wanted = sorted({int(r) for r in wanted})
    keys = {r: f"fr/breakpoint/{_times}/{r}" for r in wanted}
    _fr.pause(True)
    if own not in keys:
        try:
            if store is not None:
                _await(store, keys.values())
        finally:
            _fr.pause(False)
        return
    resumed = threading.Event()

    def resume():
        # The first command that goes on lets the others go on, too: stepping may need them.
        if store is not None and not resumed.is_set():
            harmless("ending fr.breakpoint()")(store.set)(keys[own], "1")
        resumed.set()

    if not attach.start(False):  # the callee has reported the reason
        resume()
        _fr.pause(False)
        return
    job = json.loads(_fr.status()).get("job", "")
    frame = sys._getframe(2)
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    _fr.note(f"fr.breakpoint() at {place}")
    _fr.log(_WARN, f"waits at {place} for: frtrace attach {job} --rank {own} --pdb")
    stop = Stop()
    attach.stopped = stop
    stop.enter(frame, resume)
