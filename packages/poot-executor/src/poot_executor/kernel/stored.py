"""A kernel whose text is read when its body is first asked for: a device that has its code needs no more than the
rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from poot_executor.kernel.ir import Block, Kernel, Param, SharedArray


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What is known of a body without reading it: the kernel's `digest`, its `checks`, and `loop_rounds` of it."""

    digest: bytes
    checks: bool
    loop_rounds: int | None


class StoredKernel(Kernel):
    """A kernel with a body that `read` gives, once, when it is asked for. `read` raises what it likes."""

    facts: KernelFacts | None
    _read: list[Block | Callable[[], Block]]

    def __init__(
        self,
        name: str,
        params: tuple[Param, ...],
        shared: tuple[SharedArray, ...],
        group_size: int,
        body: Block | Callable[[], Block],
        groups: tuple[int, int, int] | None = None,
        resident: bool = False,
        facts: KernelFacts | None = None,
    ) -> None:
        """With a block for a body and no facts (as `dataclasses.replace` makes it) it is a kernel like any other."""
        for field, value in (
            ("name", name), ("params", params), ("shared", shared), ("group_size", group_size), ("groups", groups),
            ("resident", resident), ("_digest", [] if facts is None else [facts.digest]),
            ("facts", facts), ("_read", [body]),
        ):  # fmt: skip
            object.__setattr__(self, field, value)

    @property
    def body(self) -> Block:  # pyrefly: ignore[bad-override]
        """The operations, read at the first call."""
        found = self._read[0]
        if not isinstance(found, Block):
            found = self._read[0] = found()
        return found

    @property
    def checks(self) -> bool:
        """Whether it has a `check` operation, which may fault."""
        return super().checks if self.facts is None else self.facts.checks
