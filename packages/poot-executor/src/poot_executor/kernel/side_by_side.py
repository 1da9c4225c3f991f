"""Kernels joined to one that is launched once: tracks of groups side by side (horizontal fusion), and within a track of
one group one kernel after another.

A launch costs more than a short kernel. The groups of a joined kernel are dealt to its tracks in order, and each runs
its own kernels as if it had been launched alone; between two of them the group waits at a barrier, after which it sees
what it stored before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from poot_executor.dtype import DType
from poot_executor.errors import KernelError
from poot_executor.kernel.ir import Block, Kernel, KType, Op, Param, SharedArray, Val
from poot_executor.kernel.rewrite import clone

_INT, _BOOL = KType(DType.I32), KType(DType.BOOL)
_ENDS_BLOCK = Op("yield")


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """A kernel over a grid of groups; `binds` gives for each of its parameters the joined kernel's."""

    kernel: Kernel
    groups: tuple[int, int, int]
    binds: tuple[int, ...]


Track = Sequence[Launch]
"""Kernels that run one after another: one, or any number over one group each."""


def side_by_side(name: str, params: Sequence[Param], tracks: Sequence[Track]) -> tuple[Kernel, tuple[int, int, int]]:
    """The joined kernel with these parameters, and its grid.

    Raises KernelError for group sizes that differ and for kernels after one another over more than one group.
    """
    sizes = {launch.kernel.group_size for track in tracks for launch in track}
    if len(sizes) != 1:
        raise KernelError(f"kernels launched as one have groups of {sorted(sizes)} threads")
    if any(len(track) > 1 and any(prod(launch.groups) != 1 for launch in track) for track in tracks):
        raise KernelError("kernels after one another run in one group")
    joiner = _Joiner()
    group = Val(_INT)
    first = Op("group_id", (), (group,), {"axis": 0})
    ends = [sum(prod(track[0].groups) for track in tracks[: i + 1]) for i in range(len(tracks))]
    ops = joiner.choice(tracks, [0, *ends[:-1]], ends, group)
    kernel = Kernel(name, tuple(params), tuple(joiner.shared), sizes.pop(), Block((), (first, *ops)))
    return kernel, (ends[-1], 1, 1)


def bound_together(kernel: Kernel, binds: Sequence[int]) -> Kernel:
    """The kernel with fewer parameters: `binds` gives for each of its own the new one's number, and parameters of one
    number are one buffer, named as the last of them."""
    params = dict(zip(binds, kernel.params, strict=True))
    joiner = _Joiner()
    ops = joiner.ops(Launch(kernel, (1, 1, 1), tuple(binds)), {})
    bound = tuple(params[i] for i in sorted(params))
    return replace(kernel, params=bound, shared=tuple(joiner.shared), body=Block((), ops))


class _Joiner:
    """Writes the operations; `shared` is the memory of a group, which kernels that never run together use again."""

    def __init__(self) -> None:
        self.shared: list[SharedArray] = []

    def choice(self, tracks: Sequence[Track], starts: Sequence[int], ends: Sequence[int], group: Val) -> list[Op]:
        """The first track for groups below its end, the rest for the others."""
        if len(tracks) == 1:
            return self.track(tracks[0], starts[0], group)
        end, below = _constant(ends[0]), Val(_BOOL)
        rest = self.choice(tracks[1:], starts[1:], ends[1:], group)
        blocks = tuple(Block((), (*ops, _ENDS_BLOCK)) for ops in (self.track(tracks[0], starts[0], group), rest))
        return [end, Op("lt", (group, end.result), (below,)), Op("if", (below,), (), {}, blocks)]

    def track(self, track: Track, start: int, group: Val) -> list[Op]:
        """The kernels of one track, whose groups begin at `start`."""
        out: list[Op] = []
        for place, launch in enumerate(track):
            if place:
                out.append(Op("barrier"))
            grid: dict[int, Val] = {}
            out += _places(launch.groups, start, group, grid)
            out += self.ops(launch, grid)
        return out

    def ops(self, launch: Launch, grid: Mapping[int, Val]) -> tuple[Op, ...]:
        """A kernel's operations with the joined kernel's buffers and memory; its place in each axis is in `grid`."""
        arrays = self._arrays(launch.kernel.shared)
        copies = clone(launch.kernel.body.ops, {})
        return tuple(_rebound(copies, launch.binds, arrays, grid, {}))

    def _arrays(self, wanted: Sequence[SharedArray]) -> list[int]:
        """Which of the joined kernel's arrays serve these, made or made longer as needed."""
        found: list[int] = []
        for array in wanted:
            fitting = [i for i, has in enumerate(self.shared) if has.dtype is array.dtype and i not in found]
            if not fitting:
                self.shared.append(SharedArray(f"shared{len(self.shared)}", array.dtype, array.count))
                found.append(len(self.shared) - 1)
                continue
            at = fitting[0]
            has = self.shared[at]
            self.shared[at] = SharedArray(has.name, has.dtype, max(has.count, array.count))
            found.append(at)
        return found


def _rebound(
    ops: Sequence[Op], binds: Sequence[int], arrays: Sequence[int], grid: Mapping[int, Val], replaced: dict[Val, Val]
) -> list[Op]:
    """Operations with other buffers, arrays and places in the grid."""
    out: list[Op] = []
    for op in ops:
        if op.kind == "group_id" and op.attrs["axis"] in grid:
            replaced[op.result] = grid[op.attrs["axis"]]
            continue
        attrs = dict(op.attrs)
        for name, numbers in (("buffer", binds), ("array", arrays)):
            if name in attrs:
                attrs[name] = numbers[attrs[name]]
        operands = tuple(replaced.get(value, value) for value in op.operands)
        blocks = tuple(
            Block(block.args, tuple(_rebound(block.ops, binds, arrays, grid, replaced))) for block in op.blocks
        )
        out.append(Op(op.kind, operands, op.results, attrs, blocks, op.line))
    return out


def _places(groups: tuple[int, int, int], start: int, group: Val, grid: dict[int, Val]) -> list[Op]:
    """Operations for a group's place in a track's own grid, which `grid` gets by axis."""
    out: list[Op] = []

    def made(kind: str, a: Val, number: int) -> Val:
        constant, result = _constant(number), Val(_INT)
        # Places are not negative: the flag lets a pass turn divisions to shifts and masks.
        attrs = {"nonnegative": True} if kind in ("div", "rem") else {}
        out.extend([constant, Op(kind, (a, constant.result), (result,), attrs)])
        return result

    local = made("sub", group, start) if start else group
    below = 1
    for axis, count in enumerate(groups):
        if count == 1:
            zero = _constant(0)
            out.append(zero)
            grid[axis] = zero.result
            continue
        above = prod(groups[axis + 1 :])
        at = made("div", local, below) if below > 1 else local
        grid[axis] = made("rem", at, count) if above > 1 else at
        below *= count
    return out


def _constant(value: int) -> Op:
    return Op("const", (), (Val(_INT),), {"value": value})
