"""Random graphs: compositions that nobody thought of, each compared with the oracle in every element."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from poot_eval.conformance.inputs import Recorder, Rng, anything, floats
from poot_eval.conformance.matching import assert_device_matches
from poot_executor.device import Device
from poot_executor.dtype import BF16, BOOL, F16, F32, I32, DType
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.graph import Graph, TensorType
from poot_executor.graph.keys import StateKey
from poot_executor.graph.traced import Traced

SHAPES = ((4, 6), (6, 4), (1, 6), (4, 1), (24,), (2, 3, 4), (3, 32), (32, 3), (5, 32))
EQUATIONS = 25
GRAPHS = 16

Values = list[Traced]
Grow = Callable[["_Growth"], Traced | None]


class _Growth:
    """A graph under construction: every value so far, to draw operands from."""

    def __init__(self, rng: Rng) -> None:
        self.g = Recorder("random", rng)
        self.rng = rng
        self.values: Values = [self.g.floats(*SHAPES[int(i)], low=-2, high=2) for i in rng.integers(0, len(SHAPES), 4)]
        for role, dtype in (("kept", F32), ("moved", F16)):
            shape = SHAPES[int(rng.integers(0, len(SHAPES)))]
            self.values.append(self.g.state(role, floats(rng, shape, dtype), dtype)[1])

    def pick(self, fits: Callable[[Traced], bool]) -> Traced | None:
        """A value that fits, recent ones more often."""
        able = [x for x in self.values if fits(x)]
        return able[-1 - int(self.rng.integers(0, len(able)) * self.rng.random())] if able else None

    def number(self) -> Traced:
        """Any f32 value."""
        found = self.pick(lambda x: x.dtype is F32)
        assert found is not None
        return found

    def like(self, x: Traced) -> Traced:
        """Another value of the same type, or a fresh input of it."""
        found = self.pick(lambda y: y.type == x.type and y.value != x.value)
        return found if found is not None else self.g.slot(anything(self.rng, x.shape, x.dtype), x.dtype)


def _unary(s: _Growth) -> Traced:
    x = s.number()
    choices = (
        p.neg, p.abs_, p.tanh, p.erf, p.sin, p.cos, lambda v: p.exp(p.tanh(v)), lambda v: p.recip(v * v + 0.5),
        lambda v: p.sqrt(p.abs_(v) + 0.1), lambda v: v * 0.75, lambda v: 1.5 - v, f.silu, f.gelu,
    )  # fmt: skip
    return choices[int(s.rng.integers(0, len(choices)))](x)


def _binary(s: _Growth) -> Traced:
    x = s.number()
    choices = (p.add, p.sub, p.mul, p.maximum, p.minimum, lambda a, b: a / (b * b + 1.0))
    return choices[int(s.rng.integers(0, len(choices)))](x, s.like(x))


def _select(s: _Growth) -> Traced:
    x = s.number()
    flag = s.like(x) > 0.3
    if s.rng.random() < 0.5:
        flag = flag & ~(x < -0.7)
    return p.select(flag, x, s.like(x) * 0.5)


def _cast(s: _Growth) -> Traced:
    x = s.pick(lambda v: v.dtype is not BOOL)
    assert x is not None
    targets: tuple[DType, ...] = (F16, BF16, I32) if x.dtype is F32 else (F32,)
    return p.cast(x, targets[int(s.rng.integers(0, len(targets)))])


def _reduce(s: _Growth) -> Traced | None:
    x = s.pick(lambda v: v.dtype is F32 and len(v.shape) > 1)
    if x is None:
        return None
    axis = int(s.rng.integers(0, len(x.shape)))
    reduced = (p.sum_ if s.rng.random() < 0.5 else p.reduce_max)(x, axis)
    if s.rng.random() < 0.3:
        return reduced
    kept = p.reshape(reduced, [1 if i == axis else n for i, n in enumerate(x.shape)])
    return x - x.builder.broadcast_to(kept, x.shape) * 0.1


def _norm(s: _Growth) -> Traced | None:
    x = s.pick(lambda v: v.dtype is F32 and v.shape[-1] > 1)
    if x is None:
        return None
    return f.softmax(x) if s.rng.random() < 0.5 else f.rms_norm(x, s.g.floats(x.shape[-1]), 1e-3)


def _move(s: _Growth) -> Traced | None:
    x = s.pick(lambda v: v.dtype is not BOOL)
    assert x is not None
    kind, rank = int(s.rng.integers(0, 6)), len(x.shape)
    if kind == 0:
        same = [shape for shape in SHAPES if np.prod(shape) == x.type.count and shape != x.shape]
        return p.reshape(x, same[int(s.rng.integers(0, len(same)))]) if same else None
    if kind == 1:
        return p.transpose(x, [int(i) for i in s.rng.permutation(rank)]) if rank > 1 else None
    if kind == 2:
        ones = [i for i, n in enumerate(x.shape) if n == 1]
        return p.broadcast(x, [4 if i in ones else n for i, n in enumerate(x.shape)]) if ones else None
    if kind == 3:
        start = [int(s.rng.integers(0, n)) for n in x.shape]
        stop = [int(s.rng.integers(low, n)) + 1 for low, n in zip(start, x.shape, strict=True)]
        return p.slice_(x, start, stop, [int(s.rng.integers(1, 3)) for _ in x.shape])
    if kind == 4:
        return p.concat([x, s.like(x)], int(s.rng.integers(0, rank)))
    low, high = ([int(v) for v in s.rng.integers(0, 3, rank)] for _ in range(2))
    return p.pad(x, low, high, 2 if x.dtype is I32 else 0.25)


def _matmul(s: _Growth) -> Traced | None:
    x = s.pick(lambda v: v.dtype is F32 and len(v.shape) == 2)
    if x is None:
        return None
    if x.shape[1] == 32 and s.rng.random() < 0.7:
        format = FORMATS[str(s.rng.choice(list(FORMATS)))]
        return f.linear(x, s.g.weight(format, int(s.rng.integers(2, 9)), 32), format) * 0.3
    return p.matmul(x, s.g.floats(x.shape[1], int(s.rng.integers(1, 7)), low=-0.5, high=0.5))


def _indexed(s: _Growth) -> Traced | None:
    x = s.pick(lambda v: v.dtype is F32 and len(v.shape) > 1)
    if x is None:
        return None
    count = int(s.rng.integers(1, x.shape[0] + 1))
    if s.rng.random() < 0.5:
        return p.gather(x, s.g.indices((count,), x.shape[0]))
    index = s.rng.permutation(x.shape[0])[:count].astype(np.int32)
    index[s.rng.random(count) < 0.2] = -1
    return p.scatter_update(x, s.g.slot(index, I32), s.g.floats(count, *x.shape[1:]))


_GROWTHS: tuple[Grow, ...] = (
    _unary,
    _unary,
    _binary,
    _binary,
    _select,
    _cast,
    _reduce,
    _norm,
    _move,
    _move,
    _matmul,
    _indexed,
)


def random_graph(rng: Rng) -> tuple[Recorder, Graph]:
    """A graph of about EQUATIONS steps, with outputs in its middle and states that may change."""
    s = _Growth(rng)
    for _ in range(EQUATIONS):
        made = _GROWTHS[int(rng.integers(0, len(_GROWTHS)))](s)
        if made is not None and made.type.count <= 4096:
            s.values.append(made)
    b = s.g.builder
    for role, dtype in (("kept", F32), ("moved", F16)):
        key = StateKey(None, role)
        type = TensorType(s.g.inputs[key].shape, dtype)
        after = s.pick(lambda x, type=type: x.type == type)  # type: ignore[misc]
        if after is not None:
            b.next_state(key, after if dtype is F16 else after * 0.5)
    chosen = {x.value: x for x in [*s.values[-3:], *(s.values[int(i)] for i in rng.integers(0, len(s.values), 3))]}
    for x in chosen.values():
        s.g.output(x)
    return s.g, b.build()


class RandomGraphConformance:
    """Graphs drawn afresh at each run; the printed seed repeats them."""

    @pytest.mark.parametrize("number", range(GRAPHS))
    def test_random_graph(self, device: Device, rng: Rng, number: int) -> None:
        """Outputs in the middle, states that are read and replaced."""
        assert number < GRAPHS
        g, graph = random_graph(rng)
        assert_device_matches(device, graph, g.given(), undecided=0.5)
