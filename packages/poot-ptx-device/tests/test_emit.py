"""The emitter alone: no GPU. Golden files are rewritten by `pytest --update-ptx` and read as diffs."""

from __future__ import annotations

import difflib
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
from poot_executor.kernel.ir import KERNEL_OPS, Access, Block, Kernel, KType, Op, Param, SharedArray, Val
from poot_executor.kernel.passes import optimize
from poot_ptx_device.architecture import ARCHITECTURES, Architecture, architecture_of, best_architecture
from poot_ptx_device.caps import DEPENDENT_LAUNCH, EARLY_BYTES, EARLY_LAUNCH, EARLY_LOADS, caps_of
from poot_ptx_device.emit import emit
from poot_ptx_device.emitter import Guards
from poot_ptx_device.rules import RULES

GOLDEN = Path(__file__).parent / "golden"
BY_NAME = {architecture.name: architecture for architecture in ARCHITECTURES}
SM_90 = caps_of(BY_NAME["sm_90"], options=frozenset())

F32, I32, U32, BOOL, F16 = DType.F32, DType.I32, DType.U32, DType.BOOL, DType.F16
READ, WRITE = Access.READ, Access.READ_WRITE

Assemble = Callable[[str, str], str]


def row_sum(threads: int = 128, dtype: DType = F32) -> Kernel:
    """A reduction over a group, lowered as the compiler does."""
    b = KernelBuilder("row_sum", threads)
    x, y = b.buffer("x", dtype, WRITE), b.buffer("y", dtype, WRITE)
    y[b.group_id()] = b.group_sum(x[b.group_id() * threads + b.thread_id()])
    return optimize(b.finish(), subgroup=True, subgroup_width=32)


KERNELS: dict[str, Callable[[], Kernel]] = {
    "scaled_sum": scaled_sum, "tile_max": tile_max, "silu": silu, "row_sum": row_sum,
}  # fmt: skip


def test_every_operation_has_a_rule() -> None:
    # A block ends in its yield: whoever emits the block takes the values.
    features = caps_of(best_architecture((9, 0))).features
    offered = [name for name, row in KERNEL_OPS.items() if row.needs is None or row.needs in features]
    assert RULES.missing(set(offered) - {"yield"}) == ()


