"""`poot generate MODEL PROMPT`: a continuation, or with --chat the answer to a message."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from poot_executor.errors import RequestError
from poot_llm.cli.offer import model_or_offer
from poot_llm.cli.output import write
from poot_llm.cli.parser import add_device, add_model, add_sampling, add_shape
from poot_llm.cli.session import Session, open_session
from poot_llm.generation import Completion, TextPiece
from poot_llm.registry import ModelHandle, Models
from poot_llm.sampling import SamplingParams

MAX_MESSAGES_BYTES = 64 << 20
"""Far beyond any context."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, PROMPT or --messages, how to sample, what to run on."""
    add_model(parser)
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="text to continue, or the message with --chat")
    parser.add_argument("--chat", action="store_true", help="put PROMPT through the model's chat template")
    parser.add_argument("--system", metavar="TEXT", help="a system message before it; with --chat")
    parser.add_argument(
        "--messages", metavar="FILE", help="a conversation as a JSON list of {role, content}, - is standard input"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end, no text before it")
    add_sampling(parser, temperature=0.0, max_tokens=None)
    add_device(parser)
    add_shape(parser)


def run(arguments: argparse.Namespace) -> int:
    """Stream the text to standard output. Raises PootError for whatever is refused."""
    params = sampling_params(arguments)
    messages = _messages(arguments)
    handle = Models().open(model_or_offer(arguments.model))
    prompt_ids = _prompt_ids(handle, arguments, messages)
    with (
        open_session(handle, arguments) as session,
        session.loading.stream(session.driver, prompt_ids, params) as stream,
    ):
        if arguments.json:
            completion = stream.complete()
            write(json.dumps(_report(completion, session), ensure_ascii=False) + "\n")
        else:
            stream_text(session.loading.pieces(stream))
    return 0


def sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    """The options of `add_sampling`. Raises RequestError by name."""
    return SamplingParams(
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        min_p=arguments.min_p,
        seed=arguments.seed,
        max_tokens=arguments.max_tokens,
        stop=tuple(arguments.stop),
    )


def stream_text(pieces: Iterable[TextPiece]) -> None:
    """Write pieces as they come, then end the line, also where the stream fails."""
    begun = False
    try:
        for piece in pieces:
            if piece.text:
                write(piece.text)
                begun = True
    except Exception:
        if begun:
            write("\n")
        raise
    write("\n")


def _messages(arguments: argparse.Namespace) -> list[dict[str, Any]] | None:
    """The conversation, None for a plain prompt. Raises RequestError for options that contradict one another."""
    if arguments.messages is not None:
        if arguments.prompt is not None or arguments.system is not None:
            given = "a PROMPT" if arguments.prompt is not None else "--system"
            raise RequestError(f"--messages: the file holds the whole conversation, {given} does not go with it")
        return read_messages(arguments.messages)
    if not arguments.prompt:
        problem = "there is none: give a PROMPT or --messages FILE" if arguments.prompt is None else "it is empty"
        raise RequestError(f"prompt: {problem}")
    if not arguments.chat:
        if arguments.system is not None:
            raise RequestError("--system: it goes with --chat alone, a plain prompt has no messages")
        return None
    system = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
    return [*system, {"role": "user", "content": arguments.prompt}]


def read_messages(name: str) -> list[dict[str, Any]]:
    """The messages in a JSON file, or in standard input for "-". Raises RequestError naming the file and the place."""
    try:
        if name == "-":
            text = sys.stdin.read(MAX_MESSAGES_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                text = file.read(MAX_MESSAGES_BYTES + 1).decode()
        if len(text) > MAX_MESSAGES_BYTES:
            raise RequestError(f"--messages {name}: it has more than {MAX_MESSAGES_BYTES:,} bytes")
        messages = json.loads(text)
    except OSError as error:
        raise RequestError(f"--messages {name}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"--messages {name}: not JSON in UTF-8: {error}") from error
    if not isinstance(messages, list) or not messages:
        raise RequestError(f"--messages {name}: a list of messages is needed, with one at least")
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError(f"--messages {name}: message {place} is no object with a role")
    return messages


def _prompt_ids(handle: ModelHandle, arguments: argparse.Namespace, messages: list[dict[str, Any]] | None) -> list[int]:
    """Token ids. What the user wrote never becomes a control token."""
    if messages is None:
        return handle.tokenizer.encode(arguments.prompt, add_special=True, parse_special=False)
    return handle.template.encode(messages, handle.tokenizer)


def _report(completion: Completion, session: Session) -> dict[str, Any]:
    timings = completion.timings
    return {
        "prompt_ids": list(completion.prompt_ids),
        "tokens": list(completion.tokens),
        "text": completion.text,
        "finish_reason": completion.finish_reason.value,
        "seed": completion.seed,
        "device": f"{session.choice.name}:{session.choice.selector}".rstrip(":"),
        "timings": {
            "open_seconds": session.open_seconds,
            "prepare_seconds": session.driver.prepare_seconds,
            "prefill_tokens": timings.prefill_tokens,
            "prefill_seconds": timings.prefill_seconds,
            "decode_tokens": timings.decode_tokens,
            "decode_seconds": timings.decode_seconds,
        },
    }
