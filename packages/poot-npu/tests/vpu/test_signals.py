"""Signals after devices have closed: in a process of its own, which a fault ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import faulthandler, gc, signal, sys, threading
from poot_executor.discover import open_device
from poot_executor.settings import DeviceSettings

faulthandler.enable()
opened = [open_device("vpu:cpu", DeviceSettings(cache=None))[0] for _ in range(2)]

def leave():
    while opened:
        opened.pop(0).close()
        gc.collect()

if sys.argv[1] == "here":
    leave()
else:
    other = threading.Thread(target=leave)
    other.start()
    other.join()
seen = threading.Event()
signal.signal(signal.SIGINT, lambda number, frame: seen.set())
signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
assert seen.wait(30)
print("handled", flush=True)
"""


@pytest.mark.device("vpu")
@pytest.mark.parametrize("where", ["here", "in another thread"])
def test_a_signal_is_handled_after_devices_closed_in_any_order(where: str) -> None:
    program = [sys.executable, "-c", _PROGRAM, where]
    ran = subprocess.run(program, check=False, capture_output=True, text=True, timeout=240)
    assert (ran.returncode, ran.stdout) == (0, "handled\n"), ran.stderr[-2000:]
