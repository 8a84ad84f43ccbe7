"""Breadcrumbs that cost more than a note: a trace of Python calls, output lines with their rank."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading

from . import _fr

_rank = -1
_host = socket.gethostname()


def _who() -> str:
    global _rank
    if _rank < 0:
        _rank = json.loads(_fr.status())["rank"]
    return f"[{_host}:{_rank if _rank >= 0 else '?'}] "


def print_line(*values, sep: str = " ", end: str = "\n", file=None) -> None:
    """print(), every line prefixed [host:rank] and written by one system call.

    Lines of many ranks in one file or terminal then stay whole.
    """
    file = sys.stdout if file is None else file
    who = _who()
    text = sep.join(map(str, values)) + end
    lines = "".join(who + line for line in text.splitlines(keepends=True))
    try:
        file.flush()
        fd = file.fileno()
    except (AttributeError, OSError, ValueError):
        file.write(lines)  # no file of the system's: a notebook, a test
        return
    data = lines.encode(getattr(file, "encoding", None) or "utf-8", "replace")
    while data:
        data = data[os.write(fd, data) :]


def _matcher(only):
    if only is None:
        return lambda code: True
    if callable(only):
        return only
    parts = (only,) if isinstance(only, str) else tuple(only)
    return lambda code: any(part in code.co_filename for part in parts)


class trace_calls:
    """with fr.trace_calls(only="train.py"): ... - each Python call and return as a note.

    The ring then answers which function a process entered last, also after a SIGKILL. only: part
    of a file name, several of them, or a function of the code object; limit: stops after so many
    calls. Covers this thread and those started inside; with sys.monitoring (Python 3.12) all
    threads, and code that `only` leaves out costs nothing.
    """

    def __init__(self, only=None, limit: int | None = None):
        self._wanted = _matcher(only)
        self._left = limit
        self._cache: dict = {}
        self._tool = None
        self._before = None

    def _text(self, code) -> tuple[str, str] | None:
        kept = self._cache.get(id(code))  # hashing a code object takes a microsecond
        if kept is not None:
            return kept[0]
        texts = None
        if code.co_filename != __file__ and self._wanted(code):
            name = getattr(code, "co_qualname", code.co_name)
            place = f"{name} {code.co_filename}:{code.co_firstlineno}"
            texts = (f"-> {place}", f"<- {place}")
        self._cache[id(code)] = (texts, code)  # the code stays, so that its id does
        return texts

    def _enter(self, texts) -> bool:
        if self._left is not None:
            if self._left == 0:
                self._stop()
                return False
            self._left -= 1
        _fr.note(texts[0])
        return True

    def _profile(self, frame, event, _argument):
        if self._before is None:
            sys.setprofile(None)  # of a thread that was started inside and is still here
        elif event == "call":
            texts = self._text(frame.f_code)
            if texts is not None:
                self._enter(texts)
        elif event == "return":
            texts = self._text(frame.f_code)
            if texts is not None:
                _fr.note(texts[1])

    def __enter__(self):
        monitoring = getattr(sys, "monitoring", None)
        if monitoring is not None:
            free = (i for i in (5, 4, 3) if monitoring.get_tool(i) is None)
            self._tool = next(free, None)
        if self._tool is None:
            self._before = (sys.getprofile(), threading.getprofile())
            threading.setprofile(self._profile)
            sys.setprofile(self._profile)
            return self
        monitoring.use_tool_id(self._tool, "fr.trace_calls")

        def start(code, _offset):
            texts = self._text(code)
            if texts is None:
                return monitoring.DISABLE
            self._enter(texts)
            return None

        def leave(code, _offset, _value):
            texts = self._text(code)
            if texts is None:
                return monitoring.DISABLE
            _fr.note(texts[1])
            return None

        # These two events cannot be disabled per code.
        def unwind(code, _offset, _error):
            texts = self._text(code)
            if texts is not None:
                _fr.note(texts[1])

        def throw(code, _offset, _error):
            texts = self._text(code)
            if texts is not None:
                self._enter(texts)

        events = monitoring.events
        callbacks = {
            events.PY_START: start,
            events.PY_RESUME: start,  # generators and coroutines leave and come back
            events.PY_THROW: throw,
            events.PY_RETURN: leave,
            events.PY_YIELD: leave,
            events.PY_UNWIND: unwind,
        }
        for event, callback in callbacks.items():
            monitoring.register_callback(self._tool, event, callback)
        monitoring.set_events(self._tool, sum(callbacks))
        return self

    def _stop(self):
        if self._tool is not None:
            sys.monitoring.set_events(self._tool, 0)
            sys.monitoring.free_tool_id(self._tool)
            # the next tool must see the code that `only` had switched off
            sys.monitoring.restart_events()
            self._tool = None
        elif self._before is not None:
            sys.setprofile(self._before[0])
            threading.setprofile(self._before[1])
            self._before = None

    def __exit__(self, *_):
        self._stop()
        return False
