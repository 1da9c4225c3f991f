"""`poot chat [MODEL]`: a conversation. Ctrl-C stops a reply, Ctrl-D leaves, /reset starts over."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from poot_executor.errors import RequestError
from poot_llm.cli.generate import sampling_params
from poot_llm.cli.interrupt import rearm
from poot_llm.cli.loading import Loading
from poot_llm.cli.offer import DEFAULT, model_or_offer
from poot_llm.cli.output import note, write
from poot_llm.cli.parser import add_device, add_model, add_sampling, add_shape
from poot_llm.cli.session import open_session
from poot_llm.driver import Driver, FinishReason
from poot_llm.generation import TextPiece
from poot_llm.registry import Models
from poot_llm.sampling import SamplingParams

HELP = "Ctrl-C stops a reply, /reset starts over, /exit or Ctrl-D leaves"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, how to sample, what to run on."""
    add_model(parser, DEFAULT)
    parser.add_argument("--system", metavar="TEXT", help="a system message before the conversation")
    # What the authors of the small default recommend; a small model wanders off at higher temperatures.
    add_sampling(parser, temperature=0.2, max_tokens=None, top_p=0.9)
    add_device(parser)
    add_shape(parser)


def run(arguments: argparse.Namespace) -> int:
    """Talk until the input ends. Raises PootError where nothing can be said at all, or where input is no terminal."""
    params = sampling_params(arguments)
    handle = Models().open(model_or_offer(arguments.model))
    # Where the checkpoint has no usable template, this says so before a device is opened.
    handle.template.encode([{"role": "user", "content": "?"}], handle.tokenizer)
    interactive = sys.stdin.isatty()
    if interactive:
        with suppress(ImportError):
            import readline  # noqa: F401 - what makes input() edit lines
    with open_session(handle, arguments) as session:
        if interactive:
            note(HELP)
        talk(Conversation(session.driver, params, arguments.system, session.loading), interactive)
    return 0


@dataclass(slots=True)
class Conversation:
    """What was said, and the driver that answers."""

    driver: Driver
    params: SamplingParams
    system: str | None
    loading: Loading
    messages: list[dict[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def say(self, text: str) -> None:
        """Send a message and stream the reply. Raises RequestError, and takes nothing into the history then."""
        asked = [*self.messages, {"role": "user", "content": text}]
        handle = self.driver.handle
        prompt_ids = handle.template.encode(asked, handle.tokenizer)
        reply: list[str] = []
        with stop_on_interrupt() as interrupt, self.loading.stream(self.driver, prompt_ids, self.params) as stream:
            reason = self._listen(self.loading.pieces(stream), reply, interrupt)
        if reply or reason is not None:
            self.messages = [*asked, {"role": "assistant", "content": "".join(reply)}]
        if reason is None:
            note("[stopped]")
        elif reason is FinishReason.LENGTH and len(stream.tokens) != self.params.max_tokens:
            note(f"[the {self.driver.capacity} positions are full: /reset starts over]")

    @staticmethod
    def _listen(pieces: Iterator[TextPiece], reply: list[str], interrupt: Interrupt) -> FinishReason | None:
        """Write pieces until the reply ends, or None where it was stopped."""
        try:
            for piece in pieces:
                if piece.text:
                    write(piece.text)
                    reply.append(piece.text)
                if piece.finish_reason is not None:
                    return piece.finish_reason
                if interrupt.requested:
                    return None
            return None
        finally:
            write("\n")


def talk(conversation: Conversation, interactive: bool) -> None:
    """Read lines and answer them. A refused message is shown and the conversation goes on, on a terminal."""
    for line in _lines(interactive):
        match line.strip():
            case "":
                continue
            case "/exit":
                return
            case "/reset":
                conversation.reset()
                note("[a new conversation]")
            case "/help":
                note(HELP)
            case text:
                try:
                    conversation.say(text)
                except RequestError as error:
                    if not interactive:
                        raise
                    note(f"poot: {error}; /reset starts over")


def _lines(interactive: bool) -> Iterator[str]:
    """Lines until the input ends; Ctrl-C at the prompt begins a new one."""
    if not interactive:
        yield from sys.stdin
        return
    while True:
        try:
            yield input("> ")
        except EOFError:
            write("\n")
            return
        except KeyboardInterrupt:
            rearm()
            write("\n")
            note(HELP)


@dataclass(slots=True)
class Interrupt:
    """Whether Ctrl-C was pressed."""

    requested: bool = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The first time ask for the end of the reply; the second time raise KeyboardInterrupt."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def stop_on_interrupt() -> Iterator[Interrupt]:
    """Within it Ctrl-C is a request that is looked at between tokens, so that no step is torn."""
    interrupt = Interrupt()
    before = signal.signal(signal.SIGINT, interrupt.handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
