"""Tests of the suite itself: nothing overridden, nothing lost, every primitive and operation in
it."""

from __future__ import annotations

from poot_eval.conformance import elementwise, kernels
from poot_executor.device import Device
from poot_executor.graph.ops import OPS
from poot_executor.kernel.ir import KERNEL_OPS

LEAST = 400
"""A device's test class inherits at least this many tests, cases of a parametrized one counted
apart."""

PRIMITIVES = frozenset(
    "select cast bitcast sum reduce_max argmax arg_top_k matmul indexed_matmul reshape transpose broadcast slice "
    "concat pad iota gather scatter_update dynamic_update_slice packed_dequant random_bits sample_token".split()
)
"""Primitives with a test of their own, beside the elementwise ones that are drawn from the op
table."""


def tests_of(cls: type) -> list[str]:
    """The names of a class's tests, its own and inherited."""
    return [name for name in dir(cls) if name.startswith("test_")]


def cases_of(cls: type) -> int:
    """How many tests pytest makes of a class."""
    total = 0
    for name in tests_of(cls):
        count = 1
        for mark in getattr(getattr(cls, name), "pytestmark", ()):
            if mark.name == "parametrize":
                count *= len(mark.args[1])
        total += count
    return total


class GuardConformance:
    """What a device's test class may not do."""

    def test_the_class_inherits_every_test(self) -> None:
        """It overrides none, so that a device cannot pass by leaving one out."""
        standard = {
            name: value
            for base in type(self).__mro__
            if base.__module__.startswith("poot_eval.conformance")
            for name, value in vars(base).items()
            if name.startswith("test_")
        }
        replaced = [name for name, value in standard.items() if getattr(type(self), name) is not value]
        assert not replaced, f"{type(self).__name__} overrides {', '.join(replaced)}"
        assert cases_of(type(self)) >= LEAST

    def test_every_operation_is_in_the_suite(self, device: Device) -> None:
        """Each primitive of the op table and each row of the kernel operation table."""
        assert device.target.kind
        sampled = {case.values[0] for case in elementwise.CASES}
        assert sampled | PRIMITIVES == set(OPS)
        assert set(kernels.OPERANDS) | kernels.ELSEWHERE == set(KERNEL_OPS)
