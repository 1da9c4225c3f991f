"""Bounded waits: every call gets its own answer, also after one that was interrupted."""

import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest

from poot_wgpu_device.wait import Worker


def test_a_call_gives_or_raises_what_the_work_does():
    worker = Worker()
    assert worker.call(lambda: 7, 5) == 7
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 // 0, 5)
    assert worker.call(lambda: 8, 5) == 8
    worker.stop()


def test_a_call_that_takes_too_long_is_none():
    worker, release = Worker(), Event()
    assert worker.call(lambda: release.wait(30) and 1, 0.05) is None
    release.set()


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="the signal is sent the POSIX way")
def test_after_an_interrupt_the_next_call_gets_its_own_answer():
    """In a process of its own: signals are a process's, and other libraries of a test run take part in them."""
    child = Path(__file__).parent / "interrupted_call.py"
    done = subprocess.run([sys.executable, str(child)], capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout.split()) == (0, ["interrupted", "2"]), done.stderr
