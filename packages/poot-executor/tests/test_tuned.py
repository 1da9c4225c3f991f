"""Measured schedules on disk: used by the device, driver and version that they are of, and by nothing else."""

import json
import logging
from dataclasses import replace

import pytest

from poot_executor.compile.schedule_picks import Schedules
from poot_executor.compile.target import Caps, Target
from poot_executor.tuned import Pick, TunedFor, load_picks, load_schedules, save_picks

TARGET = Target("vulkan", Caps())
DEVICE = TunedFor.of(TARGET, "a GPU (driver 1.2)")
KEY = "contraction 1x8 f32 1*8:f32"
PICKS = {KEY: Pick({"rows": 2, "threads": 32}, 0.5, 0.75)}


def test_what_was_saved_is_loaded(tmp_path):
    assert load_picks(tmp_path, DEVICE) == {}
    path = save_picks(tmp_path / "tuned", DEVICE, PICKS)
    assert [p.name for p in path.parent.iterdir()] == [DEVICE.file_name]
    assert load_picks(tmp_path / "tuned", DEVICE) == PICKS
    found = load_schedules(tmp_path / "tuned", TARGET, "a GPU (driver 1.2)")
    assert found == Schedules.of({KEY: {"rows": 2, "threads": 32}})
    assert load_schedules(None, TARGET, "a GPU (driver 1.2)") == Schedules()


def test_later_picks_join_replace_and_take_away(tmp_path):
    save_picks(tmp_path, DEVICE, PICKS)
    other = {"attention 1x8 1": Pick({"splits": 2}, 1.0, 2.0)}
    save_picks(tmp_path, DEVICE, other)
    assert load_picks(tmp_path, DEVICE) == {**PICKS, **other}
    save_picks(tmp_path, DEVICE, {KEY: None})
    assert load_picks(tmp_path, DEVICE) == other


@pytest.mark.parametrize("field", ["caps", "version", "kind"])
def test_picks_of_something_else_are_ignored_with_a_line(tmp_path, caplog, field):
    other = replace(DEVICE, **{field: "other"})
    path = save_picks(tmp_path, other, PICKS)
    path.rename(tmp_path / DEVICE.file_name)
    with caplog.at_level(logging.WARNING):
        assert load_picks(tmp_path, DEVICE) == {}
    assert f"their {field} is other" in caplog.text
    assert "run `poot tune` again" in caplog.text


def test_another_driver_is_another_file(tmp_path):
    save_picks(tmp_path, DEVICE, PICKS)
    assert load_picks(tmp_path, TunedFor.of(TARGET, "a GPU (driver 1.3)")) == {}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b'{"of": {}, "picks": {}}',
        b'{"of": OF, "picks": []}',
        b'{"of": OF, "picks": {"k": null}}',
        b'{"of": OF, "picks": {"k": {"values": {"rows": 1.5}, "seconds": 1.0, "heuristic": 1.0}}}',
        b'{"of": OF, "picks": {"k": {"values": {"rows": true}, "seconds": 1.0, "heuristic": 1.0}}}',
        b'{"of": OF, "picks": {"k": {"values": [], "seconds": 1.0, "heuristic": 1.0}}}',
    ],
)
def test_what_is_no_file_of_picks_is_ignored_with_a_line(tmp_path, caplog, text):
    of = json.dumps({f: getattr(DEVICE, f) for f in ("kind", "description", "caps", "version")}).encode()
    (tmp_path / DEVICE.file_name).write_bytes(text.replace(b"OF", of))
    with caplog.at_level(logging.WARNING):
        assert load_picks(tmp_path, DEVICE) == {}
    assert "are ignored" in caplog.text
    # It is written over by the next measurement.
    save_picks(tmp_path, DEVICE, PICKS)
    assert load_picks(tmp_path, DEVICE) == PICKS


def test_an_illegal_pick_is_left_out_with_a_line(tmp_path, caplog):
    save_picks(tmp_path, DEVICE, {**PICKS, "attention 1x8 1": Pick({"splits": 1000}, 1.0, 2.0)})
    with caplog.at_level(logging.WARNING):
        assert load_schedules(tmp_path, TARGET, "a GPU (driver 1.2)") == Schedules.of({KEY: PICKS[KEY].values})
    assert "attention 1x8 1 is ignored: splits is 1000" in caplog.text
