"""`GuideCompiler`: constraints of requests compiled off the step path, under limits, and kept for the next request."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from threading import Lock
from typing import Self

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from poot_executor.errors import RequestError
from poot_llm.guided.grammar import grammar_text
from poot_llm.guided.guide import Guide, GuideFailed, mask_of, reason_of
from poot_llm.guided.limits import GuideLimits
from poot_llm.guided.spec import StructuredOutputs
from poot_llm.guided.vocabulary import guide_tokenizer
from poot_llm.tokenizer import Tokenizer


class GuideCompiler:
    """Compiles constraints for one model's tokens. Safe to call from several threads.

    Compiling runs in a few threads of its own, in which the package lets go of Python's lock. Equal constraints are
    compiled once and kept, the least recently used go first; what was refused is not kept.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, limits: GuideLimits | None = None) -> None:
        """`vocabulary` is the model's, the columns of its logits. Nothing is computed yet."""
        self.limits = GuideLimits() if limits is None else limits
        self._source = tokenizer
        self._vocabulary = vocabulary
        self._words = -(-vocabulary // 32)
        self._tokenizer: LLTokenizer | None = None
        self._lock = Lock()
        self._reading = Lock()
        self._kept: OrderedDict[StructuredOutputs, Future[Guide]] = OrderedDict()
        self._pending = 0
        self._compiling = ThreadPoolExecutor(self.limits.workers, "poot-guide-compile")
        self._masks = ThreadPoolExecutor(self.limits.workers, "poot-guide-mask")

    def submit(self, spec: StructuredOutputs) -> Future[Guide]:
        """Begin to compile; the future's guide stands at the beginning, and is not to be used but for `copy`.

        Raises RequestError where too many constraints are waiting; the future raises what `compile` does.
        """
        with self._lock:
            found = self._kept.get(spec)
            if found is not None:
                self._kept.move_to_end(spec)
                return found
            if self._pending >= self.limits.pending:
                raise RequestError(f"structured_outputs: {self._pending} constraints wait to be compiled, try later")
            self._pending += 1
            future = self._kept[spec] = self._compiling.submit(self._build, spec)
            while len(self._kept) > self.limits.kept:
                self._kept.popitem(last=False)
        future.add_done_callback(lambda done: self._settled(spec, done))
        return future

    def compile(self, spec: StructuredOutputs) -> Guide:
        """A guide at the beginning of an answer.

        Raises RequestError naming the field: for what does not parse or is not supported, for what no answer can be,
        and for what takes more than the limits allow. A constraint that is late goes on compiling, and may be there
        when it is asked for again.
        """
        try:
            return self.submit(spec).result(self.limits.seconds).copy()
        except Late:
            seconds = self.limits.seconds
            raise RequestError(f"structured_outputs.{spec.kind} was not compiled within {seconds:g} s") from None

    def close(self) -> None:
        """Let the threads end; idempotent. What is being compiled is not waited for."""
        self._compiling.shutdown(wait=False, cancel_futures=True)
        self._masks.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _settled(self, spec: StructuredOutputs, done: Future[Guide]) -> None:
        with self._lock:
            self._pending -= 1
            failed = done.cancelled() or done.exception() is not None
            if failed and self._kept.get(spec) is done:
                del self._kept[spec]

    def _build(self, spec: StructuredOutputs) -> Guide:
        grammar = grammar_text(spec, self.limits)
        matcher = LLMatcher(self._tokens(), grammar, log_level=0, limits=parser_limits(self.limits))
        if matcher.is_error():
            raise RequestError(f"structured_outputs.{spec.kind} cannot be compiled: {reason_of(matcher)}")
        try:
            mask_of(matcher.deep_copy(), self._words)
        except GuideFailed as failure:
            problem = "allows no answer" if "NoExtension" in f"{failure}" else "is beyond the limits of a step"
            raise RequestError(f"structured_outputs.{spec.kind} {problem}: {failure}") from None
        return Guide(matcher, self._words, self._masks)

    def _tokens(self) -> LLTokenizer:
        with self._reading:
            if self._tokenizer is None:
                self._tokenizer = guide_tokenizer(self._source, self._vocabulary)
            return self._tokenizer


def parser_limits(limits: GuideLimits) -> LLParserLimits:
    """The limits by the package's names."""
    return LLParserLimits(
        initial_lexer_fuel=limits.build_fuel,
        step_lexer_fuel=limits.step_fuel,
        step_max_items=limits.step_items,
        max_lexer_states=limits.states,
        max_grammar_size=limits.grammar_symbols,
        verbose_errors=False,
    )
