"""Index arithmetic of expressions: chains of movements against numpy, vectors against their elements."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poot_eval.conformance.inputs import anything
from poot_eval.kernel_ir import run_kernel
from poot_executor.compile import Caps
from poot_executor.compile.expression import Scene
from poot_executor.compile.indexing import linear, unravel
from poot_executor.compile.lower.draft import Frame
from poot_executor.dtype import BF16, F16, F32, I8, I32, U8, U32, DType, from_bytes, to_bytes
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access

QUICK = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
DTYPES = [F32, F32, I32, U32, F16, BF16, I8, U8]


# Movements written for both: what the graph records, what numpy does


def reshaped(draw, x, array):
    shapes = factors(array.size)
    shape = draw(st.sampled_from(shapes))
    return p.reshape(x, shape), array.reshape(shape)


def factors(count):
    """Shapes of up to four axes, ones among them."""
    found = [(count,), (1, count), (count, 1)]
    for a in range(2, count + 1):
        if count % a == 0:
            rest = count // a
            found += [(a, rest), (a, 1, rest)]
            found += [(a, b, rest // b) for b in range(2, rest) if rest % b == 0]
    return found


def transposed(draw, x, array):
    order = tuple(draw(st.permutations(range(array.ndim))))
    return p.transpose(x, order), array.transpose(order)


def sliced(draw, x, array):
    start = [draw(st.integers(0, min(2, d - 1))) for d in array.shape]
    stop = [draw(st.integers(low + 1, d)) for low, d in zip(start, array.shape, strict=True)]
    step = [draw(st.integers(1, 2)) for _ in start]
    return p.slice_(x, start, stop, step), array[tuple(slice(*b) for b in zip(start, stop, step, strict=True))]


def broadcasted(draw, x, array):
    shape = tuple(draw(st.integers(1, 4)) if d == 1 else d for d in array.shape)
    return p.broadcast(x, shape), np.broadcast_to(array, shape)


def concatenated(draw, x, array):
    axis = draw(st.integers(0, array.ndim - 1))
    count = draw(st.integers(1, 3))
    return p.concat([x] * count, axis), np.concatenate([array] * count, axis)


def padded(draw, x, array):
    low, high = ([draw(st.integers(0, 2)) for _ in array.shape] for _ in "lh")
    number = draw(st.sampled_from([0, 3, -2] if array.dtype.kind != "u" else [0, 3]))
    wide = np.pad(array, list(zip(low, high, strict=True)), constant_values=number)
    return p.pad(x, low, high, float(number) if x.dtype.is_float else number), wide


def gathered(draw, x, array):
    index = np.array(draw(st.lists(st.integers(0, len(array) - 1), min_size=1, max_size=4)), np.int32)
    if draw(st.booleans()):
        index = index[:, None]
    return p.gather(x, x.builder.computed(index, I32)), array[index]


def numbered(draw, x, array):
    """x plus the number of its place along an axis, where that is exact."""
    if x.dtype not in (F32, I32):
        return x, array
    axis = draw(st.integers(0, array.ndim - 1))
    line = np.arange(array.shape[axis], dtype=array.dtype).reshape([-1 if i == axis else 1 for i in range(array.ndim)])
    return x + p.iota(x.builder, array.shape, axis, x.dtype), array + line


def negated(draw, x, array):
    return (-x, -array) if x.dtype in (F32, F16, BF16, I32) else (x, array)


MOVES = [reshaped, reshaped, transposed, sliced, broadcasted, concatenated, padded, gathered, numbered, negated]
SHAPES = [(4,), (3, 4), (2, 3, 4), (8, 1), (1, 8), (2, 1, 4), (4, 4), (12,)]
KEY = SlotKey(SlotKind.INPUT, "x")


@st.composite
def chains(draw):
    """A value at the end of a chain of movements, its graph, its input, and what numpy makes of that."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from(DTYPES))
    array = anything(rng, draw(st.sampled_from(SHAPES)), dtype)
    if dtype is F32 or dtype is I32:
        array = (array % 100).astype(array.dtype)
    b = Builder("chain")
    x = b.slot(KEY, TensorType(array.shape, dtype))
    given_ = array
    for _ in range(draw(st.integers(1, 6))):
        y, moved = draw(st.sampled_from(MOVES))(draw, x, array)
        if moved.size <= 96 and moved.ndim <= 5:
            x, array = y, moved
    b.output("y", x)
    return b.build(), x.value, given_, np.ascontiguousarray(array)


def emit(graph, value, body):
    """A kernel whose `body(frame, out)` writes held elements of `value` to f32 or i32 words; its operands' inputs."""
    scene = Scene(graph, frozenset(i.value for i in graph.inputs), {})
    frame = Frame(scene, Caps(), "expression", 4)
    frame.read(value)
    held = DType.F32 if value.dtype.is_float else (DType.U32 if value.dtype is U32 else DType.I32)
    out = frame.b.buffer("out", held, Access.READ_WRITE)
    body(frame, out)
    return frame.b.finish(), [o.value for o in frame.operands], held


def run(graph, value, given_, body, count):
    kernel, operands, held = emit(graph, value, body)
    buffers = []
    for operand in operands:
        data = given_ if graph.input(operand).key == KEY else graph.input(operand).data
        raw = to_bytes(data, operand.dtype)
        raw += bytes(-len(raw) % 4)
        words = operand.dtype if operand.dtype.size == 4 else U32
        buffers.append(np.frombuffer(raw, words.numpy).copy())
    buffers.append(np.full(count, 99, held.numpy))
    faults = run_kernel(kernel, buffers, (1, 1, 1))
    assert [f for f in faults if getattr(f, "access", "store") != "load"] == []
    return buffers[-1]


