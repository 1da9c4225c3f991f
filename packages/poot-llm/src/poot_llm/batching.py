"""A thread that serves one driver: requests come from any thread, run together, and their tokens go back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from poot_executor.errors import BindError, PootError, RequestError
from poot_llm.driver import Delivery, Driver, Request, Scheduler
from poot_llm.sampling import SamplingParams

Result = TypeVar("Result")
Deliver = Callable[[Delivery | PootError], None]
"""Takes what a request gets, in the worker's thread: deliveries, or the error that ended everything."""


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A request that was handed in. `deliver` is called until a delivery has a finish reason, or with an error."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    deliver: Deliver


@dataclass(frozen=True, slots=True)
class _Cancel:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class _Call:
    """Something to be done with the driver, and where its outcome goes."""

    run: Callable[[Driver], Any]
    outcome: Future[Any]


class BatchWorker:
    """Opens a driver in a thread of its own, which alone calls it, and runs what is handed in through a scheduler."""

    def __init__(self, opening: Callable[[], AbstractContextManager[Driver]]) -> None:
        """Waits until the driver is open. Raises what opening it raises."""
        self._inbox: SimpleQueue[Ticket | _Cancel | _Call | None] = SimpleQueue()
        self._opened: SimpleQueue[Driver | BaseException] = SimpleQueue()
        self._failure: PootError | None = None
        self._live: dict[Request, Ticket] = {}
        self._calls: deque[_Call] = deque()
        self._thread = Thread(target=self._run, args=(opening,), name="poot-driver", daemon=True)
        self._thread.start()
        outcome = self._opened.get()
        if isinstance(outcome, BaseException):
            self._thread.join()
            raise outcome
        self.driver = outcome
        """What serves; it is the worker's to call, its facts are anybody's to read."""

    def submit(self, prompt_ids: tuple[int, ...], params: SamplingParams, deliver: Deliver) -> Ticket:
        """Hand in a request; its prompt and parameters were checked. Raises what ended the worker, if anything did."""
        self._require()
        ticket = Ticket(prompt_ids, params, deliver)
        self._inbox.put(ticket)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Give a request up, in whatever state it is: its room is free with the next step. Idempotent."""
        self._inbox.put(_Cancel(ticket))

    def call(self, run: Callable[[Driver], Result]) -> Future[Result]:
        """Do something with the driver in its thread, between two steps, one call between two; what it raises is the
        future's. Cancelling the future gives up one that was not begun. Raises what ended the worker, if anything did.
        """
        self._require()
        outcome: Future[Result] = Future()
        self._inbox.put(_Call(run, outcome))
        return outcome

    def _require(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._thread.is_alive():
            raise BindError("the model is closed")

    def close(self) -> None:
        """Give up what is running, close the driver, wait for the thread; idempotent."""
        self._inbox.put(None)
        self._thread.join()

    # In the thread

    def _run(self, opening: Callable[[], AbstractContextManager[Driver]]) -> None:
        try:
            context = opening()
            driver = context.__enter__()
        except BaseException as error:  # noqa: BLE001 - raised again, in the thread that asked
            self._opened.put(error)
            return
        self._opened.put(driver)
        try:
            self._serve(Scheduler(driver))
        except PootError as error:
            self._fail(error)
        finally:
            self._fail(BindError("the model was closed"))
            context.__exit__(None, None, None)

    def _serve(self, scheduler: Scheduler) -> None:
        while self._take(scheduler):
            self._answer_one(scheduler.driver)
            for delivery in scheduler.step():
                ticket = self._live[delivery.request]
                if delivery.finish_reason is not None:
                    del self._live[delivery.request]
                ticket.deliver(delivery)

    def _answer_one(self, driver: Driver) -> None:
        """Do what was called for longest."""
        if not self._calls:
            return
        call = self._calls.popleft()
        if not call.outcome.set_running_or_notify_cancel():
            return
        try:
            result = call.run(driver)
        except Exception as error:  # noqa: BLE001 - raised again, in the thread that asked
            call.outcome.set_exception(error)
        else:
            call.outcome.set_result(result)

    def _take(self, scheduler: Scheduler) -> bool:
        """Read the inbox, waiting where there is nothing else to do; False at the end."""
        arrived: list[Ticket] = []
        while True:
            try:
                item = self._inbox.get(block=not (scheduler.busy or arrived or self._calls))
            except Empty:
                break
            match item:
                case None:
                    return False
                case Ticket():
                    arrived.append(item)
                case _Call():
                    self._calls.append(item)
                case _Cancel(ticket):
                    if ticket in arrived:
                        arrived.remove(ticket)
                    for request in [r for r, t in self._live.items() if t is ticket]:
                        del self._live[request]
                        scheduler.finish(request)
        for ticket in arrived:
            self._admit(scheduler, ticket)
        return True

    def _admit(self, scheduler: Scheduler, ticket: Ticket) -> None:
        try:
            request = scheduler.add(ticket.prompt_ids, ticket.params)
            rows = min(scheduler.waiting + scheduler.running, scheduler.driver.rows)
            scheduler.driver.prepare_batch(rows, ticket.params.suffix)
        except RequestError as error:
            ticket.deliver(error)
            return
        self._live[request] = ticket

    def _fail(self, error: PootError) -> None:
        """Nothing more is served: every request that was handed in gets the error."""
        if self._failure is None:
            self._failure = error
        waiting = list(self._live.values())
        self._live.clear()
        while True:
            try:
                item = self._inbox.get_nowait()
            except Empty:
                break
            if isinstance(item, Ticket):
                waiting.append(item)
            elif isinstance(item, _Call):
                self._calls.append(item)
        while self._calls:
            outcome = self._calls.popleft().outcome
            if outcome.set_running_or_notify_cancel():
                outcome.set_exception(self._failure)
        for ticket in waiting:
            ticket.deliver(self._failure)
