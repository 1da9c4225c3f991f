"""The loop over one driver: takes requests, compiles their constraints aside, steps, and says what came of it."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic

from poot_executor.errors import BindError, CompileLimit, OutOfMemory, PootError, RequestError, Unsupported
from poot_llm.driver import Delivery, Driver, FinishReason, Request, Scheduler
from poot_llm.guided.limits import GuideLimits
from poot_llm.sampling import SamplingParams
from poot_serve.engine.clocks import Clocks
from poot_serve.engine.constraints import Compiled, Constraints
from poot_serve.engine.job import Job
from poot_serve.engine.messages import Accepted, Cancel, Close, Encode, Event, Failed, Generate, Message, Report, Tokens
from poot_serve.engine.stats import EngineStats
from poot_serve.engine.tally import Tally

COUNT_SECONDS = 1.0
"""How old counts of tokens, steps and times may be that a report leaves out."""
MOST_MESSAGES = 256
"""That are read before the next step: a flood of them does not hold up those that run."""


class Loop:
    """Runs until it is told to close. One thread runs it; messages come from any.

    A turn reads what has arrived, steps all that can step, and sends one report.
    """

    def __init__(
        self,
        driver: Driver,
        inbox: SimpleQueue[Message | Compiled],
        send: Callable[[Report], None],
        *,
        prefill_tokens: int,
        prepared: bool,
        guides: GuideLimits | None = None,
    ) -> None:
        """`prepared`: every step that a request may need is. Otherwise it is compiled when the request comes."""
        self._driver = driver
        self._inbox = inbox
        self._send = send
        self._prepared = prepared
        self._scheduler = Scheduler(driver, prefill_tokens)
        self._guides = Constraints(driver.handle, guides, inbox.put)
        self._jobs: dict[int, Job] = {}
        self._answers: dict[Request, tuple[Job, int]] = {}
        self._announced: set[Request] = set()
        self._events: list[Event] = []
        self._plain: list[tuple[int, int, tuple[int, ...]]] = []
        self._tally = Tally()
        self._mark = Clocks.read(driver)
        self._counted: tuple[int, ...] = ()
        self._count_at = 0.0

    def run(self, *events: Event) -> None:
        """Until a Close comes; `events` are said first. Raises DeviceError where the device cannot go on."""
        self._events += events
        try:
            self._report()
            while self.turn():
                pass
        finally:
            self._guides.close()

    def _report(self, *, everything: bool = True) -> None:
        """Say what happened, and how things are: `everything`, or where it is not what was said of late."""
        stats = self._counts() if everything or self._events or not self._scheduler.busy or self._counts_due() else None
        self._send(Report(tuple(self._events), stats, tuple(self._plain)))
        self._events.clear()
        self._plain.clear()

    def _counts_due(self) -> bool:
        """Whether more is new than tokens, steps and times, or those were said long ago."""
        return self._places() != self._counted or monotonic() >= self._count_at

    def _places(self) -> tuple[int, ...]:
        scheduler, tally = self._scheduler, self._tally
        return scheduler.waiting, scheduler.running, len(self._guides), scheduler.preemptions, tally.cancelled

    def _counts(self) -> EngineStats:
        if self._tally.wants_memory:
            self._tally.memory(self._driver.stats())
        self._counted, self._count_at = self._places(), monotonic() + COUNT_SECONDS
        waiting, running, compiling, preemptions, _ = self._counted
        return self._tally.snapshot(
            waiting=waiting, running=running, compiling=compiling, preemptions=preemptions, use=self._driver.use()
        )

    # A turn

    def turn(self) -> bool:
        """Read, step, report; False once a Close came. Where there is nothing to do it waits for a message."""
        if not self._read():
            return False
        if self._scheduler.busy:
            for delivery in self._scheduler.step():
                self._deliver(delivery)
            now = Clocks.read(self._driver)
            self._tally.step(now.since(self._mark))
            # What the report takes is the next turn's.
            self._mark = now
        self._report(everything=False)
        return True

    def _read(self) -> bool:
        """Take what has arrived, waiting where there is nothing else to do; False at the end."""
        wait = not self._scheduler.busy
        for _ in range(MOST_MESSAGES):
            try:
                if wait:
                    item = self._inbox.get(timeout=self._guides.patience())
                    wait, self._mark = False, Clocks.read(self._driver)
                else:
                    item = self._inbox.get_nowait()
            except Empty:
                break
            if isinstance(item, Close):
                return False
            self._take(item)
        for job, error in self._guides.late():
            self._refuse(job.message, error)
        return True

    def _take(self, item: Message | Compiled) -> None:
        match item:
            case Generate():
                self._open(item)
            case Cancel():
                self._cancel(item)
            case Compiled(id):
                if (job := self._guides.take(id)) is not None:
                    self._compiled(job)
            case Encode(id):
                self._events.append(Failed(id, "RequestError", "this model generates: it encodes no texts"))
            case Close():
                raise AssertionError("read before")

    # Requests

    def _open(self, message: Generate) -> None:
        job = Job.of(message)
        if message.params.structured_outputs is None:
            self._begin(job)
            return
        try:
            self._guides.submit(job)
        except RequestError as error:
            self._refuse(message, error)

    def _compiled(self, job: Job) -> None:
        assert job.guide is not None
        if (error := job.guide.exception()) is not None:
            self._refuse(job.message, error)
            return
        self._events.append(Accepted(job.message.id))
        self._begin(job)

    def _begin(self, job: Job) -> None:
        """Hand a request's answers to the scheduler, which has one of them read the prompt where others share it."""
        message = job.message
        self._jobs[message.id] = job
        try:
            for choice in range(message.params.n):
                params = job.answer(choice)
                guide = None if job.guide is None else job.guide.result().copy()
                if not self._prepared:
                    self._prepare(len(message.prompt_ids), params)
                request = self._scheduler.add(message.prompt_ids, params, guide=guide)
                job.live[choice] = request
                self._answers[request] = job, choice
        except (RequestError, Unsupported, CompileLimit, OutOfMemory) as error:
            self._tally.failed += message.params.n - len(job.live)
            self._fail(job, error)

    def _prepare(self, prompt: int, params: SamplingParams) -> None:
        """Compile what a request will need, so that no step does."""
        scheduler = self._scheduler
        self._driver.prepare_for(prompt, params)
        rows = min(scheduler.waiting + scheduler.running + 1, self._driver.rows)
        self._driver.prepare_batch(rows, params.suffix)

    def _cancel(self, message: Cancel) -> None:
        if (job := self._guides.take(message.id)) is not None:
            self._tally.cancelled += job.message.params.n
            return
        job = self._jobs.get(message.id)
        if job is None:
            return
        choices = job.open if message.choice is None else [message.choice]
        for choice in choices:
            ended = self._end(job, choice)
            self._tally.finished += ended and message.done
            self._tally.cancelled += ended and not message.done

    # Answers

    def _deliver(self, delivery: Delivery) -> None:
        request = delivery.request
        if request not in self._answers:
            return  # of a request that failed with another answer
        job, choice = self._answers[request]
        reason = delivery.finish_reason
        failed = reason is FinishReason.ERROR
        self._tally.generated_tokens += len(delivery.tokens)
        cached = queued = None
        if self._announce(request):
            assert request.sequence is not None and request.admitted is not None
            cached, queued = request.sequence.timings.kept_tokens, request.admitted - request.added
        if delivery.tokens and reason is None and queued is None and not delivery.logprobs:
            self._plain.append((job.message.id, choice, delivery.tokens))
        elif delivery.tokens:
            shown = None if failed else reason
            self._events.append(
                Tokens(job.message.id, choice, delivery.tokens, delivery.logprobs, shown, cached, queued)
            )
        if failed:
            self._fail(job, delivery.failure or BindError("the answer ended in an error that nobody named"))
        elif reason is not None:
            self._tally.finished += 1
            self._end(job, choice)

    def _announce(self, request: Request) -> bool:
        """Count what is known once an answer has its row; whether this is the first time."""
        sequence = request.sequence
        if request in self._announced or sequence is None or request.admitted is None:
            return False
        self._announced.add(request)
        self._tally.queued += 1
        self._tally.queue_seconds += request.admitted - request.added
        self._tally.prompt_tokens += len(request.prompt_ids)
        self._tally.prefix_tokens += sequence.timings.kept_tokens
        return True

    def _end(self, job: Job, choice: int) -> bool:
        """Give an answer's room back; whether there was one."""
        request = job.live.pop(choice, None)
        if request is None:
            return False
        self._announce(request)
        self._announced.discard(request)
        if request.sequence is not None:
            self._tally.guessed_tokens += request.sequence.timings.guessed_tokens
            self._tally.accepted_tokens += request.sequence.timings.accepted_tokens
        del self._answers[request]
        self._scheduler.finish(request)
        if not job.live:
            self._jobs.pop(job.message.id, None)
        return True

    def _fail(self, job: Job, error: PootError) -> None:
        """End a whole request."""
        for choice in job.open:
            self._tally.failed += self._end(job, choice)
        self._jobs.pop(job.message.id, None)
        self._events.append(Failed(job.message.id, type(error).__name__, str(error)))

    def _refuse(self, message: Generate, error: BaseException) -> None:
        """End a request that has not begun."""
        self._tally.failed += message.params.n
        self._events.append(Failed(message.id, type(error).__name__, str(error)))
