"""HIP rules of matrix fragments, in shared memory: a value is one register tuple of every lane of its wave."""

from __future__ import annotations

from poot_executor.errors import Unsupported
from poot_executor.kernel.fragments import FragmentShape, FragmentType, Use
from poot_executor.kernel.ir import Op
from poot_rocm_device.emitter import Emitter
from poot_rocm_device.fragment_text import factor_kind
from poot_rocm_device.rules import RULES


def _known(e: Emitter, op: Op, type: object) -> FragmentType:
    """A type that some product of the device has. Raises Unsupported for any other."""
    assert isinstance(type, FragmentType)
    if not any(type in (shape.a, shape.b, shape.sum) for shape in e.caps.fragments):
        raise Unsupported(f"rocm: {op.kind} in kernel {e.kernel.name}", f"this device has no fragment {type}")
    e.uses_fragments = True
    return type


def _address(e: Emitter, op: Op, type: FragmentType) -> str:
    """Where a fragment begins, so that all of it lies inside its array."""
    if "array" not in op.attrs:
        reason = "this device has fragments of shared memory alone"
        raise Unsupported(f"rocm: {op.kind} of a buffer in kernel {e.kernel.name}", reason)
    array, major, index = op.attrs["array"], op.attrs["major"], op.operands[0]
    extent = (type.lines(major) - 1) * op.attrs["stride"] + type.line_words(major)
    last, known, text = e.kernel.shared[array].count - extent, e.range_of(index), e.scalar(index)
    if last < 0:
        raise Unsupported(f"rocm: {op.kind} in kernel {e.kernel.name}", f"{extent} words of a smaller array")
    inside = known.low >= 0 and known.high <= last
    return f"s{array} + {text if inside else f'poot_near({text}, {last}u)'}"


@RULES.rule("fragment_zero")
def _zero(e: Emitter, op: Op) -> None:
    _known(e, op, op.result.type)
    e.define(op, [f"poot_zero_{op.result.dtype}()"])


@RULES.rule("fragment_load")
def _load(e: Emitter, op: Op) -> None:
    type = _known(e, op, op.result.type)
    address, stride, rows = _address(e, op, type), op.attrs["stride"], op.attrs["major"] == "row"
    if type.use is Use.SUM:
        e.define(op, [f"poot_load_sum_{type.dtype}<{stride}, {str(rows).lower()}>({address})"])
        return
    # A lane's elements of the depth are neighbours in a line of their own, or lie one in each line.
    how = "lines" if rows == (type.use is Use.A) else "across"
    depth = type.columns if type.use is Use.A else type.rows
    e.define(op, [f"poot_load_{how}_{factor_kind(type)}<{depth}, {stride}>({address})"])


@RULES.rule("fragment_store")
def _store(e: Emitter, op: Op) -> None:
    type = _known(e, op, op.operands[1].type)
    address, rows = _address(e, op, type), str(op.attrs["major"] == "row").lower()
    e.line(f"poot_store_sum_{type.dtype}<{op.attrs['stride']}, {rows}>({address}, {e.scalar(op.operands[1])});")


@RULES.rule("fragment_mma")
def _mma(e: Emitter, op: Op) -> None:
    a, b, c = (_known(e, op, value.type) for value in op.operands)
    shape = FragmentShape(a.rows, b.columns, a.columns, a.dtype, c.dtype)
    if shape not in e.caps.fragments:
        raise Unsupported(f"rocm: {op.kind} in kernel {e.kernel.name}", f"this device has no product {shape}")
    e.define(op, [f"poot_mma_{a.dtype}({', '.join(e.scalar(value) for value in op.operands)})"])


@RULES.rule("fragment_fma")
def _fma(e: Emitter, op: Op) -> None:
    _known(e, op, op.result.type)
    e.define(op, [f"poot_fma_{op.result.dtype}({', '.join(e.scalar(value) for value in op.operands)})"])
