"""Makes NCCL load libfr as its profiler plugin, and hooks the calls of NCCL's functions.

Both work without NCCL: there is then nothing to load and nothing to hook.
"""

from __future__ import annotations

import ctypes  # noqa: F401  its calls of dlsym() are hooked, so it must be there first
import os

from . import _fr


def _keep(variables: dict[str, str | None]) -> None:
    """os.environ is a copy that does not see libfr's setenv()."""
    for name, value in variables.items():
        if value is not None:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def install() -> None:
    _keep(_fr.nccl_announce())
    hook()


def hook() -> None:
    """Again whenever libraries may have been loaded."""
    _fr.nccl_hook()


def uninstall() -> None:
    _fr.nccl_unhook()
    _keep(_fr.nccl_withdraw())
