"""The program cache: what is read is what was compiled, and nothing that is damaged, foreign or does not fit is run."""

import json
import struct
import subprocess
import sys
import textwrap
import zlib
from dataclasses import replace

import numpy as np
import pytest

from poot_eval.conformance.inputs import floats
from poot_eval.conformance.session import open_session
from poot_eval.device import ReferenceDevice
from poot_executor.compile import Caps, CompileLimits, CompileOptions, Granularity, Target, compile
from poot_executor.compile.program_cache import MAGIC, SUFFIX, ProgramCache, compiler_context, graph_key, program_key
from poot_executor.compile.program_record import encode_program
from poot_executor.compile.schedule_picks import Schedules
from poot_executor.dtype import F32
from poot_executor.entry_folder import open_entry, seal_entry
from poot_executor.errors import KernelError
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.kernel.loop_rounds import loop_rounds

CAPS = {
    "plain": Caps(),
    "tiles": Caps(tile_rows=8, parallel_groups=16),
    "subgroup": Caps(subgroup_width=32, features=frozenset({"subgroup"}), group_threads=64),
    "parts": Caps(max_binding_bytes=4096),
    "graph": Caps(granularity=Granularity.GRAPH),
}


def counts(cache):
    s = cache.stats()
    return s.hits, s.misses, s.rejected, s.written


def cached(folder, graph, caps=CAPS["plain"], **options):
    """The program, and what its cache counted."""
    cache = ProgramCache(folder)
    return compile(graph, Target("paper", caps), CompileOptions(cache=cache, **options)), counts(cache)


def small(value=2.0, name="small"):
    b = Builder(name)
    x = b.slot(SlotKey(SlotKind.INPUT, "x"), TensorType((4, 8), F32))
    b.output("y", x * b.computed(np.full((4, 8), value, np.float32), F32) + 1)
    return b.build()


def counted(type_):
    """0, 1, 2 …: no two tokens write to one place."""
    return np.arange(type_.count, dtype=np.int32).reshape(type_.shape)


def the_entry(folder):
    (path,) = folder.glob("*" + SUFFIX)
    return path


@pytest.mark.parametrize("name", CAPS)
def test_what_is_read_is_what_was_compiled(tmp_path, decoder, name):
    graph = decoder(2, 3, paged=name == "tiles", layers=2 if name == "plain" else 1).graph()
    fresh, first = cached(tmp_path, graph, CAPS[name])
    again, second = cached(tmp_path, graph, CAPS[name])
    assert (first, second) == ((0, 1, 0, 1), (1, 0, 0, 0))
    assert str(again.graph) == str(fresh.graph)
    assert graph_key(again.graph) == graph_key(fresh.graph)
    assert again.explain() == fresh.explain()
    assert len(again.commands) == len(fresh.commands)
    for mine, theirs in zip(again.dispatches, fresh.dispatches, strict=True):
        assert (mine.args, mine.groups, mine.work, mine.equations) == (
            theirs.args, theirs.groups, theirs.work, theirs.equations
        )  # fmt: skip
        read, made = mine.kernel, theirs.kernel
        assert (read.digest(), read.checks, read.identity) == (made.digest(), made.checks, made.identity)
        assert loop_rounds(read) == loop_rounds(made)
        assert str(read) == str(made)
        assert (read.params, read.shared, read.groups) == (made.params, made.shared, made.groups)
    for field in ("weights", "states", "slots", "outputs", "checks", "constants", "arena_bytes", "arena_floor"):
        assert getattr(again, field) == getattr(fresh, field)
    assert encode_program(again) == encode_program(fresh)


