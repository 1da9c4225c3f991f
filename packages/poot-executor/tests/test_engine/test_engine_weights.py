"""Weights: bound by role, checked, uploaded once for each stored run of bytes."""

from types import SimpleNamespace

import numpy as np
import pytest

from poot_executor.errors import BindError, WeightError


def test_entries_and_roles_share_one_upload(lab):
    executable, entry = lab.ready()
    tied = lab.engine.add_entry(executable, lab.program(weight=lab.TIED, rows=1))
    again = lab.engine.add_entry(executable, lab.program(rows=1))
    assert lab.engine.stats().uploads == 1
    for item, rows in ((entry, 2), (tied, 1), (again, 1)):
        out = lab.engine.step(executable, item, lab.inputs(rows=rows))
        np.testing.assert_array_equal(out["scaled"], lab.weight * 3)


def test_two_store_keys_over_the_same_bytes_share_one_upload(lab):
    first = lab.stored("first", "f32", (4,), lab.weight)
    second = lab.stored("second", "f32", (4,), lab.weight)
    alias = type(first)("alias", first.format, (4,), first.data)
    store = lab.Store(first=first, alias=alias, second=second)
    executable = lab.engine.load_weights(store, {lab.W: "first", lab.TIED: "alias"})
    lab.engine.add_entry(executable, lab.program())
    lab.engine.add_entry(executable, lab.program(weight=lab.TIED))
    assert lab.engine.stats().uploads == 1
    # Equal bytes elsewhere are another run.
    other = lab.engine.load_weights(store, {lab.W: "first", lab.TIED: "second"})
    lab.engine.add_entry(other, lab.program())
    lab.engine.add_entry(other, lab.program(weight=lab.TIED))
    assert lab.engine.stats().uploads == 3


def test_a_store_that_makes_its_tensors_anew_is_not_mistaken(lab):
    class Fleeting(lab.Store):
        """Every call gives another array, which may lie where a dropped one lay."""

        def tensor(self, name):
            value = {"ones": 1, "twos": 2}[name]
            return lab.stored(name, "f32", (4,), np.full(4, value, np.float32))

    executable = lab.engine.load_weights(Fleeting(ones=None, twos=None), {lab.W: "ones", lab.TIED: "twos"})
    ones = lab.engine.add_entry(executable, lab.program())
    twos = lab.engine.add_entry(executable, lab.program(weight=lab.TIED))
    lab.engine.add_entry(executable, lab.program())
    assert lab.engine.stats().uploads == 2
    assert (lab.engine.step(executable, ones, lab.inputs(v=1.0))["scaled"] == 1).all()
    assert (lab.engine.step(executable, twos, lab.inputs(v=1.0))["scaled"] == 2).all()


def test_a_role_that_the_map_does_not_name_is_unbound_even_if_a_store_key_spells_it(lab):
    store = lab.Store(embedding=lab.stored("embedding", "f32", (4,), lab.weight))
    executable = lab.engine.load_weights(store, {})
    held = lab.held()
    with pytest.raises(BindError, match=r"weight embedding \(f32\[4\]\) is unbound"):
        lab.engine.add_entry(executable, lab.program())
    assert lab.held() == held


def test_a_map_to_a_key_that_the_store_lacks_is_refused_at_once(lab):
    with pytest.raises(WeightError, match="weight embedding is mapped to 'nothing'"):
        lab.engine.load_weights(lab.store, {lab.W: "nothing"})


@pytest.mark.parametrize(
    ("format", "shape", "nbytes", "message"),
    [
        ("f32", (5,), 20, r"embedding \('w'\) is stored as f32\[5\]; the program expects f32\[4\]"),
        ("f32", (1, 4), 16, r"stored as f32\[1, 4\]; the program expects f32\[4\]"),
        ("f16", (4,), 8, "stored as f16; the program was compiled for f32"),
        ("f32", (4,), 12, r"has 12 stored bytes; f32\[4\] takes 16"),
        ("f32", (0,), 0, r"is empty: \[0\]"),
    ],
)
def test_a_stored_tensor_that_does_not_fit_is_named(lab, format, shape, nbytes, message):
    lab.store = lab.Store(w=lab.stored("w", format, shape, np.zeros(nbytes, np.uint8)))
    executable = lab.executable()
    held = lab.held()
    with pytest.raises(WeightError, match=message):
        lab.engine.add_entry(executable, lab.program())
    assert lab.held() == held


@pytest.mark.parametrize("shape", [(6, 36), (2, 3, 36)])
def test_a_packed_weight_is_rows_of_stored_bytes(lab, shape):
    raw = np.random.default_rng(5).integers(0, 256, 6 * 36, np.uint8)
    lab.store = lab.Store(w=lab.stored("w", "q4_0", (2, 3, 64), raw))
    executable = lab.executable()
    make = lab.maker()
    make.weight(lab.W, shape, "q4_0", (2, 3, 64))
    lab.engine.add_entry(executable, make.build({}))
    assert lab.engine.stats().uploaded_bytes == 6 * 36


@pytest.mark.parametrize("shape", [(3, 2, 36), (6, 64), (36, 6)])
def test_a_packed_weight_of_another_shape_is_named(lab, shape):
    lab.store = lab.Store(w=lab.stored("w", "q4_0", (2, 3, 64), np.zeros(6 * 36, np.uint8)))
    executable = lab.executable()
    make = lab.maker()
    make.weight(lab.W, shape, "q4_0", (2, 3, 64))
    with pytest.raises(WeightError, match=r"weight embedding \('w'\) is stored as q4_0\[2, 3, 64\]"):
        lab.engine.add_entry(executable, make.build({}))


def test_all_weights_are_checked_before_the_first_is_uploaded(lab):
    bad = SimpleNamespace(shape=(5,), nbytes=20)
    lab.store = lab.Store(
        w=lab.stored("w", "f32", (4,), lab.weight),
        bad=lab.stored("bad", "f32", bad.shape, np.zeros(bad.nbytes, np.uint8)),
    )
    executable = lab.engine.load_weights(lab.store, {lab.W: "w", lab.TIED: "bad"})
    make = lab.maker()
    make.weight(lab.W, (4,))
    make.weight(lab.TIED, (4,))
    with pytest.raises(WeightError, match="bad"):
        lab.engine.add_entry(executable, make.build({}))
    assert lab.engine.stats().uploads == 0


def test_executables_do_not_share_weights(lab):
    lab.ready()
    lab.ready()
    assert lab.engine.stats().uploads == 2


def test_a_tensor_in_two_layouts_is_uploaded_in_each(lab):
    lab.store = lab.Store(w=lab.stored("w", "f32", (2, 4), np.arange(8, dtype=np.float32)))
    executable = lab.executable()
    for tile_rows, uploads in ((1, 1), (1, 1), (2, 2), (2, 2)):
        make = lab.maker()
        make.weight(lab.W, (2, 4), tile_rows=tile_rows)
        lab.engine.add_entry(executable, make.build({}))
        assert lab.engine.stats().uploads == uploads
