"""Exceptions that the user's own code catches become notes: what a rank swallowed before it hung.

By sys.monitoring, so from Python 3.12 on; before, nothing tells at a price a training step can pay.
The event comes only when an exception is handled, and costs code that raises none nothing.
"""

from __future__ import annotations

import sys
import time

from . import _fr, problems

_TOOLS = (4, 3)  # ids that nobody owns; trace_calls begins at 5
_EVERY_NS = 1_000_000_000  # of one function: one that always catches does not push out the rest
_FRAMES = 64

# id of a code object: it, next time to note (None for a library's). Generated code comes and goes:
# the table begins anew when it is full.
_MOST_SEEN = 4096
_seen: dict[int, list] = {}
_tool = None


def _text(code, error) -> str:
    """ "caught OSError at load.py:23 in fetch: no such shard", of the user's innermost frame."""
    place = (code.co_filename, code.co_firstlineno, code.co_name)
    entry = error.__traceback__
    for _ in range(_FRAMES):
        if entry is None:
            break
        inner = entry.tb_frame.f_code
        if not _fr.is_library_file(inner.co_filename):
            place = (inner.co_filename, entry.tb_lineno, inner.co_name)
        entry = entry.tb_next
    message = str(error).strip().split("\n")[0][:400]
    where = f"{place[0].rsplit('/', 1)[-1]}:{place[1]} in {place[2]}"
    text = f"caught {type(error).__name__} at {where}"
    return f"{text}: {_fr.without_secrets(message)}" if message else text


@problems.harmless("noting an exception that ends a group")
def note_handled() -> None:
    """Notes the exception that the calling code handles, if any and if the monitor does not."""
    error = sys.exc_info()[1]
    if error is not None and error.__traceback__ is not None and _tool is None:
        _fr.note(_text(error.__traceback__.tb_frame.f_code, error))


def _handled(code, _offset, error):
    try:
        kept = _seen.get(id(code))  # hashing a code object takes a microsecond
        if kept is None:
            if len(_seen) == _MOST_SEEN:
                _seen.clear()
            library = _fr.is_library_file(code.co_filename)
            kept = _seen[id(code)] = [code, None if library else 0]
        due = kept[1]
        if due is None:
            return
        now = time.monotonic_ns()
        if now >= due and not isinstance(error, (StopIteration, StopAsyncIteration, GeneratorExit)):
            kept[1] = now + _EVERY_NS
            _fr.note(_text(code, error))
    except Exception as problem:  # an exception's own __str__, perhaps
        problems.add(f"noting a caught exception: {type(problem).__name__}")


def install() -> None:
    """Runs once; does nothing if another tool has taken all tool ids."""
    global _tool
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None or _tool is not None:
        return
    free = [tool for tool in _TOOLS if monitoring.get_tool(tool) is None]
    if not free:
        return
    _tool = free[0]
    monitoring.use_tool_id(_tool, "fr.caught")
    monitoring.register_callback(_tool, monitoring.events.EXCEPTION_HANDLED, _handled)
    monitoring.set_events(_tool, monitoring.events.EXCEPTION_HANDLED)