@pytest.mark.parametrize("name", ["plain", "subgroup"])
def test_a_program_from_disk_computes_the_same_bits(tmp_path, decoder, rng, name):
    graph, target = decoder(1, 2, layers=1).graph(), Target("reference", CAPS[name])
    inputs = {
        i.key: floats(rng, i.value.shape, F32) if i.value.dtype is F32 else counted(i.value.type)
        for i in graph.inputs
        if i.key is not None
    }
    for _ in range(2):
        compile(graph, target, CompileOptions(cache=ProgramCache(tmp_path)))
    results = []
    for cache in (None, ProgramCache(tmp_path)):
        with open_session(ReferenceDevice(CAPS[name]), graph, inputs, CompileOptions(cache=cache)) as session:
            results.append(session.run(session.lower()))
        if cache is not None:
            assert counts(cache)[:2] == (1, 0)
    for output, value in results[0].outputs.items():
        assert value.tobytes() == results[1].outputs[output].tobytes(), output
    for key, value in results[0].state.items():
        assert value.tobytes() == results[1].state[key].tobytes(), key


def test_equal_kernels_are_kept_once(tmp_path, decoder):
    sizes = []
    for layers in (2, 8):
        folder = tmp_path / str(layers)
        program, _ = cached(folder, decoder(1, 1, layers=layers).graph())
        sizes.append((len({d.kernel.digest() for d in program.dispatches}), the_entry(folder).stat().st_size))
    assert sizes[0][0] == sizes[1][0]
    assert sizes[1][1] < 2 * sizes[0][1]


def test_everything_that_a_program_depends_on_is_in_the_key():
    target, options = Target("wgpu", Caps()), CompileOptions()
    context = compiler_context()
    first = program_key(small(), target, options, context)
    assert program_key(small(), target, options, context) == first
    others = {
        "bits of a constant": (small(np.nextafter(np.float32(2), np.float32(3))), target, options, context),
        "name": (small(name="other"), target, options, context),
        "kind": (small(), Target("vulkan", Caps()), options, context),
        "caps": (small(), Target("wgpu", Caps(group_threads=32)), options, context),
        "deterministic": (small(), target, CompileOptions(deterministic=True), context),
        "limits": (small(), target, CompileOptions(limits=CompileLimits(dispatches=3)), context),
        "compiler": (small(), target, options, context + b"edited"),
    }
    keys = {name: program_key(*parts) for name, parts in others.items()}
    assert len({first, *keys.values()}) == 1 + len(keys), keys
    assert graph_key(small(0.0)) != graph_key(small(-0.0))


def test_params_that_print_alike_are_told_apart():
    def graph(value):
        b = Builder("params")
        x = b.slot(SlotKey(SlotKind.INPUT, "x"), TensorType((4,), F32))
        b.output("y", p.pad(x, (1,), (1,), value))
        return b.build()

    assert len({graph_key(graph(value)) for value in (0.0, -0.0, 1.0, 1)}) == 4


def test_a_damaged_entry_is_compiled_again_and_written_over(tmp_path, rng):
    graph = small()
    cached(tmp_path, graph)
    whole = the_entry(tmp_path).read_bytes()
    cuts = [b"", whole[:50], whole[:-1], whole + b"\0"]
    flips = []
    for at in rng.choice(len(whole), 40, replace=False):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(rng.integers(8))
        flips.append(bytes(flipped))
    path = the_entry(tmp_path)
    for damaged in cuts + flips:
        path.write_bytes(damaged)
        program, seen = cached(tmp_path, graph)
        assert seen == (0, 1, 1, 1)
        assert the_entry(tmp_path).read_bytes() == whole
        assert str(program.graph)


def sections(payload):
    found, at = [], 0
    while at < len(payload):
        (length,) = struct.unpack_from("<I", payload, at)
        found.append(payload[at + 4 : at + 4 + length])
        at += 4 + length
    return found


def rewrite(folder, edit):
    """Change what an entry says, with a checksum that is right: `edit` takes and gives the list of sections."""
    path = the_entry(folder)
    key = bytes.fromhex(path.name.removesuffix(SUFFIX))
    payload = open_entry(MAGIC, key, path.read_bytes())
    parts = edit(sections(payload))
    path.write_bytes(seal_entry(MAGIC, key, b"".join(struct.pack("<I", len(s)) + s for s in parts)))


def edited_head(change):
    def edit(parts):
        record = json.loads(zlib.decompress(parts[0]))
        change(record)
        return [zlib.compress(json.dumps(record).encode()), *parts[1:]]

    return edit


