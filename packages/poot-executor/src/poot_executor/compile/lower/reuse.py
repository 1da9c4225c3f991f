"""Equal regions are lowered once: a model's layers repeat, and what differs between them is only which buffers they
bind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from poot_executor.compile.expression import Scene
from poot_executor.compile.lower.draft import Draft, Operand, param_of
from poot_executor.compile.region import Region
from poot_executor.compile.target import Caps, Pick
from poot_executor.graph.graph import Value
from poot_executor.graph.show import show_params
from poot_executor.kernel.ir import Kernel


@dataclass(slots=True)
class Reuse:
    """Drafts by the shape of their region: its equations, and the types and layouts of the stored values that it
    reads."""

    _drafts: dict[Hashable, tuple[list[Value], list[Draft]]] = field(default_factory=dict)

    def lower(self, scene: Scene, region: Region, make: Callable[[], Sequence[Draft]]) -> list[Draft]:
        """The region's drafts: made, or those of an equal region with this one's values."""
        key, values = _shape(scene, region)
        if key not in self._drafts:
            self._drafts[key] = (values, list(make()))
        known, drafts = self._drafts[key]
        if known is values:
            return drafts
        renamed = dict(zip(known, values, strict=True))
        return [
            Draft(
                d.kernel,
                tuple(Operand(renamed.get(o.value, o.value), o.part) for o in d.operands),
                d.groups,
                d.work,
                d.schedule,
            )
            for d in drafts
        ]


@dataclass(slots=True)
class CapsKernels:
    """Kernels for the same capabilities: drafts by the pick that scheduled them, what the passes made of each drafted
    kernel, and that as it is launched, by the kernel, the counts that it binds and its grid.
    """

    caps: Caps
    drafted: dict[Pick, Reuse] = field(default_factory=dict)
    optimized: dict[Kernel, Kernel] = field(default_factory=dict)
    launched: dict[tuple[Kernel, tuple[int, ...], tuple[int, int, int]], Kernel] = field(default_factory=dict)


@dataclass(slots=True)
class SharedKernels:
    """Kernels that several compilations share: the steps of a model have most of theirs in common. It holds every one,
    as drafted and as optimized, so it lives as long as those compilations take. For one thread.
    """

    _known: list[CapsKernels] = field(default_factory=list)

    def of(self, caps: Caps) -> CapsKernels:
        """Those for such capabilities."""
        found = next((known for known in self._known if known.caps == caps), None)
        if found is None:
            found = CapsKernels(caps)
            self._known.append(found)
        return found


def _shape(scene: Scene, region: Region) -> tuple[Hashable, list[Value]]:
    """What a region's kernels depend on, and its values in the order in which that names them."""
    numbers: dict[Value, int] = {}
    parts: list[Hashable] = [region.kind]
    marked = {e.output for e in (region.anchor, *region.reductions) if e is not None}
    segments = region.projection.segments if region.projection is not None else ()
    marked |= {e.output for s in segments for e in (*s.anchors, *s.reductions)}

    def visit(value: Value, inside: bool) -> int:
        if value in numbers:
            return numbers[value]
        outside = value in scene.stored and not inside
        equation = None if outside else scene.graph.equation(value)
        if equation is None:
            layout = scene.layouts.get(value)
            access = tuple(access for _, _, access in param_of(scene, value))
            entry: Hashable = ("leaf", value.type, layout, access, repr(scene.splat(value)))
        else:
            operands = tuple(visit(v, False) for v in equation.inputs)
            # As text, in which -0.0 is not 0.0.
            entry = (equation.op, operands, show_params(equation.params), value.type, value in marked)
        parts.append(entry)
        numbers[value] = len(numbers)
        return numbers[value]

    parts.extend([visit(root, True) for root in region.roots])
    attention = region.attention
    if attention is not None:
        named = (attention.scores_root, attention.exponent, attention.weights, attention.mask, attention.sink)
        parts.append((attention.rounded, attention.filler, *(None if v is None else numbers[v] for v in named)))
    parts += [(len(s.anchors), numbers[s.domain], s.block, s.stride, len(s.reductions)) for s in segments]
    return tuple(parts), list(numbers)
