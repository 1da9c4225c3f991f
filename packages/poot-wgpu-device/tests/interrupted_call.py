"""A call that a signal interrupts, then another: prints that it was interrupted, and what the second one gave."""

from __future__ import annotations

import signal
import threading
from threading import Event
from typing import Any

from poot_wgpu_device.wait import Worker


def main() -> None:
    """Send this process's main thread the signal until it was seen in the call."""
    worker, begun, seen, release = Worker(), Event(), Event(), Event()
    main = threading.main_thread().ident
    assert main is not None

    def interrupted() -> int:
        begun.set()
        release.wait(30)
        return 1

    def interrupt() -> None:
        begun.wait(30)
        # Again and again: a signal that comes just before the wait does not end it.
        while not seen.wait(0.1):
            signal.pthread_kill(main, signal.SIGINT)

    def handle(_number: int, _frame: Any) -> None:
        if not seen.is_set():
            seen.set()
            raise KeyboardInterrupt

    sender = threading.Thread(target=interrupt)
    signal.signal(signal.SIGINT, handle)
    sender.start()
    try:
        worker.call(interrupted, 30)
    except KeyboardInterrupt:
        print("interrupted")
    sender.join()
    release.set()
    print(worker.call(lambda: 2, 30))
    worker.stop()


if __name__ == "__main__":
    main()
