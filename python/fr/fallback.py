"""Capture at the Python level, where the torch adapter cannot be built or loaded.

The methods of ProcessGroup are wrapped: that catches the functions of torch.distributed however
they were imported, FSDP2, batched P2P, object collectives, but nothing that C++ issues by itself.
"""

from __future__ import annotations

import functools
from datetime import timedelta

from . import _fr, problems

LAYER = (
    "Python wrappers of ProcessGroup; missed: DDP's reducer, functional collectives, DTensor, "
    "torch.compile, C++ callers"
)

# method of ProcessGroup -> (name, how its arguments lie)
#   "inout": (tensors, opts)       "out_in": (outputs, inputs, opts)
#   "send", "recv": (tensors, peer, tag)       "none": (opts)
#   "splits": (output, input, output_splits, input_splits, opts)
_METHODS = {
    "allreduce": ("all_reduce", "inout"),
    "allreduce_coalesced": ("all_reduce_coalesced", "inout"),
    "broadcast": ("broadcast", "inout"),
    "reduce": ("reduce", "inout"),
    "allgather": ("all_gather", "out_in"),
    "_allgather_base": ("all_gather_into_tensor", "out_in"),
    "all_gather_single": ("all_gather_into_tensor", "out_in"),
    "allgather_coalesced": ("all_gather_coalesced", "out_in"),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor_coalesced", "out_in"),
    "all_gather_single_coalesced": ("all_gather_into_tensor_coalesced", "out_in"),
    "gather": ("gather", "out_in"),
    "scatter": ("scatter", "out_in"),
    "reduce_scatter": ("reduce_scatter", "out_in"),
    "_reduce_scatter_base": ("reduce_scatter_tensor", "out_in"),
    "reduce_scatter_single": ("reduce_scatter_tensor", "out_in"),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", "out_in"),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced", "out_in"),
    "alltoall": ("all_to_all", "out_in"),
    "alltoall_base": ("all_to_all_single", "splits"),
    "all_to_all_single": ("all_to_all_single", "splits"),
    "send": ("send", "send"),
    "recv": ("recv", "recv"),
    "recv_anysource": ("recv", "recv_any"),
    "barrier": ("barrier", "none"),
    "monitored_barrier": ("monitored_barrier", "none"),
}

_DTYPES = {_fr.dtype_name(code): code for code in range(1, 64) if _fr.dtype_name(code) != "?"}
_TORCH_DTYPES = {
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "float16": "Half",
    "float32": "Float",
    "float64": "Double",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
    "bool": "Bool",
    "bfloat16": "BFloat16",
}
_REDUCE_OPS = {_fr.reduce_op_name(code): code for code in range(1, 10)}

_saved: dict[str, object] = {}
_class = None
_watched = None
_handle_of = None  # fr's handle of a ProcessGroup


def _dtype(tensor) -> int:
    name = str(tensor.dtype).removeprefix("torch.")
    return _DTYPES.get(_TORCH_DTYPES.get(name, name), 0)


def _flat(value) -> list:
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        return [tensor for element in value for tensor in _flat(element)]
    return [value]