# A record: kernels, commands, weights, states, slots, input bytes, outputs, checks, output bytes, arena, floor, passes,
# declines. A command is [0, [kernel, args, groups, work, …]], an argument [[space, offset, nbytes, key], count].
FORGED = {
    "another kernel": lambda r: r[1][0][1].__setitem__(0, 99),
    "a place beyond its block": lambda r: r[1][0][1][1][0][0].__setitem__(1, 1 << 20),
    "a negative offset": lambda r: r[1][0][1][1][0][0].__setitem__(1, -256),
    "an offset that cannot be bound": lambda r: r[1][0][1][1][0][0].__setitem__(1, 4),
    "more elements than the place has": lambda r: r[1][0][1][1][0].__setitem__(1, 1 << 20),
    "fewer elements than the kernel relies on": lambda r: r[1][0][1][1][0].__setitem__(1, 1),
    "a buffer too few": lambda r: r[1][0][1][1].pop(),
    "a grid beyond the launch": lambda r: r[1][0][1].__setitem__(2, [70_000, 1, 1]),
    "no groups": lambda r: r[1][0][1].__setitem__(2, [0, 1, 1]),
    "a write to an input": lambda r: r[1][0][1][1][-1].__setitem__(0, ["input", 0, 128, None]),
    "a slot that the graph has not": lambda r: r[4][0][0].__setitem__(1, "other"),
    "a slot of another type": lambda r: r[4][0][1].__setitem__(0, [4, 9]),
    "no output": lambda r: r.__setitem__(6, []),
    "a bool for a number": lambda r: r.__setitem__(9, True),
    "text for a number": lambda r: r.__setitem__(9, "1"),
    "a field too few": lambda r: r.pop(),
    "an unknown space": lambda r: r[1][0][1][1][0][0].__setitem__(0, "moon"),
    "a member that there is not": lambda r: r[1][0].__setitem__(0, 7),
    "more threads than a group has": lambda r: r[0][0].__setitem__(3, 100_000),
    "shared memory beyond the target's": lambda r: r[0][0].__setitem__(2, [["s", "f32", 1 << 20]]),
    "a digest that is none": lambda r: r[0][0].__setitem__(5, "xyz"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_record_with_a_right_checksum_is_compiled_again(tmp_path, what):
    graph = small()
    cached(tmp_path, graph)
    whole = the_entry(tmp_path).read_bytes()
    rewrite(tmp_path, edited_head(FORGED[what]))
    assert the_entry(tmp_path).read_bytes() != whole
    _, seen = cached(tmp_path, graph)
    assert seen == (0, 1, 1, 1)
    assert the_entry(tmp_path).read_bytes() == whole


def test_sections_of_another_shape_are_compiled_again(tmp_path):
    graph = small()
    for edit in (
        lambda parts: parts[:2],
        lambda parts: [*parts, parts[-1]],
        lambda parts: [b"not compressed", *parts[1:]],
        lambda parts: [parts[0] + b"tail", *parts[1:]],
        lambda parts: [zlib.compress(b"[" * 100_000), *parts[1:]],
        lambda parts: [zlib.compress(b"null"), *parts[1:]],
    ):
        cached(tmp_path, graph)
        rewrite(tmp_path, edit)
        assert cached(tmp_path, graph)[1] == (0, 1, 1, 1)


def test_a_kernel_is_read_when_it_is_asked_for_and_refused_where_it_is_another(tmp_path):
    graph = small()
    fresh, _ = cached(tmp_path, graph)

    def other_kernel(parts):
        text = zlib.decompress(parts[4]).decode()
        assert " add " in text
        return [*parts[:4], zlib.compress(text.replace(" add ", " sub ").encode())]

    rewrite(tmp_path, other_kernel)
    program, seen = cached(tmp_path, graph)
    assert seen == (1, 0, 0, 0)
    # A device that has the code needs these, and no body.
    (kernel,) = {d.kernel for d in program.dispatches}
    assert kernel.digest() == fresh.dispatches[0].kernel.digest()
    assert not kernel.checks
    with pytest.raises(KernelError, match="cannot be read from disk, run again"):
        _ = kernel.body
    assert list(tmp_path.iterdir()) == []
    program, seen = cached(tmp_path, graph)
    assert seen == (0, 1, 0, 1)
    assert str(program.dispatches[0].kernel) == str(fresh.dispatches[0].kernel)


def test_a_stored_program_and_kernel_can_be_replaced_in_part(tmp_path):
    graph = small()
    cached(tmp_path, graph)
    program, seen = cached(tmp_path, graph)
    assert seen[0] == 1
    (dispatch,) = program.dispatches
    assert replace(program, commands=()).graph is program.graph
    renamed = replace(dispatch.kernel, name="renamed")
    assert renamed.digest() != dispatch.kernel.digest()
    assert str(renamed).startswith("kernel renamed ")
    assert dispatch.kernel.launched([a.count for a in dispatch.args], dispatch.groups).digest() == (
        dispatch.kernel.digest()
    )


def test_passes_that_are_checked_or_dumped_run(tmp_path):
    graph = small()
    cached(tmp_path / "cache", graph)
    for options in ({"verify": True}, {"dump": tmp_path / "dump"}):
        assert cached(tmp_path / "cache", graph, **options)[1] == (0, 0, 0, 0)
    assert list((tmp_path / "dump").iterdir())


def test_no_folder_keeps_nothing_and_one_that_fails_costs_the_cache_alone(tmp_path):
    assert cached(None, small())[1] == (0, 0, 0, 0)
    (tmp_path / "file").write_bytes(b"")
    cache = ProgramCache(tmp_path / "file" / "folder")
    assert compile(small(), Target("paper", Caps()), CompileOptions(cache=cache)).commands
    assert cache.stats().warning is not None


def test_a_program_with_measured_schedules_is_kept_too(tmp_path, decoder):
    graph = decoder(1, 1, layers=1).graph()
    plain, _ = cached(tmp_path, graph)
    key = next(d.schedule["key"] for d in plain.dispatches if "key" in d.schedule)
    schedules = Schedules.of({key: {"rows": 1, "tile": 1}})
    fresh, first = cached(tmp_path, graph, schedules=schedules)
    again, second = cached(tmp_path, graph, schedules=schedules)
    assert (first, second) == ((0, 1, 0, 1), (1, 0, 0, 0))
    assert again.explain() == fresh.explain() != plain.explain()


def test_a_program_that_has_no_record_costs_the_cache_alone(tmp_path):
    graph = small()
    target = Target("paper", Caps())
    program = compile(graph, target)
    (dispatch,) = program.dispatches
    odd = replace(program, commands=(replace(dispatch, schedule={"odd": object()}),))
    cache = ProgramCache(tmp_path)
    assert cache.get(graph, target, CompileOptions(), lambda: odd) is odd
    assert "cannot be kept" in cache.stats().warning
    assert list(tmp_path.iterdir()) == []


def test_two_processes_that_start_at_once_share_a_folder(tmp_path):
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from poot_executor.compile import Caps, CompileOptions, Target, compile
        from poot_executor.compile.program_cache import ProgramCache
        from poot_executor.dtype import F32
        from poot_executor.graph.builder import Builder
        from poot_executor.graph.graph import TensorType
        from poot_executor.graph.keys import SlotKey, SlotKind
        for turn in range(40):
            b = Builder("shared")
            x = b.slot(SlotKey(SlotKind.INPUT, "x"), TensorType((1 + turn % 5, 8), F32))
            b.output("y", x + 1)
            cache = ProgramCache(Path(sys.argv[1]), max_bytes=6000)
            program = compile(b.build(), Target("paper", Caps()), CompileOptions(cache=cache))
            assert program.graph.outputs["y"].shape == (1 + turn % 5, 8)
            assert program.dispatches[0].kernel.body.ops
            assert cache.stats().rejected == 0 and cache.stats().warning is None, cache.stats()
        """
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stderr=subprocess.PIPE) for _ in "ab"]
    errors = [process.communicate(timeout=120)[1].decode() for process in running]
    assert [process.returncode for process in running] == [0, 0], errors
    assert list(tmp_path.glob("*" + SUFFIX))
