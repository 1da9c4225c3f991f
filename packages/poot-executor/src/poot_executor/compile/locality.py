"""How far an epilogue looks: does an element of a value depend on products of its own aligned block alone?

Cut the row-major order of a contraction's products into blocks (the columns of one head). A movement is local when it
stays behind an axis split that counts whole blocks: a rotation of pairs, a norm over the head, a slice of it. Then a
group of threads that has whole blocks of products can finish them.
"""

from __future__ import annotations

from math import prod

from poot_executor.compile.classify import ELEMENTWISE, REDUCTIONS
from poot_executor.compile.reading import reads
from poot_executor.graph.graph import Equation, Graph, Value


def is_local(graph: Graph, value: Value, product: Value, block: int, stride: int, stored: frozenset[Value]) -> bool:
    """Does every element of `value` read `product` only inside the block (of `block` elements) that it belongs to
    itself?

    Elements belong to blocks by row-major order, value and product having equally many blocks. With a `stride` above 1
    it must besides read only places of the block that equal its own modulo `stride`.
    """
    count = product.type.count // block
    known: dict[Value, bool] = {}

    def local(v: Value) -> bool:
        if v not in known:
            known[v] = v == product or not reads(graph, v, product, stored) or _step(v)
        return known[v]

    def _step(v: Value) -> bool:
        equation = graph.equation(v)
        assert equation is not None
        if (
            v in stored
            or not _keeps_blocks(equation, count)
            or (stride > 1 and not _keeps_places(equation, count, stride))
        ):
            return False
        return all(local(operand) for operand in equation.inputs)

    return local(value)


def _keeps_blocks(equation: Equation, count: int) -> bool:
    """Does an operation map block i to block i, whatever it does inside?"""
    source = equation.inputs[0]
    op = equation.op
    if op in ELEMENTWISE or op == "reshape":
        return True  # the row-major order stays
    before, after = _split(source.shape, count), _split(equation.output.shape, count)
    if before is None or after is None:
        return False
    params = equation.params
    match op:
        case "transpose":
            return params["permutation"][:after] == tuple(range(after))
        case "broadcast":
            return source.shape[:before] == equation.output.shape[:before]
        case "slice":
            lead = range(before)
            return all(
                params["start"][a] == 0 and params["step"][a] == 1 and params["stop"][a] == source.shape[a]
                for a in lead
            )
        case "pad":
            return all(params["low"][a] == 0 and params["high"][a] == 0 for a in range(before))
        case "concat":
            return params["axis"] >= after and all(_split(v.shape, count) is not None for v in equation.inputs)
        case _ if op in REDUCTIONS:
            return params["axis"] >= before
    return False


def _keeps_places(equation: Equation, count: int, stride: int) -> bool:
    """Does an operation keep places modulo `stride`, the blocks being the last axis (or a part of it) throughout?"""
    op, source, output = equation.op, equation.inputs[0], equation.output
    if op in ELEMENTWISE:
        return True
    params = equation.params
    if op == "reshape":
        # Only leading axes may change, unless it splits the products into blocks.
        return source.shape[-1:] == output.shape[-1:] or prod(output.shape[:-1]) == count
    if any(
        prod(shape[:-1]) != count or shape[-1] % stride for shape in (*(v.shape for v in equation.inputs), output.shape)
    ):
        return False
    last = len(output.shape) - 1
    match op:
        case "slice":
            return params["start"][last] % stride == 0 and params["step"][last] == 1
        case "concat":
            return params["axis"] == last
        case "pad":
            return params["low"][last] % stride == 0
        case "broadcast":
            return source.shape == output.shape
    return False


def _split(shape: tuple[int, ...], count: int) -> int | None:
    """The first axis that lies inside a block, where leading axes count the blocks exactly; None where none do."""
    for axis in range(len(shape) + 1):
        if prod(shape[:axis]) == count:
            return axis
    return None
