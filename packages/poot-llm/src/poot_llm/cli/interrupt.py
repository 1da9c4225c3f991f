"""Ctrl-C: the first one unwinds and gives everything back, one more ends the process at once, and none leaves a
traceback.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

SHOW_CURSOR = "\x1b[?25h"
"""DECTCEM of DEC's VT510 manual, which every terminal follows."""


def arm() -> None:
    """Take over Ctrl-C, unless it is ignored (as in a job in the background) or handled by somebody else."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _unwind)


def rearm() -> None:
    """After a Ctrl-C that ended nothing: the next one is a first one again."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, _unwind)


def leave_line() -> None:
    """What a Ctrl-C leaves on standard error: a new line, on a terminal with its cursor. A line of progress hides the
    cursor, and a Ctrl-C that comes while that line begins or ends leaves it hidden.
    """
    terminal = sys.__stderr__  # The line of progress may have put itself in the place of sys.stderr.
    if terminal is not None and terminal.isatty():
        terminal.write(f"{SHOW_CURSOR}\n")
        terminal.flush()
    else:
        sys.stderr.write("\n")


def _unwind(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt. While it unwinds, the next Ctrl-C is the system's: it ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt
