"""The emitter's table: coverage, and refusals that name target, operation and types."""

from __future__ import annotations

import pytest

from poot_executor.dtype import F32
from poot_executor.errors import KernelError, Unsupported
from poot_executor.kernel import KERNEL_OPS, KType, Op, Val
from poot_executor.kernel.rules import Rules


def rules_for(*names: str) -> Rules:
    rules = Rules("toy")

    @rules.rule(*names)
    def emit(op: Op) -> str:
        return op.kind

    return rules


def test_one_rule_may_serve_several_operations():
    rules = rules_for("add", "sub")
    assert rules[Op("sub")](Op("sub")) == "sub"


def test_a_missing_rule_is_unsupported_by_name():
    value = Val(KType(F32, 4))
    op = Op("exp", (value,), (Val(KType(F32, 4)),), {}, (), "matvec.py:7")
    with pytest.raises(Unsupported, match=r"^toy, matvec\.py:7: no rule for operation exp of \(f32x4\) to \(f32x4\)$"):
        rules_for("add")[op]


def test_two_rules_for_one_operation_are_refused():
    rules = rules_for("add")
    with pytest.raises(KernelError, match="toy has two rules for add"):
        rules.rule("add")(lambda op: "")


def test_coverage_leaves_group_reductions_to_the_pass():
    every = [name for name in KERNEL_OPS if not name.startswith("group_") or name == "group_id"]
    assert rules_for(*every).covers(KERNEL_OPS)
    partial = rules_for(*(name for name in every if name not in ("exp", "for")))
    assert not partial.covers(KERNEL_OPS)
    assert partial.missing(KERNEL_OPS) == ("exp", "for")
