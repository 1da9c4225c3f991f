"""What the command line itself can fail in."""

from __future__ import annotations

from poot_executor.errors import PootError


class OutputError(PootError):
    """Standard output that cannot be written: a full disk, say."""
