"""What is read from disk beside other work: one thing after another, in a thread of its own.

Whoever starts up has other work meanwhile, and then waits for what it needs first. What comes behind that is left until
the first step is over, or it would take the processors from it. Where nobody waits, one follows the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import Any, Generic, TypeVar

from poot_executor.errors import DeviceTimeout

T = TypeVar("T")


class Later(Generic[T]):
    """What a loader makes, or what was there already."""

    __slots__ = ("_future", "_loader", "awaited", "make")

    def __init__(self, loader: Loader | None, make: Callable[[], T] | None) -> None:
        self._loader = loader
        self._future: Future[T] = Future()
        self.make = make
        self.awaited = False

    @classmethod
    def ready(cls, made: T) -> Later[T]:
        """One that is there."""
        later = cls(None, None)
        later._future.set_result(made)
        return later

    @property
    def done(self) -> bool:
        """Whether it is made, or failed."""
        return self._future.done()

    def result(self, timeout: float) -> T:
        """Wait for it, no longer than that, in seconds. Raises, each time, what making it raised; CancelledError where
        its loader was closed before; DeviceTimeout."""
        if not self._future.done() and self._loader is not None:
            self._loader.want(self)
        self.wait(timeout)
        if not self._future.done():
            raise DeviceTimeout("reading a compiled model", timeout)
        return self._future.result()

    def drop(self) -> None:
        """It is not needed: if it is not begun, it never will be."""
        if self._loader is not None:
            self._loader.drop(self)

    def settled(self, made: T | None, error: BaseException | None) -> None:
        """Hand it, or its failure, to those that wait."""
        self.make = None
        if error is None:
            self._future.set_result(made)  # type: ignore[arg-type]
        else:
            self._future.set_exception(error)

    def wait(self, timeout: float) -> None:
        """Wait for it no longer than that, in seconds."""
        wait([self._future], timeout)


class Loader:
    """Makes what it is given in turn. It is used from one thread, beside its own."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="poot-vpu-load")
        self._lock = Lock()
        self._waiting: deque[Later[Any]] = deque()
        self._running: Later[Any] | None = None
        self._held = False

    def add(self, make: Callable[[], T]) -> Later[T]:
        """Begin it as soon as what was added before is made."""
        later = Later(self, make)
        with self._lock:
            self._waiting.append(later)
            if not self._held:
                self._begin()
        return later

    def want(self, later: Later[Any]) -> None:
        """Somebody waits for it: it is next, and what comes behind it waits for `go_on`."""
        with self._lock:
            later.awaited = True
            if later in self._waiting:
                self._waiting.remove(later)
                self._waiting.appendleft(later)
                self._begin()

    def go_on(self) -> None:
        """A step is over: what is left may begin."""
        if not self._held:
            return
        with self._lock:
            self._held = False
            self._begin()

    def drop(self, later: Later[Any]) -> None:
        """Take back what is not begun."""
        with self._lock:
            if later in self._waiting:
                self._waiting.remove(later)
                later.settled(None, CancelledError())

    def close(self, timeout: float) -> None:
        """Drop what is not begun, and wait for what is, no longer than that. Idempotent."""
        for later in tuple(self._waiting):
            self.drop(later)
        running = self._running
        if running is not None:
            running.wait(timeout)
        self._thread.shutdown(wait=False)

    def _begin(self) -> None:
        """Under the lock."""
        if self._running is None and self._waiting:
            self._running = self._waiting.popleft()
            self._thread.submit(self._run, self._running)

    def _run(self, later: Later[Any]) -> None:
        made, failure = None, None
        try:
            assert later.make is not None
            made = later.make()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is asked for
            failure = error
        with self._lock:
            self._running = None
            self._held = later.awaited
            if not self._held:
                self._begin()
        later.settled(made, failure)
