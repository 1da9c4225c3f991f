"""SPIR-V of matrix fragments. The golden file lists instructions by their numbers' names, since the disassembler of
older spirv-tools knows no cooperative matrices; rewrite it by `pytest --update-spirv`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_executor.compile import compile
from poot_executor.compile.target import Caps, Target
from poot_executor.dtype import BF16, F16, F32, I8, I32, U32, DType
from poot_executor.errors import Unsupported
from poot_executor.formats import FORMATS, Format
from poot_executor.graph.builder import Builder
from poot_executor.graph.functional import linear, stored_weight, swiglu
from poot_executor.graph.graph import Graph, TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.fragments import FragmentShape
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.known_fragments import fragment_case
from poot_executor.weights import WeightKey
from poot_vulkan_device.emit import emit
from poot_vulkan_device.features import FRAGMENT_BUFFERS
from poot_vulkan_device.spirv import Code

GOLDEN = Path(__file__).parent / "golden" / "fragments.txt"
SHAPES = (
    FragmentShape(16, 16, 16, F16, F32),
    FragmentShape(16, 16, 16, BF16, F32),
    FragmentShape(8, 8, 8, F16, F32),
    FragmentShape(16, 16, 32, I8, I32),
)
CAPS = Caps(
    max_group_size=1024,
    subgroup_width=32,
    features=frozenset({"subgroup", "fragments", FRAGMENT_BUFFERS}),
    fragments=SHAPES,
)


def instructions(code: bytes) -> Iterator[tuple[int, list[int]]]:
    """Each instruction of a module: its code and its words."""
    words = np.frombuffer(code, np.uint32).tolist()[5:]
    while words:
        count, kind = words[0] >> 16, words[0] & 0xFFFF
        yield kind, words[1:count]
        words = words[count:]


def listing(code: bytes) -> str:
    """A line an instruction: its name and its words."""
    names = {int(c): c.name.lower() for c in Code}
    return "".join(f"{names[kind]} {' '.join(map(str, words))}\n" for kind, words in instructions(code))


def test_code_is_as_recorded(request: pytest.FixtureRequest) -> None:
    found = listing(emit(fragment_case(SHAPES[0], 32).kernel, CAPS))
    if request.config.getoption("--update-spirv"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text(), "run pytest --update-spirv if this is meant"


def exchanging() -> Kernel:
    """Fragments beside everything that the memory model changes: exchanged buffers, atomics, checks, vectors."""
    b = KernelBuilder("exchanging", 64)
    x, y = b.buffer("x", F32, Access.READ_WRITE), b.buffer("y", U32, Access.READ_WRITE)
    place = b.subgroup_id() * 256
    total = x.load_fragment(place, SHAPES[0].sum, 16)
    x.store_fragment(place, b.fragment_fma(total, total, b.fragment_zero(SHAPES[0].sum)), 16, "column")
    b.barrier()
    y.atomic("max", 0, b.cast(x[b.thread_id()], U32))
    x.store(b.thread_id() * 4, x.load(b.thread_id() * 4, 4))
    b.check(x[0] < 1.0, 3)
    return b.finish()


def newer(tool: Any) -> int:
    """The year of spirv-val; a skip where it is too old for cooperative matrices."""
    version = subprocess.run([tool("spirv-val"), "--version"], capture_output=True, text=True, check=True).stdout
    year = re.search(r"v(\d+)\.(\d+)", version)
    assert year is not None
    if (int(year[1]), int(year[2])) < (2023, 4):
        pytest.skip("this spirv-tools knows no cooperative matrices: 2023.4 does")
    return int(year[1])


def validate(tool: Any, path: Path, code: bytes) -> None:
    """spirv-val says nothing."""
    path.write_bytes(code)
    done = subprocess.run(
        [tool("spirv-val"), "--target-env", "vulkan1.1", str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_spirv_val_accepts_every_operation_on_fragments(tool: Any, tmp_path: Path) -> None:
    known = [s for s in SHAPES if s.element is not BF16 or newer(tool) > 2025]
    for kernel in (*(fragment_case(shape, 32).kernel for shape in known), exchanging()):
        validate(tool, tmp_path / "module.spv", emit(kernel, CAPS))


def test_fragments_of_buffers_need_robust_access() -> None:
    with pytest.raises(Unsupported, match=r"fragment_load of a buffer in kernel exchanging: .* fragment_buffers"):
        emit(exchanging(), replace(CAPS, features=CAPS.features - {FRAGMENT_BUFFERS}))


def gated(format: Format, activations: DType) -> Graph:
    """Forty rows through two products with a gate."""
    b = Builder("gated")
    x = b.slot(SlotKey(SlotKind.INPUT, "x"), TensorType((40, 64), F32))
    gate, up = (stored_weight(b, WeightKey(0, role), format, (64, 64)) for role in ("gate", "up"))
    gate, up = (linear(x, weight, format, activations=activations) for weight in (gate, up))
    b.output("y", swiglu(gate, up))
    return b.build()


@pytest.mark.parametrize(
    ("format", "activations"), [("q4_1", F16), ("q8_0", F16), ("f16", F16), ("q4_1", F32), ("bf16", BF16)]
)
def test_spirv_val_accepts_tiles_of_fragments(tool: Any, tmp_path: Path, format: str, activations: DType) -> None:
    if newer(tool) <= 2025 and activations is not F16:
        pytest.skip("this spirv-tools knows no bf16")
    features = CAPS.features | {"pack_half", "unpack_half"}
    caps = replace(CAPS, max_bindings=31, max_shared_bytes=48 << 10, many_rows=9, features=features)
    (dispatch,) = compile(gated(FORMATS[format], activations), Target("vulkan", caps)).dispatches
    assert any(op.kind == "fragment_mma" for op in dispatch.kernel.body.walk())
    validate(tool, tmp_path / "module.spv", emit(dispatch.kernel, caps))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_module_with_fragments_is_in_the_vulkan_memory_model(shape: FragmentShape) -> None:
    found = list(instructions(emit(fragment_case(shape, 32).kernel, CAPS)))
    assert [words for kind, words in found if kind == Code.MEMORY_MODEL] == [[0, 3]]
    carried = [words for kind, words in found if kind == Code.TYPE_POINTER and words[1] == 7]
    assert carried, "a loop carries sums in a variable of the function"
    signed = [words[5:] for kind, words in found if kind == Code.COOPERATIVE_MATRIX_MUL_ADD]
    assert all(words == ([15] if shape.element is I8 else []) for words in signed) and signed


def test_a_product_that_the_device_lacks_is_named() -> None:
    kernel = fragment_case(FragmentShape(16, 8, 16, F16, F32), 32).kernel
    with pytest.raises(Unsupported, match="this device has no product 16x8x16 f16 to f32"):
        emit(kernel, CAPS)
    with pytest.raises(Unsupported, match="this device lacks fragments"):
        emit(kernel, Caps(features=frozenset({"subgroup"}), subgroup_width=32))
