"""Attention by matrix fragments as PTX, assembled: for every architecture, in registers that leave room for groups
beside each other."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest

from poot_executor.compile import Target, compile
from poot_executor.compile.program import DispatchCommand
from poot_executor.compile.target import Caps
from poot_executor.dtype import BF16, F32, I32
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_executor.kernel.warpgroups import FEATURE
from poot_ptx_device.architecture import ARCHITECTURES
from poot_ptx_device.caps import OPTIONS, caps_of
from poot_ptx_device.emit import emit

Assemble = Callable[[str, str], str]
BY_NAME = {architecture.name: architecture for architecture in ARCHITECTURES}
REGISTERS = 65536
"""Of a multiprocessor."""
SPILLED_MOST = 32
"""Bytes of a thread that the assembler may lay aside before the loop until after it, to fit one more group."""


def caps(name: str) -> Caps:
    architecture = BY_NAME[name]
    options = OPTIONS if architecture.dependent_launch else frozenset[str]()
    return caps_of(architecture, options=options | ({FEATURE} if architecture.warpgroups else set()))


@cache
def prefill(name: str, head: int, window: int | None = None) -> DispatchCommand:
    """Reading 256 tokens into 512 positions, 8 query heads over 2 KV heads."""
    b = Builder("prefill")
    q = p.cast(b.state(StateKey(0, "q"), TensorType((1, 256, 8, head), BF16)), F32)
    k, v = (b.state(StateKey(0, role), TensorType((1, 512, 2, head), BF16)) for role in "kv")
    position, last = (b.slot(SlotKey(kind), TensorType((1,), I32)) for kind in (SlotKind.POS, SlotKind.LAST))
    mask, visible = f.causal_mask(position, last, 256, 512, window), f.written_mask(position, last, 512)
    b.output("out", f.attention(q, k, v, mask, head**-0.5, visible, activations=BF16))
    (found,) = (d for d in compile(b.build(), Target("ptx", caps(name))).dispatches if "warps" in d.schedule)
    return found


def groups_beside(report: str, threads: int) -> int:
    """Groups whose registers a multiprocessor has room for. Asserts that next to nothing is spilled."""
    spilled, used = (re.search(p, report) for p in (r"(\d+) bytes spill stores", r"Used (\d+) registers"))
    assert spilled is not None and used is not None and int(spilled[1]) <= SPILLED_MOST, report
    return REGISTERS // (-(-int(used[1]) // 8) * 8 * threads)


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("head", [64, 128])
def test_it_assembles_for_every_architecture(assemble: Assemble, name: str, head: int) -> None:
    dispatch = prefill(name, head)
    text = emit(dispatch.kernel, caps(name))
    assert groups_beside(assemble(text, name), dispatch.kernel.group_size) >= 2
    assert ("cp.async" in text) == BY_NAME[name].warpgroups


@pytest.mark.parametrize(("head", "window"), [(128, 100), (256, None)])
def test_a_window_and_a_great_head_assemble(assemble: Assemble, head: int, window: int | None) -> None:
    dispatch = prefill("sm_90a", head, window)
    assert groups_beside(assemble(emit(dispatch.kernel, caps("sm_90a")), "sm_90a"), dispatch.kernel.group_size) >= 2


def test_halves_of_two_words_become_a_word_by_one_instruction() -> None:
    """A word of V a product has two: neighbouring positions of a column."""
    dispatch = prefill("sm_90", 128)
    text = emit(dispatch.kernel, caps("sm_90"))
    products = text.count("mma.sync")
    # Half of the products are with V, whose right factors are two words each.
    assert text.count("prmt.b32") == products // 2 * 2
