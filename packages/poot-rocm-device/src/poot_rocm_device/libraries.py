"""Where AMD's runtime library lies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from poot_rocm_device.hsa import LIBRARY

ROOTS = ("ROCM_PATH", "ROCM_HOME")
"""Variables that name ROCm's folder, as ROCm's own tools read them."""


def runtime_library(environment: Mapping[str, str] | None = None, default: str = "/opt/rocm") -> str:
    """The library in the folder that the environment names or in ROCm's usual one; where there is none, its plain name
    for the loader."""
    given = os.environ if environment is None else environment
    for root in (*(given[name] for name in ROOTS if given.get(name)), default):
        path = Path(root) / "lib" / LIBRARY
        if path.exists():
            return str(path)
    return LIBRARY
