"""The emitter's table: one rule an operation. An operation without a rule is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from poot_executor.errors import KernelError, Unsupported
from poot_executor.kernel.ir import Op

RuleT = TypeVar("RuleT", bound=Callable[..., object])

_LOWERED = frozenset({"group_sum", "group_max", "group_min"})


class Rules(Generic[RuleT]):
    """The rules of one target. What a rule takes besides the operation is the emitter's own business.

    ```python
    rules: Rules[Callable[[Emitter, Op], None]] = Rules("wgpu")


    @rules.rule("add", "sub")
    def _arithmetic(emitter: Emitter, op: Op) -> None: ...


    rules[op](emitter, op)
    ```
    """

    __slots__ = ("_rules", "target")

    def __init__(self, target: str) -> None:
        self.target = target
        self._rules: dict[str, RuleT] = {}

    def rule(self, *names: str) -> Callable[[RuleT], RuleT]:
        """The decorated function is the rule of these operations. Raises KernelError for a second rule of one."""

        def register(function: RuleT) -> RuleT:
            for name in names:
                if name in self._rules:
                    raise KernelError(f"{self.target} has two rules for {name}")
                self._rules[name] = function
            return function

        return register

    def __getitem__(self, op: Op) -> RuleT:
        """The rule for an operation. Raises Unsupported naming the target, the operation and its types."""
        rule = self._rules.get(op.kind)
        if rule is None:
            operands = ", ".join(str(value.type) for value in op.operands)
            results = ", ".join(str(value.type) for value in op.results)
            types = f"({operands})" + (f" to ({results})" if results else "")
            where = f", {op.line}" if op.line else ""
            raise Unsupported(f"{self.target}{where}", f"no rule for operation {op.kind} of {types}")
        return rule

    def missing(self, operations: Iterable[str]) -> tuple[str, ...]:
        """The operations, of those that an emitter sees, that have no rule: all but group reductions, which a pass
        lowers.
        """
        return tuple(n for n in operations if n not in self._rules and n not in _LOWERED)

    def covers(self, operations: Iterable[str]) -> bool:
        """Whether every operation that an emitter sees has a rule."""
        return not self.missing(operations)
