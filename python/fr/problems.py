"""Errors in fr itself: reported once, shown by fr.status(), never raised into the script."""

from __future__ import annotations

import contextlib
import functools

from . import _fr

found: list[str] = []


def add(text: str) -> None:
    if text not in found:
        found.append(text)
        with contextlib.suppress(Exception):
            _fr.log(1, text)


def add_error(what: str, error: BaseException) -> None:
    add(f"{what}: {type(error).__name__}: {error}")


def harmless(what: str):
    """Keeps errors of the decorated function inside fr."""

    def wrap(fn):
        @functools.wraps(fn)
        def call(*args, **kwargs):
            try:
                return fn(*args, **kwargs)
            except Exception as error:
                add_error(what, error)
                return None

        return call

    return wrap