def _begin(name: str, how: str, pg, args, kwargs):
    flags = _fr.COALESCED if name.endswith("_coalesced") else 0
    values = [*args, *kwargs.values()]
    ins: list = []
    outs: list | None = None
    peer = -1
    kind = _fr.COLLECTIVE
    if how == "inout":
        ins = _flat(values[0])
    elif how in ("out_in", "splits"):
        outs, ins = _flat(values[0]), _flat(values[1])
    elif how == "send":
        kind, ins, outs, peer = _fr.SEND, _flat(values[0]), [], values[1]
    elif how in ("recv", "recv_any"):
        kind, outs = _fr.RECV, _flat(values[0])
        peer = values[1] if how == "recv" else -1
    if any(t.is_meta for t in (*ins, *(outs or []))):
        return None
    if any(t.device.type != "cpu" for t in (*ins, *(outs or []))):
        flags |= _fr.UNTRACKED  # wait() returns when the work is enqueued on the device
    elif name != "monitored_barrier":
        flags |= _fr.WAIT_ONLY
    options = next((v for v in reversed(values) if type(v).__name__.endswith("Options")), None)
    timeout_ms = reduce_op = 0
    if options is not None:
        timeout = getattr(options, "timeout", None)
        if isinstance(timeout, timedelta) and timeout.total_seconds() > 0:
            timeout_ms = min(int(timeout.total_seconds() * 1000), 0xFFFFFFFF)
        peer = getattr(options, "rootRank", peer)
        if getattr(options, "asyncOp", False):
            flags |= _fr.ASYNC
        operator = getattr(options, "reduceOp", None)
        if operator is not None:
            text = str(getattr(operator, "op", operator)).rsplit(".", 1)[-1].rstrip(">")
            reduce_op = _REDUCE_OPS.get(text.split(":")[0].strip(), 0)
    extra = {} if outs is None else {"out_sizes": [list(t.shape) for t in outs]}
    if how != "none":
        extra["sizes"] = [list(t.shape) for t in ins]
    return _fr.begin(
        _handle_of(pg),
        name,
        kind,
        flags,
        peer,
        0,
        0,
        _dtype(ins[0]) if ins else 0,
        _dtype(outs[0]) if outs else (_dtype(ins[0]) if ins and outs is None else 0),
        reduce_op,
        timeout_ms,
        **extra,
    )


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:400]


def _watched_class(work_class):
    """A Work that wraps another and observes its completion, in wait() or when it is polled.

    A future would report more, but its callback needs the GIL on a thread of the backend's, which
    is fatal during the interpreter's exit.
    """

    class Watched(work_class):
        def __init__(self, work, ticket):
            super().__init__()
            self._work = work
            self._ticket = ticket

        def wait(self, *args, **kwargs):
            _fr.wait_begin(self._ticket)
            try:
                result = self._work.wait(*args, **kwargs)
            except BaseException as error:
                _fr.end(self._ticket, _fr.FAILED, _text(error))
                raise
            else:
                _fr.end(self._ticket)
            finally:
                _fr.wait_end(self._ticket)
            return result

        def is_completed(self):
            completed = self._work.is_completed()
            if completed:
                _fr.end(self._ticket)
            return completed

        def __del__(self):
            _fr.end(self._ticket, _fr.RELEASED)

    def forward(name):
        def call(self, *args, **kwargs):
            return getattr(self._work, name)(*args, **kwargs)

        return call

    for name in dir(work_class):
        if not name.startswith("__") and name not in Watched.__dict__:
            setattr(Watched, name, forward(name))
    return Watched


def _wrapped(method: str, original):
    name, how = _METHODS[method]

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        if not _fr.enabled():
            return original(self, *args, **kwargs)
        try:
            ticket = _begin(name, how, self, args, kwargs)
        except Exception as error:
            problems.add_error(f"recording {method}", error)
            ticket = None
        if ticket is None:
            return original(self, *args, **kwargs)
        try:
            work = original(self, *args, **kwargs)
        except BaseException as error:
            _fr.end(ticket, _fr.FAILED, _text(error))
            raise
        if ticket.untracked:
            return work
        if work is None:
            _fr.end(ticket)
            return None
        return _watched(work, ticket)

    return call


def install(module, handle_of) -> None:
    """Wraps the methods of ProcessGroup; handle_of(pg) is fr's handle of one, 0 where unknown."""
    global _class, _watched, _handle_of
    if _saved:
        return
    _class = module.ProcessGroup
    _handle_of = handle_of
    _watched = _watched_class(module.Work)
    if _fr.option("FR_FINGERPRINT") not in ("", "0"):
        problems.add("FR_FINGERPRINT: nothing is sampled without the torch adapter")
    for method in _METHODS:
        original = getattr(_class, method, None)
        if original is not None:
            _saved[method] = original
            setattr(_class, method, _wrapped(method, original))


def remove() -> None:
    while _saved:
        method, original = _saved.popitem()
        setattr(_class, method, original)
