"""NCCL: tells it to load libfr as its profiler plugin, and hooks the calls of its functions.

Both work without NCCL: there is then nothing to load and nothing to hook.
"""

from __future__ import annotations

import contextlib
import ctypes  # noqa: F401  its calls of dlsym() are hooked, so it must be there first
import os

from . import _fr, problems

_VARIABLE = "NCCL_PROFILER_PLUGIN"
_CHAIN = "FR_NCCL_CHAIN"  # for libfr: the user's own plugin, to be called through
_LONGEST = 254  # NCCL cuts longer names


def install() -> None:
    path = _fr.library_path()
    theirs = os.environ.get(_VARIABLE)
    if len(path) > _LONGEST:
        problems.add(f"NCCL cannot load {path}: longer than {_LONGEST} characters")
    elif path and theirs != "none":
        if theirs and os.path.realpath(theirs) != path:
            os.environ[_CHAIN] = theirs
        os.environ[_VARIABLE] = path
    hook()


def hook() -> None:
    """Again whenever libraries may have been loaded."""
    _fr.nccl_hook()


def uninstall() -> None:
    _fr.nccl_unhook()
    if os.environ.get(_VARIABLE) == _fr.library_path():
        with contextlib.suppress(KeyError):
            del os.environ[_VARIABLE]
        theirs = os.environ.pop(_CHAIN, None)
        if theirs:
            os.environ[_VARIABLE] = theirs