@pytest.mark.parametrize("name", KERNELS)
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    text = emit(KERNELS[name](), SM_90)
    path = GOLDEN / f"{name}.ptx"
    if request.config.getoption("--update-ptx"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    before = path.read_text() if path.exists() else ""
    assert text == before, "".join(difflib.unified_diff(before.splitlines(True), text.splitlines(True)))


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("guards", Guards)
def test_every_architecture_assembles(
    assemble: Assemble, architecture: Architecture, name: str, guards: Guards
) -> None:
    options = frozenset({DEPENDENT_LAUNCH, EARLY_LOADS} if architecture.dependent_launch else ())
    for chosen in {frozenset[str](), options}:
        report = assemble(emit(KERNELS[name](), caps_of(architecture, options=chosen), guards), architecture.name)
        assert "0 bytes spill stores" in report


def one_operation(kind: str, operands: list[KType], result: KType, **attrs: object) -> Kernel:
    """An operation whose operands are loaded, once a literal each, and whose result is stored."""
    ops: list[Op] = []

    def make(kind: str, operands: tuple[Val, ...], type: KType, **attrs: object) -> Val:
        value = Val(type)
        ops.append(Op(kind, operands, (value,), attrs))
        return value

    def value_of(type: KType, place: int, *, constant: bool) -> Val:
        number = {F32: 0.5, BOOL: True}.get(type.dtype, 2)
        if constant and type.width == 1:
            return make("const", (), type, value=number)
        index = make("const", (), KType(I32), value=place * 4)
        word = KType(U32 if type.dtype is BOOL else type.dtype, type.width)
        loaded = make("load", (index,), word, buffer=[F32, I32, U32].index(word.dtype), width=type.width)
        return loaded if word == type else make("cast", (loaded,), type)

    literals = [
        frozenset[int](),
        *(frozenset({place}) for place in range(len(operands))),
        frozenset(range(len(operands))),
    ]
    for constants in literals:
        given = tuple(value_of(type, place, constant=place in constants) for place, type in enumerate(operands))
        value = make(kind, given, result, **attrs)
        word = KType(U32 if result.dtype is BOOL else result.dtype, result.width)
        stored = value if word == result else make("cast", (value,), word)
        index = make("const", (), KType(I32), value=4 * len(ops) // 4 * 4)
        ops.append(Op("store", (index, stored), (), {"buffer": 3 + [F32, I32, U32].index(word.dtype)}))
    params = [Param(f"{access.value}_{dtype}", dtype, access) for access in (READ, WRITE) for dtype in (F32, I32, U32)]
    return Kernel(f"one_{kind}", tuple(params), (), 64, Block((), tuple(ops)))


def _operations() -> list[tuple[str, list[DType], DType]]:
    numbers, integers, every = (F32, I32, U32), (I32, U32), (F32, I32, U32, BOOL)
    table = [
        *((kind, [F32], F32) for kind in "exp log sqrt rsqrt sin cos tanh erf floor round".split()),
        *((kind, [dtype], dtype) for kind in ("neg", "abs") for dtype in numbers),
        *((kind, [dtype] * 2, dtype) for kind in ("add", "sub", "mul", "div", "min", "max") for dtype in numbers),
        *((kind, [dtype] * 2, dtype) for kind in ("rem", "shl", "shr") for dtype in integers),
        *((kind, [dtype] * 2, dtype) for kind in ("and", "or", "xor") for dtype in (*integers, BOOL)),
        *(("not", [dtype], dtype) for dtype in (*integers, BOOL)),
        *((kind, [dtype] * 2, BOOL) for kind in ("lt", "le", "gt", "ge") for dtype in numbers),
        *((kind, [dtype] * 2, BOOL) for kind in ("eq", "ne") for dtype in every),
        *(("select", [BOOL, dtype, dtype], dtype) for dtype in every),
        *(("cast", [source], target) for source in every for target in every),
        *(("bitcast", [source], target) for source in numbers for target in numbers),
        ("pow", [F32, F32], F32), ("fma", [F32] * 3, F32), ("mulhi", [U32, U32], U32),
        ("half_to_float", [U32], F32), ("float_to_half", [F32], U32),
    ]  # fmt: skip
    return [(kind, list(operands), result) for kind, operands, result in table]


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
@pytest.mark.parametrize("width", [1, 2, 4])
def test_operations_of_every_type_assemble(assemble: Assemble, architecture: Architecture, width: int) -> None:
    """Each with every operand in turn a literal; all as one module, so that the assembler starts once."""
    caps = caps_of(architecture)
    texts = [
        emit(one_operation(kind, [KType(dtype, width) for dtype in operands], KType(result, width)), caps)
        for kind, operands, result in _operations()
    ]
    head = texts[0][: texts[0].index(".visible")]
    entries = [text[text.index(".visible") :].replace("poot_kernel", f"k{place}") for place, text in enumerate(texts)]
    assert assemble(head + "\n".join(entries), architecture.name).count("Compiling entry function") == len(texts)


@pytest.mark.parametrize("threads", [8, 20, 32, 48, 96, 128])
@pytest.mark.parametrize("dtype", [F32, I32, U32], ids=str)
def test_reductions_of_any_group_assemble(assemble: Assemble, threads: int, dtype: DType) -> None:
    """Also of groups that are no whole warps."""
    text = emit(row_sum(threads, dtype), SM_90)
    assemble(text, "sm_90")
    assert ("redux.sync" in text) == (threads % 32 == 0 and dtype is not F32)


def test_only_buffers_that_nothing_writes_are_loaded_past_coherence() -> None:
    text = emit(row_sum(), SM_90)
    assert "ld.global.f32" in text and ".nc" not in text
    assert "ld.global.nc.v4.f32" in emit(scaled_sum(), SM_90)


def test_every_access_is_guarded_by_its_count() -> None:
    guarded, bare = (emit(scaled_sum(), SM_90, guards) for guards in (Guards.ALL, Guards.NONE))
    assert re.search(r"min\.u32 (%r\d+), %r\d+, %r\d+;\n +mad\.wide\.u32 (%rd\d+), \1, 4, %rd\d+;\n +ld\.", guarded)
    assert re.search(r"setp\.lt\.u32 (%p\d+), .*;\n.*\n +@\1 st\.global\.f32", guarded)
    assert "min.u32" not in bare and "@%p" not in bare.replace("bra", "")[bare.index("st.global") :]


def test_an_index_of_shared_memory_is_guarded_unless_it_is_known_to_be_inside() -> None:
    b = KernelBuilder("shared", 64)
    x, y = b.buffer("x", I32, READ), b.buffer("y", I32, WRITE)
    tile = b.shared("tile", I32, 64)
    tile[b.thread_id()] = x[b.thread_id()]
    b.barrier()
    tile[x[0]] = 1
    y[b.thread_id()] = tile[x[b.thread_id()]] + tile[b.thread_id()]
    text = emit(b.finish(), SM_90)
    assert len(re.findall(r"@%p\d+ st\.shared", text)) == 1 and len(re.findall(r"st\.shared", text)) == 2
    assert len(re.findall(r"min\.u32 %r\d+, %r\d+, 63", text)) == 1


def test_equal_kernels_give_equal_text() -> None:
    for make in KERNELS.values():
        assert emit(make(), SM_90) == emit(make(), SM_90)


def test_a_dependent_kernel_waits_before_it_touches_memory() -> None:
    text = emit(tile_max(), caps_of(BY_NAME["sm_90"], options=frozenset({DEPENDENT_LAUNCH})))
    before, _, after = text.partition("griddepcontrol.wait")
    assert "ld.global" not in before and "st." not in before and "ld.global" in after


def test_weights_may_be_loaded_before_the_wait(assemble: Assemble) -> None:
    """Outside loops, at addresses that no memory decides, as far as registers last; each load once."""
    b = KernelBuilder("weights", 64)
    x, table, y = b.buffer("x", F32, READ), b.buffer("table", I32, READ), b.buffer("y", F32, WRITE)
    i = b.group_id() * 64 + b.thread_id()
    total = b.var(y[i])
    with b.if_(i < 100):
        total.set(total.get() + x[i * 4] + x[table[i]])
    with b.range(4) as k:
        total.set(total.get() + x[k])
    for k in range(20):
        v = x.load(k * 256 + b.thread_id() * 4, 4)
        total.set(total.get() + v.x * v.w)
    y[i] = total.get()
    kernel = b.finish().launched((1 << 14, 1 << 10, 1 << 10), (16, 1, 1))
    waits = frozenset({DEPENDENT_LAUNCH})
    late, early = (emit(kernel, caps_of(BY_NAME["sm_90"], options=chosen)) for chosen in (waits, waits | {EARLY_LOADS}))
    before, _, after = early.partition("griddepcontrol.wait")
    # x[4 i] and table[i] leave 62 registers: 15 vectors.
    assert before.count("ld.global.nc.f32") == 1 and before.count("ld.global.nc.b32") == 1
    assert before.count("ld.global.nc.v4") == 15 and "ld.global.f32" not in before
    assert after.count("ld.global.nc.v4") == 5 and after.count("ld.global.nc.f32") == 2
    assert early.count("ld.global") == late.count("ld.global")
    assert "ld.global" not in late.partition("griddepcontrol.wait")[0]
    # Where that is asked for, the kernel behind may start once these are on their way.
    chosen = waits | {EARLY_LOADS, EARLY_LAUNCH}
    text = emit(kernel, caps_of(BY_NAME["sm_90"], options=chosen))
    loads, wait, _ = text.partition("griddepcontrol.launch_dependents;\n    griddepcontrol.wait;")
    assert wait and "launch_dependents" not in early
    # What is in the branch has registers of its own.
    assert loads.count("ld.global.nc.v4") == 16 and loads.count("ld.global.nc.f32") == 1
    assemble(text, "sm_90")
    # What reads much, or nobody knows how much, waits first, and lets nobody start.
    for other in (kernel.launched((EARLY_BYTES // 4 + 1, 1, 1), (16, 1, 1)), launched_anyhow(kernel)):
        text = emit(other, caps_of(BY_NAME["sm_90"], options=chosen))
        assert "ld.global" not in text.partition("griddepcontrol.wait")[0] and "launch_dependents" not in text


def test_early_loads_are_made_where_their_branch_is_taken(assemble: Assemble) -> None:
    """Each branch has registers of its own where groups are few."""
    b = KernelBuilder("segments", 64)
    x, y = b.buffer("x", F32, READ), b.buffer("y", F32, WRITE)
    total, place = b.var(0.0, F32), b.group_id()
    for segment in range(3):
        with b.if_((place >= segment * 8) & (place < segment * 8 + 8)):
            for k in range(12):
                v = x.load((k * 3 + segment) * 256 + b.thread_id() * 4, 4)
                total.set(total.get() + v.x * v.w)
    y[place * 64 + b.thread_id()] = total.get()
    kernel = optimize(b.finish(), subgroup=True, subgroup_width=32)
    few, many = (kernel.launched((1 << 14, 1 << 16), (groups, 1, 1)) for groups in (24, 512))
    now = frozenset({DEPENDENT_LAUNCH, EARLY_LOADS})
    counted = {}
    early = now | {EARLY_LAUNCH}
    for name, launched, options in (("now", few, now), ("few", few, early), ("many", many, early)):
        text = emit(launched, caps_of(BY_NAME["sm_90"], options=options))
        assert "0 bytes spill stores" in assemble(text, "sm_90")
        before = text.partition("griddepcontrol.wait")[0]
        counted[name] = before.count("ld.global.nc.v4"), before.count("bra")
        assert text.count("ld.global.nc.v4") == 36
    assert counted["now"] == (16, 0) and counted["few"][0] == 36 and counted["many"][0] == 16
    assert counted["few"][1] >= 3 and counted["many"][1] >= 2


def launched_anyhow(kernel: Kernel) -> Kernel:
    """The kernel without what is known of its launches."""
    params = tuple(Param(p.name, p.dtype, p.access) for p in kernel.params)
    return Kernel(kernel.name, params, kernel.shared, kernel.group_size, kernel.body)


@pytest.mark.parametrize(
    ("groups", "threads", "asked"),
    [
        ((896, 1, 1), 128, 7),  # 73 registers a thread
        ((256, 8, 1), 64, 16),
        ((257, 1, 1), 256, 3),
        ((256, 1, 1), 256, None),  # two a multiprocessor: room for them there is
        ((1025, 1, 1), 128, None),  # 56 registers a thread
        ((512, 1, 1), 512, None),
        ((1 << 13, 1, 1), 16, None),  # more groups than a multiprocessor has
        (None, 128, None),
    ],
)
def test_all_groups_of_a_resident_kernel_are_asked_to_be_there(
    assemble: Assemble, groups: tuple[int, int, int] | None, threads: int, asked: int | None
) -> None:
    b = KernelBuilder("doubled", threads)
    x, y = b.buffer("x", F32, READ), b.buffer("y", F32, WRITE)
    y[b.thread_id()] = x[b.thread_id()] * 2.0
    kernel = replace(b.finish(), groups=groups)
    assert ".minnctapersm" not in emit(kernel, SM_90)
    text = emit(replace(kernel, resident=True), SM_90)
    assert [line for line in text.splitlines() if line.startswith(".minnctapersm")] == (
        [] if asked is None else [f".minnctapersm {asked}"]
    )
    assemble(text, "sm_90")


def test_what_the_device_lacks_is_refused_by_name() -> None:
    plain = Caps(max_group_size=1024, max_shared_bytes=1 << 15, features=frozenset({"sm_90"}))
    with pytest.raises(Unsupported, match="subgroup_shuffle in kernel tile_max: this device lacks subgroup"):
        emit(tile_max(), plain)
    with pytest.raises(Unsupported, match="128 threads a group, the device has 64"):
        emit(row_sum(), Caps(max_group_size=64, features=SM_90.features))
    with pytest.raises(Unsupported, match="2 buffers, the device has 1"):
        emit(row_sum(), Caps(max_bindings=1, features=SM_90.features))
    big = Kernel("big", (), (SharedArray("tile", F32, 1 << 14),), 32, Block((), ()))
    with pytest.raises(Unsupported, match="65,536 bytes of shared memory, the device has 49,152"):
        emit(big, SM_90)
    with pytest.raises(Unsupported, match="the capabilities name none of sm_80"):
        emit(silu(), Caps())


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((7, 5), None), ((8, 0), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90"), ((10, 0), "sm_100"), ((12, 0), "sm_100")],
)
def test_the_best_architecture_of_a_gpu(capability: tuple[int, int], expected: str | None) -> None:
    found = best_architecture(capability)
    assert (found.name if found else None) == expected
    if found is not None:
        assert architecture_of(caps_of(found).features) is found
    assert BY_NAME["sm_90a"].runs_on((9, 0)) and not BY_NAME["sm_90a"].runs_on((10, 0))


def test_an_access_inside_what_every_launch_binds_has_no_guard():
    b = KernelBuilder("copy", 64)
    x, y = b.buffer("x", F32, READ), b.buffer("y", F32, WRITE)
    i = b.group_id() * 64 + b.thread_id()
    y[i] = x[i + 64]
    kernel, caps = optimize(b.finish(), subgroup=True, subgroup_width=32), caps_of(best_architecture((9, 0)))
    guarded = emit(kernel, caps)
    assert "min.u32" in guarded and "@%p" in guarded
    # 4 groups touch 256 elements of y and end at element 320 of x.
    bare = emit(kernel.launched((320, 256), (4, 1, 1)), caps)
    assert "min.u32" not in bare and "@%p" not in bare and "+256]" in bare
    short = emit(kernel.launched((319, 255), (4, 1, 1)), caps)
    assert "min.u32" in short and "@%p" in short
