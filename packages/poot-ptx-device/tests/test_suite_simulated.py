"""The contract's whole suite over the simulated driver: everything of the package but the PTX runs, on any machine.

What the suite compiled is then assembled, for every architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from poot_eval.conformance import DeviceConformance
from poot_ptx_device.architecture import ARCHITECTURES
from poot_ptx_device.caps import caps_of
from poot_ptx_device.device import PtxDevice
from poot_ptx_device.emit import emit
from poot_ptx_device.emitter import ENTRY

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def driver(simulated: ModuleType) -> Any:
    return simulated.SimulatedDriver()


@pytest.fixture(scope="module")
def device(driver: Any, open_simulated: Callable[..., PtxDevice]) -> Iterator[PtxDevice]:
    opened = open_simulated(driver)
    yield opened
    opened.close()
    assert not driver.leaks


@pytest.mark.part(test_contraction=4)
class TestPtxSimulated(DeviceConformance):
    """Inherits every contract test; overrides none."""


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_what_the_suite_compiled_is_assembled(
    driver: Any, assemble: Callable[[str, str], str], architecture: Any
) -> None:
    """All kernels as one module, so that the assembler starts once. Alone, this test has nothing to assemble."""
    if not driver.kernels:
        pytest.skip("no other test of this file ran")
    # Texts differ in their heads alone: for what the simulated GPU is not, a part of them is enough.
    kernels = list(driver.kernels.values())[:: 1 if architecture.name == "sm_90" else 5]
    texts = [emit(kernel, caps_of(architecture)) for kernel in kernels]
    head = texts[0][: texts[0].index(".visible")]
    entries = [text[text.index(".visible") :].replace(ENTRY, f"{ENTRY}_{k}") for k, text in enumerate(texts)]
    assert assemble(head + "\n".join(entries), architecture.name).count("Compiling entry function") == len(texts)
