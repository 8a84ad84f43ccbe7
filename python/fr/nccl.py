"""NCCL: tells it to load libfr as its profiler plugin, and hooks the calls of its functions.

Both work without NCCL: there is then nothing to load and nothing to hook.
"""

from __future__ import annotations

import contextlib
import ctypes  # noqa: F401  its calls of dlsym() are hooked, so it must be there first
import os

from . import _fr

_VARIABLE = "NCCL_PROFILER_PLUGIN"
_CHAIN = "FR_NCCL_CHAIN"  # for libfr: the user's own plugin, to be called through
_LONGEST = 254  # NCCL cuts longer names


def _own_name() -> str:
    """What NCCL finds libfr by: its path, or its name, as a library that is loaded already."""
    path = _fr.library_path()
    return path if len(path) <= _LONGEST else os.path.basename(path)


def _configured() -> str | None:
    """What NCCL's own files say, which it reads where the environment says nothing."""
    own = os.environ.get("NCCL_CONF_FILE") or os.path.expanduser("~/.nccl.conf")
    for path in (own, "/etc/nccl.conf"):
        with contextlib.suppress(OSError), open(path, errors="replace") as lines:
            for line in lines:
                name, _, value = line.rstrip("\n").partition("=")
                if name == _VARIABLE:
                    return value
    return None


def install() -> None:
    own = _own_name()
    theirs = os.environ.get(_VARIABLE) or _configured()
    if own and theirs != "none":
        if theirs and theirs != own and os.path.realpath(theirs) != own:
            os.environ[_CHAIN] = theirs
        os.environ[_VARIABLE] = own
    hook()


def hook() -> None:
    """Again whenever libraries may have been loaded."""
    _fr.nccl_hook()


def uninstall() -> None:
    _fr.nccl_unhook()
    if os.environ.get(_VARIABLE) == _own_name():
        with contextlib.suppress(KeyError):
            del os.environ[_VARIABLE]
        theirs = os.environ.pop(_CHAIN, None)
        if theirs:
            os.environ[_VARIABLE] = theirs
