"""`poot explain` and `poot bench`."""

import re

import pytest

from poot_executor.compile import Caps, Target
from poot_llm.blocks.step import StepShape
from poot_llm.driver import compile_step
from poot_llm.registry import Models
from poot_llm.sampling import Suffix


@pytest.mark.parametrize(("tokens", "suffix"), [(1, Suffix.GREEDY), (8, Suffix.SAMPLED)])
def test_explain_is_the_program_that_would_run(poot, model, tokens, suffix):
    sampled = ["--sampled"] if suffix is Suffix.SAMPLED else []
    done = poot("explain", model, "--tokens", tokens, "--capacity", "64", "--target", "reference", *sampled)
    assert (done.status, done.err) == (0, "")
    handle = Models().open(model)
    program = compile_step(handle, Target("reference", Caps()), StepShape(1, tokens, 64, 64), suffix)
    assert done.out == program.explain()
    assert max(map(len, done.out.splitlines())) <= 140


def test_explain_needs_no_device(poot, model):
    """Vulkan is hidden here, and what is left is never chosen automatically."""
    done = poot("explain", model, "--capacity", "64")
    assert done.status == 0
    assert done.err.startswith("compiled for reference: no device opened") and done.err.count("\n") == 1
    assert "for reference" in done.out.splitlines()[0]


def test_explain_for_a_whole_graph_device(poot, model):
    done = poot("explain", model, "--capacity", "64", "--target", "toy")
    assert (done.status, done.err) == (0, "")
    assert "lowered by the device" in done.out.splitlines()[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--target", "abacus"], ["abacus"]),
        (["--capacity", "512"], ["512", "256"]),
        (["--tokens", "65", "--capacity", "64"], ["65", "64"]),
        (["--tokens", "0"], ["--tokens"]),
    ],
)
def test_explain_refuses(poot, model, options, words):
    refusal = poot("explain", model, *options).refusal
    assert all(word in refusal for word in words), refusal


def test_explain_dumps_every_pass_where_it_is_told_to(poot, model, tmp_path, monkeypatch):
    monkeypatch.setenv("POOT_DUMP", str(tmp_path / "dump"))
    assert poot("explain", model, "--capacity", "64", "--target", "reference").status == 0
    assert (tmp_path / "dump" / "00_traced.txt").exists()


def test_bench_prints_a_row_a_test(poot, model):
    given = ("--device", "toy", "--capacity", "64", "--chunk", "8", "-r", "2")
    done = poot("bench", model, "-p", "12", "-n", "4,0", "-d", "0,16", *given)
    assert (done.status, done.err) == (0, "")
    heading, *rows = done.out.splitlines()
    assert heading.split() == ["model", "size", "device", "test", "t/s"]
    assert len(rows) == 4
    assert [re.search(r"(pp|tg)\d+( @ d16)?", row)[0] for row in rows] == ["pp12", "tg4", "pp12 @ d16", "tg4 @ d16"]
    for row in rows:
        assert row.startswith("tiny") and " MB " in row and " toy " in row
        rate, spread = re.search(r"([\d.]+) ± ([\d.]+)$", row).groups()
        assert float(rate) > 0 and float(spread) >= 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-p", "80"], ["-p 80", "81", "64"]),
        (["-p", "0", "-n", "64"], ["-n 64", "64"]),
        (["-d", "5"], ["-d 5", "8"]),
        (["-p", "x"], ["-p", "x"]),
        (["-r", "0"], ["-r"]),
    ],
)
def test_bench_refuses_what_does_not_fit(poot, model, options, words):
    refusal = poot("bench", model, "--device", "toy", "--capacity", "64", "--chunk", "8", *options).refusal
    assert all(word in refusal for word in words), refusal
