"""Constraints of requests on their way to guides: compiled in other threads, within their time, told to the loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic

from poot_executor.errors import RequestError
from poot_llm.guided.compiler import GuideCompiler
from poot_llm.guided.guide import Guide
from poot_llm.guided.limits import GuideLimits
from poot_llm.registry import ModelHandle
from poot_serve.engine.job import Job


@dataclass(frozen=True, slots=True)
class Compiled:
    """A request's constraint is compiled, or was refused: what a compiler's thread puts among the messages."""

    id: int


class Constraints:
    """The requests whose constraints are being compiled. `tell` is called by a compiler's thread."""

    def __init__(self, handle: ModelHandle, limits: GuideLimits | None, tell: Callable[[Compiled], None]) -> None:
        self._guides = GuideCompiler(handle.tokenizer, handle.config.vocabulary, limits)
        self._tell = tell
        self._jobs: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def submit(self, job: Job) -> None:
        """Compile a request's constraint. Raises RequestError for one that is refused at once."""
        message = job.message
        assert message.params.structured_outputs is not None
        job.guide = self._guides.submit(message.params.structured_outputs)
        job.until = monotonic() + self._guides.limits.seconds
        self._jobs[message.id] = job

        def done(_: Future[Guide]) -> None:
            self._tell(Compiled(message.id))

        job.guide.add_done_callback(done)

    def take(self, id: int) -> Job | None:
        """A request that waits for its constraint no longer; None where it did not."""
        return self._jobs.pop(id, None)

    def patience(self) -> float | None:
        """Seconds until the next one is late; None where none waits."""
        ends = [job.until for job in self._jobs.values()]
        return max(min(ends) - monotonic(), 0.0) if ends else None

    def late(self) -> list[tuple[Job, RequestError]]:
        """Those that take too long, taken; what was compiled of them may serve a later request."""
        if not self._jobs:
            return []
        now, seconds = monotonic(), self._guides.limits.seconds
        late: list[tuple[Job, RequestError]] = []
        for id in [id for id, job in self._jobs.items() if job.until <= now]:
            job = self._jobs.pop(id)
            spec = job.message.params.structured_outputs
            assert spec is not None
            late.append((job, RequestError(f"structured_outputs.{spec.kind} was not compiled within {seconds:g} s")))
        return late

    def close(self) -> None:
        """Stop the compiler's threads."""
        self._guides.close()
