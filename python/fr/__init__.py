"""fr - a flight recorder for distributed training.

    import fr                      # starts the recorder; nothing else is needed

Every operation of torch.distributed is recorded from then on, into memory that outlives the
process. The recorder reads its options (FR_*) when the first process group is made, or FR_TIMEOUT_S
after the import in a rank that a launcher started and that has made none by then; `frtrace` then
reads the dumps and names the rank at fault.
"""

from __future__ import annotations

import functools as _functools
import json as _json

from . import _fr
from . import problems as _problems
from ._fr import begin, end, note, snapshot, step
from .crumbs import print_line as print  # noqa: F401
from .crumbs import trace_calls
from .replicas import check_replicas

# Not `print` and `breakpoint`: `from fr import *` must leave the builtin ones alone.
__all__ = [
    "begin",
    "check_replicas",
    "dump",
    "end",
    "group",
    "note",
    "record",
    "register_writer",
    "snapshot",
    "span",
    "status",
    "step",
    "trace_calls",
]
__version__: str = _fr.__version__

_inert = _fr.option("FR_ENABLE") == "0"

if not _inert:
    from . import capture as _capture

    _capture.install()


def status() -> dict:
    """On or off and why, where ring and dumps are, capture layers, options, records per group."""
    result = _json.loads(_fr.status())
    result["python"] = {
        "frames": _fr.frame_walk(),
        "torch_hooked": not _inert and _capture._patched is not None,
        "problems": list(_problems.found),
    }
    if not _inert and (samples := _capture.adapter.samples()) is not None:
        result["samples"] = samples
    return result


def dump(reason: str = "manual") -> str | None:
    """Writes this rank's dump now and returns its path; None when nothing could be written."""
    return _fr.dump(reason)


def breakpoint(ranks=None) -> None:
    """These ranks (one, several, or all) stop in pdb; the others wait until all of them go on.

    All ranks of the job call it. `frtrace attach JOB --rank R --pdb` leads to the debugger; its
    `c`, `q`, or the end of the connection let the rank go on. No wait is called a hang meanwhile.
    """
    if not _inert:
        from . import debugger

        debugger.stop_here(ranks)


def register_writer(fn) -> None:
    """fn(data: bytes, info: dict) gets every dump once it is safe on disk, on a thread of its own.

    info has the keys path, incident and reason. None removes it. The last dump, of a process that
    ends with an exception, is delivered too.
    """
    if not _inert:
        _capture.set_writer(fn)


def group(name: str, ranks, desc: str = "", backend: str = "", own_rank: int | None = None) -> int:
    """Registers a group of ranks for operations recorded by hand; returns its handle.

    ranks: global ranks in group order, or their number. own_rank: this rank's position among them;
    found through this process's global rank when left out.
    """
    if _inert or not _capture.ensure_started():
        return 0
    members = list(range(ranks)) if isinstance(ranks, int) else [int(r) for r in ranks]
    if own_rank is None:
        rank = _json.loads(_fr.status()).get("rank", -1)
        own_rank = members.index(rank) if rank in members else -1
    return _fr.group(name, ranks=members, desc=desc, backend=backend, own_rank=own_rank)


class record:
    """with fr.record(handle, "op", sizes=[1024]): ... - begin and end around a block."""

    __slots__ = ("_args", "_kwargs", "ticket")

    def __init__(self, handle: int, op: str, *args, **kwargs):
        self._args = (handle, op, *args)
        self._kwargs = kwargs
        self.ticket = None

    def __enter__(self):
        self.ticket = _fr.begin(*self._args, **self._kwargs)
        return self.ticket

    def __exit__(self, error_type, error, trace):
        if error is None:
            _fr.end(self.ticket)
        else:
            _fr.end(self.ticket, _fr.FAILED, f"{error_type.__name__}: {error}")
        return False


class span:
    """with fr.span("name"): ... - a named stretch of this thread; also a decorator."""

    __slots__ = ("_name",)

    def __init__(self, name: str):
        self._name = _fr.without_secrets(name)

    def __enter__(self):
        _fr.span_begin(self._name)
        return self

    def __exit__(self, *_):
        _fr.span_end()
        return False

    def __call__(self, fn):
        name = self._name

        @_functools.wraps(fn)
        def call(*args, **kwargs):
            _fr.span_begin(name)
            try:
                return fn(*args, **kwargs)
            finally:
                _fr.span_end()

        return call
