"""Products of warpgroups: their text, when it waits, and that they are proved before a device has them."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_eval.conformance.regions import ContractionRegions
from poot_eval.device import ReferenceDevice
from poot_executor.compile import Program, Target, compile
from poot_executor.dtype import DType
from poot_executor.errors import DeviceLost
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.kernel.passes import optimize
from poot_executor.kernel.warpgroups import FEATURE, LINE
from poot_executor.known_warpgroups import warpgroup_case
from poot_executor.weights import WeightKey
from poot_ptx_device.architecture import ARCHITECTURES, warpgroup_architecture
from poot_ptx_device.caps import OPTIONS, caps_of
from poot_ptx_device.device import PtxDevice
from poot_ptx_device.emit import emit

F32, U32, BF16 = DType.F32, DType.U32, DType.BF16
SM_90A = next(a for a in ARCHITECTURES if a.warpgroups)
CAPS = caps_of(SM_90A, options=OPTIONS | {FEATURE})

Assemble = Callable[[str, str], str]


def contraction(tokens: int, rows: int, columns: int, *, anchors: int = 1) -> Program:
    """Norm, contraction with bf16 weights (or gate and up) and a residual sum of so many activation rows."""
    b = Builder("contraction")
    x = b.slot(SlotKey(SlotKind.INPUT), TensorType((tokens, columns), F32))
    scale = b.weight(WeightKey(None, "norm"), TensorType((columns,), F32))
    h = f.rms_norm(x, scale, 1e-5)
    bf16 = FORMATS["bf16"]
    weights = [f.stored_weight(b, WeightKey(0, f"w{k}"), bf16, (rows, columns)) for k in range(2)]
    gate, up = (f.linear(h, weight, bf16, activations=BF16) for weight in weights)
    b.output("y", f.swiglu(gate, up) if anchors == 2 else gate + 1.0)
    if anchors == 1:
        b.output("z", up)
    return compile(b.build(), Target("ptx", CAPS))


@pytest.mark.parametrize(
    ("tokens", "rows", "anchors", "expected"),
    [(2048, 4096, 1, (2, 256)), (2048, 4096, 2, (2, 128)), (64, 4096, 1, (1, 64)), (24, 320, 1, (1, 32))],
)
def test_contractions_assemble_without_spills(
    assemble: Assemble, tokens: int, rows: int, anchors: int, expected: tuple[int, int]
) -> None:
    dispatches = [d for d in contraction(tokens, rows, 512, anchors=anchors).dispatches if "warpgroups" in d.schedule]
    assert {(d.schedule["warpgroups"], d.schedule["tokens"]) for d in dispatches} == {expected}
    for dispatch in dispatches:
        report = assemble(emit(dispatch.kernel, CAPS), SM_90A.name)
        assert "0 bytes spill stores" in report and "serialized" not in report


def test_golden(request: pytest.FixtureRequest) -> None:
    """The text of the known answers' kernel, which contractions are like."""
    text = emit(optimize(warpgroup_case(BF16).kernel, subgroup=True, subgroup_width=32), CAPS)
    path = Path(__file__).parent / "golden" / "warpgroup_product.ptx"
    if request.config.getoption("--update-ptx"):
        path.write_text(text)
    before = path.read_text() if path.exists() else ""
    assert text == before, "".join(difflib.unified_diff(before.splitlines(True), text.splitlines(True)))


@pytest.mark.parametrize("half", [DType.BF16, DType.F16], ids=str)
def test_the_known_answers_assemble(assemble: Assemble, half: DType) -> None:
    kernel = warpgroup_case(half).kernel
    for made in (kernel, optimize(kernel, subgroup=True, subgroup_width=32, check=True)):
        report = assemble(emit(made, CAPS), SM_90A.name)
        assert "0 bytes spill stores" in report and "serialized" not in report


def test_a_loop_keeps_a_product_in_flight() -> None:
    """The product of a round is waited for behind the next one, and all of them before their sums are read."""
    text = emit(optimize(warpgroup_case(BF16).kernel, subgroup=True, subgroup_width=32), CAPS)
    loop = re.search(r"(\$L\d+):\n[^$]*bar\.sync.*?bra(?:\.uni)? \1;", text, re.DOTALL)
    assert loop is not None
    assert loop[0].count("wgmma.wait_group.sync.aligned 1") == 1 and "wait_group.sync.aligned 0" not in loop[0]
    after = text[loop.end() :]
    assert after.index("wgmma.wait_group.sync.aligned 0") < after.index("st.global")
    # Sums stay in their registers: nothing moves while products are in flight.
    assert not re.search(r"mov\.f32", loop[0])
    assert loop[0].index("fence.proxy.async") < loop[0].index("bar.sync")


