"""Ctrl-C: the first one unwinds and gives everything back, one more ends the process at once, and none leaves a
traceback.
"""

from __future__ import annotations

import signal
from types import FrameType


def arm() -> None:
    """Take over Ctrl-C, unless it is ignored (as in a job in the background) or handled by somebody else."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _unwind)


def rearm() -> None:
    """After a Ctrl-C that ended nothing: the next one is a first one again."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, _unwind)


def _unwind(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt. While it unwinds, the next Ctrl-C is the system's: it ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt
