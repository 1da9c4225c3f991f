"""Loading OpenVINO: the one place that imports it first, and that says why it cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

OLDEST = (2026, 4)
"""The release that is tested; earlier ones lack properties or operations that the lowering uses."""
INSTALL = 'pip install "poot-npu[vpu]"'


class NotUsable(Exception):
    """OpenVINO is absent, too old or does not load; the message says which and what helps."""


def load(installed: Callable[[str], str] = version) -> ModuleType:
    """The module `openvino`. `installed` gives a distribution's version. Raises NotUsable with the reason.

    The version is compared before anything native is loaded.
    """
    try:
        found = installed("openvino")
    except PackageNotFoundError:
        raise NotUsable(f"OpenVINO is not installed: {INSTALL}") from None
    if _release(found) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise NotUsable(f"OpenVINO {found} is too old, {oldest} is the first that works: {INSTALL}")
    try:
        import openvino
    except (ImportError, OSError, RuntimeError) as error:
        raise NotUsable(f"OpenVINO {found} does not load ({error}): install it again, for this platform") from error
    return openvino


def core() -> Any:
    """OpenVINO's `Core`, one for the process. Raises NotUsable with the reason.

    A `Core` gives its thread an alternate signal stack and unmaps that when it goes. Of two that go in the order in
    which they came, or of one that goes in another thread, a stack that is no longer there stays behind, and the next
    signal that Python handles ends the process.
    """
    return _only(load())


@cache
def _only(openvino: ModuleType) -> Any:
    return openvino.Core()


def _release(text: str) -> tuple[int, ...]:
    """Year and number of a version such as "2026.4.1"; what is no number counts as 0."""
    return tuple(int(part) if part.isdecimal() else 0 for part in text.split(".")[:2])