def elements(value):
    def body(frame, out):
        b = frame.b
        with b.range(b.thread_id(), value.type.count, 4, name="place") as place:
            out[place] = frame.element(value, unravel(b, place, value.shape))

    return body


def vectors(value, axis):
    """Four neighbours along an axis at a time."""
    fours = (*value.shape[:axis], value.shape[axis] // 4, *value.shape[axis + 1 :])

    def body(frame, out):
        b = frame.b
        with b.range(b.thread_id(), prod(fours), 4, name="place") as place:
            index = unravel(b, place, fours)
            index = (*index[:axis], index[axis] * 4, *index[axis + 1 :])
            found = frame.emission.vector(value, index, axis)
            for lane in range(4):
                at = linear(b, (*index[:axis], index[axis] + lane, *index[axis + 1 :]), value.shape)
                out[at] = found if found.width == 1 else found[lane]

    return body


def held_exactly(array, dtype):
    return array.astype(np.float32 if dtype.is_float else (np.uint32 if dtype is U32 else np.int32))


@QUICK
@given(chains())
def test_an_element_is_numpy_s(case):
    graph, value, given_, expected = case
    got = run(graph, value, given_, elements(value), value.type.count)
    assert np.array_equal(got, held_exactly(expected, value.dtype).ravel())


@QUICK
@given(chains(), st.data())
def test_a_vector_is_its_elements(case, data):
    graph, value, given_, expected = case
    axes = [i for i, extent in enumerate(value.shape) if extent % 4 == 0]
    if not axes:
        return
    axis = data.draw(st.sampled_from(axes))
    got = run(graph, value, given_, vectors(value, axis), value.type.count)
    assert np.array_equal(got, held_exactly(expected, value.dtype).ravel())


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_linear_and_unravel_are_inverse(shape):
    b = KernelBuilder("index", 1)
    out = b.buffer("out", DType.I32, Access.READ_WRITE)
    with b.range(0, prod(shape), name="place") as place:
        index = unravel(b, place, tuple(shape))
        out[place] = linear(b, index, tuple(shape))
        for axis, i in enumerate(index):
            out[(axis + 1) * prod(shape) + place] = i
    words = np.zeros((len(shape) + 1) * prod(shape), np.int32)
    assert run_kernel(b.finish(), [words], (1, 1, 1)) == []
    count = prod(shape)
    assert np.array_equal(words[:count], np.arange(count))
    for axis, places in enumerate(np.unravel_index(np.arange(count), shape)):
        assert np.array_equal(words[(axis + 1) * count : (axis + 2) * count], places)


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
def test_a_contiguous_vector_is_one_load(dtype):
    """Through reshape and transpose of other axes, and elementwise work; not along a strided axis."""
    b = Builder("loads")
    x = b.slot(KEY, TensorType((3, 2, 8), dtype))
    moved = p.transpose(p.reshape(x, (3, 2, 2, 4)), (1, 0, 2, 3))
    b.output("y", p.cast(moved, F32) * 2.0)
    graph = b.build()
    value = graph.outputs["y"]

    def loads(axis):
        kernel, _, _ = emit(graph, value, vectors(value, axis))
        return [op.attrs["width"] for op in kernel.body.walk() if op.kind == "load"]

    assert loads(3) == [4 if dtype is F32 else 2]
    b = Builder("strided")
    b.output("y", p.transpose(b.slot(KEY, TensorType((4, 8), dtype)), (1, 0)))
    graph = b.build()
    value = graph.outputs["y"]
    assert len(loads(1)) == 4


def test_what_several_places_ask_for_is_emitted_once():
    b = Builder("shared")
    x = p.exp(b.slot(KEY, TensorType((8,), F32)))
    b.output("y", x * x + x)
    graph = b.build()
    value = graph.outputs["y"]
    for body in (elements(value), vectors(value, 0)):
        kernel, _, _ = emit(graph, value, body)
        assert [op.kind for op in kernel.body.walk()].count("exp") == 1


def test_values_supplied_anew_are_computed_anew():
    """What stood for a value before is not remembered."""
    b = Builder("supplied")
    x = b.slot(KEY, TensorType((4,), F32))
    total = p.sum_(x, 0)
    b.output("y", p.broadcast(p.reshape(total, (1,)), (4,)) + x)
    graph = b.build()
    value, row = graph.outputs["y"], graph.equations[0].output
    scene = Scene(graph, frozenset(i.value for i in graph.inputs), {})
    frame = Frame(scene, Caps(), "supplied", 1)
    frame.read(value, supplied=[row])
    out = frame.b.buffer("out", DType.F32, Access.READ_WRITE)
    for place, number in enumerate((10.0, 20.0)):
        frame.supply(row, lambda _index, number=number: frame.b.const(number, DType.F32))
        out[place] = frame.element(value, (frame.b.const(1, DType.I32),))
    buffers = [np.arange(4, dtype=np.float32), np.zeros(2, np.float32)]
    assert run_kernel(frame.b.finish(), buffers, (1, 1, 1)) == []
    assert buffers[1].tolist() == [11.0, 21.0]


def test_bytes_are_read_back_as_they_were_written():
    values = np.array([1.5, -2.25, 0.0], np.float32)
    assert np.array_equal(from_bytes(to_bytes(values, BF16), BF16, (3,)), values)
