"""The table that `Program.explain` prints: what it says must be what the program holds."""

import re

import pytest

from poot_executor.compile import Caps, Granularity, Target, compile
from poot_executor.compile.explain import dispatches_per_layer, operations, ranges, short
from poot_executor.dtype import F32, I32, U8
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_executor.weights import WeightKey

WIDTH = 64
ROW_BYTES = WIDTH // 32 * 20  # q4_1


def program(layers=4, rows=3, caps=None, states=True):
    """A chain of packed layers, each with a state that it adds to and that a row of it goes back to."""
    b = Builder("chain")
    x = b.slot(SlotKey(SlotKind.INPUT, "x"), TensorType((rows, WIDTH), F32))
    at = b.slot(SlotKey(SlotKind.POS), TensorType((rows,), I32))
    for layer in range(layers):
        weight = b.weight(WeightKey(layer, "w"), TensorType((WIDTH, ROW_BYTES), U8))
        x = p.matmul(x, p.transpose(p.packed_dequant(weight, "q4_1"), (1, 0)))
        if states:
            key = StateKey(layer, "seen")
            state = b.state(key, TensorType((16, WIDTH), F32))
            after = p.scatter_update(state, at, x)
            b.next_state(key, after)
            x = p.tanh(x + p.gather(after, at))
    b.output("x", x)
    b.output("best", p.argmax(x, 1))
    return compile(b.build(), Target("paper", caps or Caps()))


def table(text):
    """The lines of the table, without its heading, split at runs of spaces."""
    return [line.split() for line in text.split("\n\n")[0].splitlines()[2:]]


def total(text, name):
    (line,) = re.findall(rf"^{name}\b(.*)$", text, re.MULTILINE)
    return line


def test_every_command_has_a_line():
    made = program()
    rows = table(made.explain())
    assert len(rows) == len(made.commands)
    assert [int(row[0]) for row in rows] == list(range(len(rows)))
    assert [row[1].partition(":")[0] for row in rows] == [d.region for d in made.dispatches]


def test_a_line_says_what_the_dispatch_is():
    made = program(layers=1, states=False)
    (dispatch,) = [d for d in made.dispatches if d.region == "contraction"]
    (row,) = [row for row in table(made.explain()) if row[1] == "contraction"]
    assert dispatch.kernel.name in row[1]
    assert row[2] == ranges(dispatch.equations)
    assert row[3] == "×".join(map(str, dispatch.groups))
    nbytes = 3 * WIDTH * 4 * 2 + WIDTH * ROW_BYTES
    assert row[4] == short(nbytes)
    # A multiply-add for each of 3 × 64 results and 64 terms, and a decoded number a weight.
    assert row[5] == short(2 * 3 * WIDTH * WIDTH + WIDTH * WIDTH)
    assert row[6] == short(dispatch.work)
    schedule = " ".join(f"{name}={value}".replace(", ", ",") for name, value in dispatch.schedule.items())
    shown = " ".join(row[7:])
    assert shown == schedule or (shown.endswith("…") and schedule.startswith(shown[:-1]) and len(shown) > 40)


def test_no_line_is_over_140_columns():
    b = Builder("norms")
    x = b.slot(SlotKey(SlotKind.INPUT, "x"), TensorType((4, 8), F32))
    for name in map(str, range(9)):
        squares = p.reshape(p.sum_(x * x, 1), (4, 1))
        most = p.reshape(p.reduce_max(x, 0), (1, 8))
        b.output(name, x * p.broadcast(p.recip(p.sqrt(squares)), (4, 8)) * p.broadcast(most, (4, 8)))
        x = x + float(name)
    text = compile(b.build(), Target("paper", Caps())).explain()
    assert "…" in text  # The equations of a norm are too many for their column.
    assert 100 < max(map(len, text.splitlines())) <= 140
    assert text.endswith("\n")


def test_a_weight_in_parts_shares_its_operations():
    whole, parts = program(1, states=False), program(1, states=False, caps=Caps(max_binding_bytes=1280))
    named = [row for row in table(parts.explain()) if row[1] == "contraction"]
    (one,) = [row for row in table(whole.explain()) if row[1] == "contraction"]
    assert len(named) == 2
    assert all(float(row[5][:-1]) == pytest.approx(float(one[5][:-1]) / 2, abs=0.5) for row in named)


def test_totals_are_the_program_s():
    made = program()
    text = made.explain()
    assert total(text, "equations").strip() == f"{len(made.graph.equations)}"
    assert total(text, "dispatches").split()[0] == str(len(made.dispatches))
    assert f"{made.arena_bytes:,} bytes" in total(text, "arena")
    assert f"{made.arena_floor:,}" in total(text, "arena")
    assert total(text, "weights").split()[:2] == ["4,", f"{4 * WIDTH * ROW_BYTES:,}"]
    assert total(text, "states").split()[:2] == ["4,", f"{4 * 16 * WIDTH * 4:,}"]
    assert total(text, "passes").strip() == (", ".join(made.passes) or "none changed anything")


def test_equal_kernels_count_once():
    made = program(layers=6)
    assert len(made.dispatches) > 12
    kernels = int(re.search(r"of (\d+) kernels", made.explain())[1])
    assert kernels == len({d.kernel.digest() for d in made.dispatches}) < len(made.dispatches)


def test_dispatches_per_layer_are_those_between_layers():
    made = program(layers=5)
    firsts = [n for n, d in enumerate(made.dispatches) if d.region == "contraction"]
    assert dispatches_per_layer(made) == firsts[1] - firsts[0]
    assert dispatches_per_layer(program(layers=1)) is None


def test_declines_are_grouped():
    """A column sum that is read along rows: the same reason for both, whatever the values are."""
    b = Builder("twice")
    x = b.slot(SlotKey(SlotKind.INPUT, "x"), TensorType((40, 8), F32))
    for name in "ab":
        sums = p.reshape(p.sum_(x * len(name), 0), (1, 8))
        b.output(name, p.exp(x - p.broadcast(sums, (40, 8))))
        x = x * 3.0
    made = compile(b.build(), Target("paper", Caps()))
    assert len(made.declines) == 2
    declined = total(made.explain(), "declined")
    assert declined.strip().startswith("2× row_reduction: a value")
    assert f"equation {min(d.equation for d in made.declines)})" in declined


def test_a_whole_graph_device_has_operations_instead():
    made = program(caps=Caps(granularity=Granularity.GRAPH))
    text = made.explain()
    assert made.commands == ()
    assert "lowered by the device" in text.splitlines()[0]
    counted = [line.split() for line in text.split("\n\n")[0].splitlines()[1:]]
    assert sum(int(count) for count, _ in counted) == len(made.graph.equations)
    assert ["4", "matmul"] in counted


def test_movement_is_no_arithmetic():
    b = Builder("moves")
    x = b.slot(SlotKey(SlotKind.INPUT, "x"), TensorType((4, 8), F32))
    b.output("y", p.sum_(p.transpose(x, (1, 0)), 1))
    graph = b.build()
    assert [operations(e) for e in graph.equations] == [0, 32]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (9949, "9.9k"), (9960, "10k"), (999_499, "999k"), (999_600, "1.0M"),
     (98_362_432, "98M"), (3.1e9, "3.1G"), (5e15, "5000T")],
)  # fmt: skip
def test_counts_are_short(count, text):
    assert short(count) == text


def test_runs_of_numbers():
    assert ranges([]) == ""
    assert ranges([1, 2, 3, 7, 9, 10]) == "1-3,7,9-10"
