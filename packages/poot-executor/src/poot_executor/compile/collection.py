"""Garbage collection while much is made that stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """No garbage is collected inside: a compilation makes a million objects, of which few are garbage, and the
    collector would go through all of them again and again, which is a fifth of its time and more the more programs
    there are. What lies in cycles is collected afterwards. Of the whole process, so for less than a few seconds.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()
