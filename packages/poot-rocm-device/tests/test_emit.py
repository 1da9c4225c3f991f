"""The emitter alone: no compiler, no GPU. Golden files are rewritten by `pytest --update-hip` and read as diffs."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from poot_eval.conformance.sample_kernels import scaled_sum, silu, tile_max
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.fragments import FragmentShape
from poot_executor.kernel.ir import KERNEL_OPS, Access, Block, Kernel, SharedArray
from poot_executor.kernel.passes import optimize
from poot_rocm_device.architecture import ARCHITECTURES, architecture_named, architecture_of
from poot_rocm_device.caps import caps_of, products
from poot_rocm_device.emit import emit, emit_module
from poot_rocm_device.emit_scalar import literal_of
from poot_rocm_device.emitter import entry_name
from poot_rocm_device.kernarg import Kernarg
from poot_rocm_device.prelude import prelude
from poot_rocm_device.rules import RULES

GOLDEN = Path(__file__).parent / "golden"
GFX1100, GFX90A = (caps_of(architecture_named(name)) for name in ("gfx1100", "gfx90a"))
F32, I32, U32, BOOL = DType.F32, DType.I32, DType.U32, DType.BOOL
READ, WRITE = Access.READ, Access.READ_WRITE


def row_sum(threads: int = 128, width: int = 32) -> Kernel:
    """A reduction over a group, lowered as the compiler does."""
    b = KernelBuilder("row_sum", threads)
    x, y = b.buffer("x", F32, WRITE), b.buffer("y", F32, WRITE)
    y[b.group_id()] = b.group_sum(x[b.group_id() * threads + b.thread_id()])
    return optimize(b.finish(), subgroup=True, subgroup_width=width)


KERNELS: dict[str, tuple[Callable[[], Kernel], Caps]] = {
    "scaled_sum": (scaled_sum, GFX1100),
    "tile_max": (tile_max, GFX1100),
    "silu": (silu, GFX1100),
    "row_sum": (row_sum, GFX1100),
    "row_sum_wide": (lambda: row_sum(width=64), GFX90A),
}


def after_prelude(text: str, caps: Caps) -> str:
    architecture = architecture_of(caps.features)
    return text.partition(prelude(architecture.wave, mixed_dot=architecture.mixed_dot))[2]


def test_every_operation_has_a_rule() -> None:
    # A block ends in its yield: whoever emits the block takes the values.
    for architecture in ARCHITECTURES:
        features = caps_of(architecture, fragments=products(architecture)).features
        offered = {name for name, row in KERNEL_OPS.items() if row.needs is None or row.needs in features}
        assert RULES.missing(offered - {"yield"}) == ()


@pytest.mark.parametrize("name", KERNELS)
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    make, caps = KERNELS[name]
    text, path = after_prelude(emit(make(), caps), caps), GOLDEN / f"{name}.hip"
    if request.config.getoption("--update-hip"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    before = path.read_text() if path.exists() else ""
    assert text == before, "".join(difflib.unified_diff(before.splitlines(True), text.splitlines(True)))


def test_equal_kernels_give_equal_text() -> None:
    for make, caps in KERNELS.values():
        assert emit(make(), caps) == emit(make(), caps)


def test_kernels_of_one_module_share_what_comes_before_them() -> None:
    kernels = [silu(), tile_max()]
    text = emit_module(kernels, GFX1100)
    assert text.count("POOT_INLINE f32 poot_exp(") == 1 and text.count("#define POOT_WAVE") == 1
    assert all(f"{entry_name(kernel)}(" in text for kernel in kernels)


def test_a_symbol_names_the_content() -> None:
    names = {entry_name(kernel) for kernel in (silu(), silu(), tile_max(), row_sum(64), row_sum(128))}
    assert len(names) == 4 and all(re.fullmatch(r"[A-Za-z_]\w*_[0-9a-f]{16}", name) for name in names)
    b = KernelBuilder("a name: no symbol", 64)
    b.buffer("y", I32, WRITE)[0] = 1
    assert entry_name(b.finish()).startswith("a_name__no_symbol_")


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        (F32, 0.0, "0x0p+0f"),
        (F32, -0.0, "(-0x0p+0f)"),
        (F32, 1.5, "0x1.8p+0f"),
        (F32, -0.1, "(-0x1.99999ap-4f)"),
        (F32, 1e-45, "0x1p-149f"),
        (F32, math.inf, "poot_bits<f32>(0x7f800000u)"),
        (F32, -math.inf, "poot_bits<f32>(0xff800000u)"),
        (F32, math.nan, "poot_bits<f32>(0x7fc00000u)"),
        (I32, -(1 << 31), "(-2147483647 - 1)"),
        (I32, -5, "(-5)"),
        (U32, (1 << 32) - 1, "4294967295u"),
        (BOOL, True, "true"),
    ],
)
def test_constants_are_written_exactly(dtype: DType, value: float, text: str) -> None:
    assert literal_of(dtype, value) == text


def copies() -> Kernel:
    b = KernelBuilder("copy", 64)
    x, y = b.buffer("x", F32, READ), b.buffer("y", F32, WRITE)
    i = b.group_id() * 64 + b.thread_id()
    y[i] = x[i + 64]
    return optimize(b.finish(), subgroup=True, subgroup_width=32)


def test_an_access_inside_what_every_launch_binds_has_no_guard() -> None:
    guarded = after_prelude(emit(copies(), GFX1100), GFX1100)
    assert "poot_near(" in guarded and re.search(r"if \(\(u32\)v\d+ < n1\) \*", guarded)
    # 4 groups touch 256 elements of y and end at element 320 of x.
    bare = after_prelude(emit(copies().launched((320, 256), (4, 1, 1)), GFX1100), GFX1100)
    assert "poot_near(" not in bare and "if (" not in bare and ") + 64)" in bare
    short = after_prelude(emit(copies().launched((319, 255), (4, 1, 1)), GFX1100), GFX1100)
    assert "poot_near(" in short and "if (" in short


def test_an_index_of_shared_memory_is_guarded_unless_it_is_known_to_be_inside() -> None:
    b = KernelBuilder("shared", 64)
    x, y = b.buffer("x", I32, READ), b.buffer("y", I32, WRITE)
    tile = b.shared("tile", I32, 64)
    tile[b.thread_id()] = x[b.thread_id()]
    b.barrier()
    tile[x[0]] = 1
    y[b.thread_id()] = tile[x[b.thread_id()]] + tile[b.thread_id()]
    text = after_prelude(emit(b.finish(), GFX1100), GFX1100)
    assert (
        len(re.findall(r"if \(\(u32\)v\d+ < 64u\) \*\(s0", text)) == 1 and len(re.findall(r"\*\(s0 .*\) =", text)) == 2
    )
    assert len(re.findall(r"s0 \+ poot_near\(v\d+, 63u\)", text)) == 1


def test_only_buffers_that_nothing_writes_are_told_to_be_apart() -> None:
    assert "(f32 *p0, f32 *p1, const u32 n0" in emit(row_sum(), GFX1100)
    assert "(const f32 *__restrict__ p0, f32 *p1, const u32 n0" in emit(copies(), GFX1100)


def test_arguments_lie_as_the_parameters_do() -> None:
    text = emit(tile_max(), GFX1100)
    assert "(const i32 *__restrict__ p0, i32 *p1, u32 *fault, const u32 n0, const u32 n1)" in text
    layout = Kernarg(2, checks=True)
    assert (layout.fault, layout.counts, layout.nbytes) == (16, 24, 32)
    packed = layout.pack([1, 2], [3, 4], 5)
    assert packed == b"".join(word.to_bytes(8, "little") for word in (1, 2, 5, 3 | 4 << 32))
    assert Kernarg(1, checks=False).pack([1 << 40], [7], None) == (1 << 40).to_bytes(8, "little") + bytes([7, 0, 0, 0])
    for wrong in (([1], [3, 4], 5), ([1, 2], [3, 4], None)):
        with pytest.raises(ValueError, match="addresses and"):
            layout.pack(*wrong)


@pytest.mark.parametrize("threads", [8, 20, 32, 48, 64, 96, 128])
def test_whole_waves_are_reduced_by_steps_and_others_one_by_one(threads: int) -> None:
    for width, caps in ((32, GFX1100), (64, GFX90A)):
        b = KernelBuilder("reduced", threads)
        y = b.buffer("y", F32, WRITE)
        y[b.thread_id()] = b.subgroup_sum(y[b.thread_id()])
        text = after_prelude(emit(b.finish(), caps), caps)
        size = min(threads, width)
        whole = threads % size == 0 and size & (size - 1) == 0
        assert (f"poot_reduce<poot_add, {size}>(" in text) == whole
        assert ("poot_reduce_some<poot_add>(" in text) == (not whole)


def test_what_the_device_lacks_is_refused_by_name() -> None:
    plain = Caps(max_group_size=1024, max_shared_bytes=1 << 15, features=frozenset({"gfx1100"}))
    with pytest.raises(Unsupported, match="subgroup_shuffle in kernel tile_max: this device lacks subgroup"):
        emit(tile_max(), plain)
    with pytest.raises(Unsupported, match="128 threads a group, the device has 64"):
        emit(row_sum(), Caps(max_group_size=64, features=GFX1100.features))
    with pytest.raises(Unsupported, match="2 buffers, the device has 1"):
        emit(row_sum(), Caps(max_bindings=1, features=GFX1100.features))
    big = Kernel("big", (), (SharedArray("tile", F32, (1 << 14) + 1),), 32, Block((), ()))
    with pytest.raises(Unsupported, match="65,540 bytes of shared memory, the device has 65,536"):
        emit(big, GFX1100)
    with pytest.raises(Unsupported, match="the capabilities name none of gfx90a"):
        emit(silu(), Caps())
    b = KernelBuilder("mean", 8)
    x = b.buffer("x", F32, WRITE)
    x[b.thread_id()] = b.group_sum(x[b.thread_id()])
    with pytest.raises(Unsupported, match="no rule for operation group_sum"):
        emit(b.finish(), GFX1100)


def test_fragments_are_those_of_the_architecture_in_shared_memory() -> None:
    assert not products(architecture_named("gfx1030")) and not GFX1100.fragments
    caps = caps_of(architecture_named("gfx1100"), fragments=products(architecture_named("gfx1100")))
    shape, bytes_ = caps.fragments[0], FragmentShape(16, 16, 16, DType.I8, I32)
    b = KernelBuilder("beside", 32)
    words, y = b.buffer("words", U32, READ), b.buffer("y", F32, WRITE)
    tile = b.shared("tile", U32, 16 * 8 + 3)
    tile.load_fragment(b.subgroup_id() * y.length(), shape.a, 8)
    tile.load_fragment(3, shape.b, 8, "row")
    y[0] = b.cast(words[0], F32)
    text = after_prelude(emit(b.finish(), caps), caps)
    # Wherever it begins, all of it lies in the array.
    assert re.search(r"poot_load_lines_halves<16, 8>\(s0 \+ poot_near\(v\d+, 3u\)\)", text)
    assert "poot_load_across_halves<16, 8>(s0 + 3)" in text
    with pytest.raises(Unsupported, match="fragment_load in kernel beside: this device lacks fragments"):
        emit(b.finish(), GFX1100)
    for other, message in (
        (lambda b: b.buffer("w", U32, READ).load_fragment(0, shape.a, 8), "has fragments of shared memory alone"),
        (lambda b: b.shared("t", U32, 100).load_fragment(0, shape.a, 8), "128 words of a smaller array"),
        (lambda b: b.fragment_zero(FragmentShape(8, 8, 16, DType.I8, I32).sum), "has no fragment i32_sum_8x8"),
    ):
        b = KernelBuilder("other", 32)
        other(b)
        with pytest.raises(Unsupported, match=message):
            emit(b.finish(), caps)
    # One whose known answer was wrong is as good as none.
    b = KernelBuilder("whole", 32)
    b.fragment_zero(bytes_.sum)
    emit(b.finish(), caps)
    with pytest.raises(Unsupported, match="has no fragment i32_sum_16x16"):
        emit(b.finish(), replace(caps, fragments=caps.fragments[:2]))


def test_an_agents_name_is_an_architecture() -> None:
    assert architecture_named("gfx90a:sramecc+:xnack-").wave == 64
    with pytest.raises(Unsupported, match="gfx803 is none of gfx90a, gfx942"):
        architecture_named("gfx803")
