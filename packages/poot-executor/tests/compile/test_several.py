"""Graphs compiled together: every program is the one that its graph gives alone, wherever it was compiled."""

import gc
import pickle
import subprocess
import sys

import pytest

from poot_executor.compile import Caps, CompileOptions, Granularity, Target, compile, several
from poot_executor.compile.collection import collection_paused
from poot_executor.compile.lower.reuse import SharedKernels
from poot_executor.compile.program_cache import ProgramCache
from poot_executor.compile.program_record import encode_program
from poot_executor.compile.several import compile_several
from poot_executor.compile.worker import Job, encode_graph, write_frame
from poot_executor.errors import Unsupported
from poot_executor.kernel.verify import verify

CAPS = {
    "plain": Caps(),
    "subgroup": Caps(subgroup_width=32, features=frozenset({"subgroup", "dot4", "mma"}), parallel_groups=16),
}


def target_of(name="subgroup"):
    return Target("paper", CAPS[name])


@pytest.fixture
def groups(decoder):
    """Two shapes, each twice: as a step of one layer, and of two."""
    return [[decoder(rows, 1, layers=layers).graph() for layers in (1, 2)] for rows in (1, 3)]


def alone(groups, target, **options):
    return [encode_program(compile(g, target, CompileOptions(**options))) for group in groups for g in group]


def kernels(program):
    return {id(d.kernel) for d in program.dispatches}


@pytest.mark.parametrize("name", CAPS)
@pytest.mark.parametrize("deterministic", [False, True])
def test_kernels_that_are_shared_change_no_program(groups, name, deterministic):
    options = CompileOptions(deterministic=deterministic)
    together = list(compile_several(groups, target_of(name), options))
    assert [encode_program(p) for p in together] == alone(groups, target_of(name), deterministic=deterministic)
    # A second layer adds few kernels to those of the first.
    assert len(kernels(together[0]) & kernels(together[1])) >= len(kernels(together[0])) // 2


def test_kernels_of_other_capabilities_are_not_shared(groups):
    shared = SharedKernels()
    for name in CAPS:
        options = CompileOptions(shared=shared)
        programs = [compile(g, target_of(name), options) for group in groups for g in group]
        assert [encode_program(p) for p in programs] == alone(groups, target_of(name))


def test_processes_give_what_this_one_does(groups, monkeypatch):
    monkeypatch.setattr(several, "compile", unexpected)
    target = target_of()
    together = list(compile_several(groups, target, CompileOptions(processes=2)))
    assert [encode_program(p) for p in together] == alone(groups, target)
    for dispatch in (d for program in together for d in program.dispatches):
        verify(dispatch.kernel, 32)


def unexpected(*_):
    raise AssertionError("compiled in this process")


def test_what_was_compiled_elsewhere_is_kept(tmp_path, groups, monkeypatch):
    target = target_of()
    first = list(compile_several(groups, target, CompileOptions(processes=2, cache=ProgramCache(tmp_path))))
    monkeypatch.setattr(several, "compile", unexpected)
    monkeypatch.setattr(subprocess, "Popen", unexpected)
    cache = ProgramCache(tmp_path)
    second = list(compile_several(groups, target, CompileOptions(processes=2, cache=cache)))
    assert [encode_program(p) for p in second] == [encode_program(p) for p in first]
    assert (cache.stats().hits, cache.stats().misses) == (4, 0)


@pytest.mark.parametrize("command", ["no such program", sys.executable + " -c pass"])
def test_processes_that_are_not_there_are_said_and_done_without(tmp_path, groups, monkeypatch, caplog, command):
    path = tmp_path / "python"
    if command.startswith(sys.executable):
        path.write_text(f"#!/bin/sh\nexec {command}\n")
        path.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(path))
    programs = list(compile_several(groups, target_of(), CompileOptions(processes=2)))
    assert [encode_program(p) for p in programs] == alone(groups, target_of())
    assert "this one compiles" in caplog.text


def test_a_refusal_of_another_process_is_said_by_this_one(groups):
    programs = compile_several(groups, Target("paper", Caps(max_bindings=3)), CompileOptions(processes=2))
    with pytest.raises(Unsupported, match="the target binds 3"):
        list(programs)


def test_few_small_graphs_take_no_processes(groups, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", unexpected)
    assert len(list(compile_several(groups, target_of(), CompileOptions()))) == 4


def test_whole_graphs_take_no_processes(groups, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", unexpected)
    target = Target("paper", Caps(granularity=Granularity.GRAPH))
    assert len(list(compile_several(groups, target, CompileOptions(processes=2)))) == 4


def test_processes_end_with_those_who_asked(groups, monkeypatch):
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **more: started.append(popen(*args, **more)) or started[-1])
    programs = compile_several(groups, target_of(), CompileOptions(processes=2))
    next(programs)
    programs.close()
    assert len(started) == 2 and all(process.returncode is not None for process in started)


def test_a_process_ends_with_what_it_reads_whatever_it_is_at(groups):
    """The engine that started it may have been killed: it finishes nothing."""
    command = [sys.executable, "-m", "poot_executor.compile.worker"]
    job = pickle.dumps(Job.of(target_of(), CompileOptions()))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for frame in (job, *(encode_graph(g) for group in groups for g in group)):
            write_frame(process.stdin, frame)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert said == b""


def test_collection_is_paused_and_goes_on():
    def fails():
        with collection_paused():
            with collection_paused():
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise ValueError("inside")

    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"):
        fails()
    assert gc.isenabled()
