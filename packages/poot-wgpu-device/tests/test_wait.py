"""Bounded waits: every call gets its own answer, also after one that was interrupted."""

import signal
import threading
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
    worker, begun, seen, release = Worker(), Event(), Event(), Event()
    main = threading.main_thread().ident

    def interrupted() -> int:
        begun.set()
        release.wait(30)
        return 1

    def interrupt() -> None:
        begun.wait(30)
        # Again and again: a signal that comes just before the wait does not end it.
        while not seen.wait(0.1):
            signal.pthread_kill(main, signal.SIGINT)

    def handle(number, frame) -> None:
        if not seen.is_set():
            seen.set()
            raise KeyboardInterrupt

    sender = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, handle)
    try:
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            worker.call(interrupted, 30)
        sender.join()
    finally:
        signal.signal(signal.SIGINT, before)
    release.set()
    assert worker.call(lambda: 2, 30) == 2
    worker.stop()