def two_products(behind: int, *, read_first: bool) -> Kernel:
    """A product, a barrier, another with sums of its own."""
    b = KernelBuilder("two", 128)
    y, tiles = b.buffer("y", F32, Access.READ_WRITE), b.shared("tiles", U32, 128 * LINE)
    zero = b.vector(*(b.const(0.0, F32) for _ in range(4)))
    (first,) = tiles.multiply(0, 64 * LINE, [zero], BF16, behind)
    if read_first:
        y[b.thread_id()] = first[0]
    b.barrier()
    b.barrier()
    (second,) = tiles.multiply(0, 64 * LINE, [first], BF16, behind)
    y[b.thread_id()] = second[0]
    return b.finish()


@pytest.mark.parametrize("behind", [0, 1])
def test_a_product_does_not_outlive_its_barriers(behind: int) -> None:
    text = emit(two_products(behind, read_first=False), CAPS)
    first, rest = text.split("bar.sync", 1)
    assert ("wait_group.sync.aligned 0" in first) == (behind == 0)
    between = rest.split("bar.sync", 1)[0]
    assert ("wait_group.sync.aligned 0" in between) == (behind == 1)


def test_sums_are_waited_for_before_they_are_read_and_copied_where_they_live_on() -> None:
    text = emit(two_products(1, read_first=True), CAPS)
    first = text.split("bar.sync", 1)[0]
    assert first.index("wait_group.sync.aligned 0") < first.index("st.global")
    # The first sums have two uses, so the second product has registers of its own.
    destinations = re.findall(r"wgmma\.mma_async\S+ (\{[^}]*\})", text)
    assert len(set(destinations)) == 2


def test_large_shared_memory_is_given_by_the_launch() -> None:
    text = emit(warpgroup_case(BF16).kernel, CAPS)
    assert text.index(".extern .shared .align 1024 .b8 shared_memory[];") < text.index(".visible .entry")
    assert "[s0" not in text


def knowing(simulated: Any, *, wrong: bool = False) -> Any:
    """A simulated driver that knows what the text of each case stands for, or takes each for the other."""
    driver = simulated.SimulatedDriver()
    kernels = [warpgroup_case(half).kernel for half in (DType.BF16, DType.F16)]
    for kernel, meant in zip(kernels, reversed(kernels) if wrong else kernels, strict=True):
        driver.kernels[emit(kernel, CAPS).encode()] = meant
    return driver


def test_a_device_has_products_that_gave_their_known_answers(
    simulated: Any, open_simulated: Callable[..., Any]
) -> None:
    driver = knowing(simulated)
    device = open_simulated(driver, options=None)
    assert OPTIONS | {FEATURE} <= device.target.caps.features
    assert FEATURE in device.target.caps.features and SM_90A.name in device.target.caps.features
    assert device.target.caps.most_shared_bytes > device.target.caps.max_shared_bytes
    device.close()
    assert not driver.leaks


def test_where_options_leave_them_out_there_are_none(device: PtxDevice) -> None:
    assert FEATURE not in device.target.caps.features and SM_90A.name not in device.target.caps.features


@pytest.mark.parametrize(
    ("wrong", "refused", "reason"),
    [
        (True, None, "products of warpgroups in bf16 are wrong"),
        (False, "cuFuncSetAttribute", "CUDA_ERROR_INVALID_VALUE"),
        (False, "cuLinkAddData", "CUDA_ERROR_INVALID_VALUE"),
    ],
)
def test_a_wrong_product_switches_them_off(
    simulated: Any,
    open_simulated: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    wrong: bool,
    refused: str | None,
    reason: str,
) -> None:
    driver = knowing(simulated, wrong=wrong)
    if refused is not None:
        driver.fail(refused, simulated.INVALID_VALUE)
    with caplog.at_level(logging.WARNING):
        device = open_simulated(driver, options=OPTIONS | {FEATURE})
    assert FEATURE not in device.target.caps.features and device.target.caps.features >= OPTIONS
    assert "products of warpgroups are switched off" in caplog.text and reason in caplog.text
    device.close()
    assert not driver.leaks


def test_a_driver_that_is_lost_meanwhile_is_reported(simulated: Any, open_simulated: Callable[..., Any]) -> None:
    driver = knowing(simulated)
    driver.fail("cuGraphLaunch", simulated.ILLEGAL_ADDRESS)
    with pytest.raises(DeviceLost):
        open_simulated(driver, options=OPTIONS | {FEATURE})


def test_only_the_architecture_that_has_them() -> None:
    assert warpgroup_architecture((9, 0)) is SM_90A
    assert warpgroup_architecture((8, 0)) is None and warpgroup_architecture((10, 0)) is None


@pytest.mark.parametrize("rows", [17, 33])
def test_contractions_of_the_contract(rng: np.random.Generator, rows: int) -> None:
    """Activations that are stored as halves before belong to the contraction behind them."""
    with ReferenceDevice(CAPS) as reference:
        ContractionRegions().test_contraction(reference, rng, "bf16", rows)
