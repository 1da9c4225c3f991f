"""Records what an independent implementation computes from the SmolLM2-135M-Instruct GGUF.

The reference is transformers on the CPU: the same file, every tensor dequantized to float32, every
operation in float32. Nothing of poot is imported. Three files are written beside this script:

* smollm2_greedy.json     greedy tokens with their top-two margins, for the prompts of prompts.py
* smollm2_tokenizer.json  token ids of the texts of corpus.py
* smollm2_chat.json       conversations rendered by the checkpoint's chat template

Usage: python record_smollm2.py --gguf FILE [--only greedy|tokenizer|chat]
"""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from corpus import corpus
from prompts import CHAT_PROMPTS, CONVERSATIONS, RAW_PROMPTS, Message
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
NEW_TOKENS = 48
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "gguf", "numpy")
ALLOWED_CACHE_DIFFERENCE = 2e-3  # logits, float32: cached steps against one whole pass


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One GGUF file and its digest."""

    path: Path
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Checkpoint:
        """Reads the whole file once."""
        with path.open("rb") as file:
            return cls(path, hashlib.file_digest(file, "sha256").hexdigest())

    def about(self, text: str) -> dict[str, Any]:
        """The head of a recorded file: what it is, from which bytes, made by which packages."""
        return {
            "text": text,
            "checkpoint": {"file": self.path.name, "sha256": self.sha256},
            "packages": {name: version(name) for name in PACKAGES},
            "made_by": "references/record_smollm2.py",
        }


@dataclass(frozen=True, slots=True)
class Greedy:
    """A greedy continuation, position by position."""

    tokens: list[int]
    top_two: list[list[int]]
    margins: list[float]


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """transformers' tokenizer for the file, with the pre-tokenizer that SmolLM2 is published with.

    The conversion from GGUF metadata ignores `tokenizer.ggml.pre` and keeps GPT-2's pre-tokenizer,
    which does not part digits from the spaces before them. SmolLM2's tokenizer.json has Digits,
    then ByteLevel.
    """
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.path.parent, gguf_file=checkpoint.path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    return tokenizer


def encode(tokenizer: Any, text: str, *, parse_control: bool) -> list[int]:
    """Token ids with nothing added; text that spells a control token is one only if asked."""
    encoded = tokenizer(text, add_special_tokens=False, split_special_tokens=not parse_control)
    return list(encoded.input_ids)


def decode(tokenizer: Any, ids: list[int]) -> str:
    """The text of all ids, control tokens spelled out."""
    return str(tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False))


def render(tokenizer: Any, messages: tuple[Message, ...], *, generation_prompt: bool) -> str:
    """The checkpoint's own template over the messages."""
    return str(
        tokenizer.apply_chat_template(
            [message.as_dict() for message in messages],
            add_generation_prompt=generation_prompt,
            tokenize=False,
        )
    )


@torch.inference_mode()
def greedy(model: Any, prompt: list[int]) -> Greedy:
    """NEW_TOKENS argmax steps over a KV cache. The end-of-sequence id does not stop it.

    The result is checked against one pass over prompt and continuation without a cache.
    """
    result = Greedy([], [], [])
    steps: list[torch.Tensor] = []
    inputs, cache = torch.tensor([prompt]), None
    for _ in range(NEW_TOKENS):
        output = model(input_ids=inputs, cache=cache, use_cache=True)
        logits, cache = output.logits[0, -1], output.past_key_values
        best = torch.topk(logits, 2)
        steps.append(logits)
        result.tokens.append(int(best.indices[0]))
        result.top_two.append([int(index) for index in best.indices])
        result.margins.append(round(float(best.values[0] - best.values[1]), 6))
        inputs = best.indices[:1].reshape(1, 1)
    whole = model(input_ids=torch.tensor([prompt + result.tokens[:-1]]), use_cache=False)
    difference = (whole.logits[0, len(prompt) - 1 :] - torch.stack(steps)).abs().max().item()
    if difference > ALLOWED_CACHE_DIFFERENCE:
        raise AssertionError(f"cached and whole passes differ by {difference} logits")
    return result


def greedy_case(tokenizer: Any, model: Any, head: dict[str, Any], text: str) -> dict[str, Any]:
    """One recorded prompt: ids, continuation, and where a driver that stops would have stopped."""
    prompt_ids = encode(tokenizer, text, parse_control=True)
    if decode(tokenizer, prompt_ids) != text:
        raise AssertionError(f"prompt {head['name']} does not survive its tokenizer")
    result = greedy(model, prompt_ids)
    stop = tokenizer.eos_token_id
    stops_at = result.tokens.index(stop) if stop in result.tokens else None
    return {
        **head,
        "prompt_ids": prompt_ids,
        **asdict(result),
        "stops_at": stops_at,
        "text": decode(tokenizer, result.tokens),
        "text_until_stop": decode(tokenizer, result.tokens[:stops_at]),
    }


def record_greedy(checkpoint: Checkpoint, tokenizer: Any) -> None:
    """Writes smollm2_greedy.json."""
    model = AutoModelForCausalLM.from_pretrained(
        checkpoint.path.parent, gguf_file=checkpoint.path.name, dtype=torch.float32
    ).eval()
    cases = [
        greedy_case(tokenizer, model, {"name": p.name, "kind": "raw", "prompt": p.text}, p.text) for p in RAW_PROMPTS
    ]
    for prompt in CHAT_PROMPTS:
        text = render(tokenizer, prompt.messages, generation_prompt=True)
        messages = [message.as_dict() for message in prompt.messages]
        head = {"name": prompt.name, "kind": "chat", "messages": messages, "prompt": text}
        cases.append(greedy_case(tokenizer, model, head, text))
    about = checkpoint.about(
        f"Greedy continuations of {NEW_TOKENS} tokens, float32 on dequantized weights, CPU. The "
        "end-of-sequence id does not stop them; stops_at is the index of the first one, or null. "
        "margins[i] is the largest logit minus the second largest at token i, top_two[i] their "
        "ids. A chat case's prompt is the rendered template; its ids have control tokens parsed."
    )
    about["eos_token_id"] = tokenizer.eos_token_id
    write("smollm2_greedy.json", about, cases)


def record_tokenizer(checkpoint: Checkpoint, tokenizer: Any) -> None:
    """Writes smollm2_tokenizer.json."""
    cases = []
    for text in corpus():
        ids = encode(tokenizer, text, parse_control=True)
        plain = encode(tokenizer, text, parse_control=False)
        decoded = decode(tokenizer, ids)
        if decode(tokenizer, plain) != decoded:
            raise AssertionError(f"the two encodings of {text!r} decode to different texts")
        case: dict[str, Any] = {"text": text, "ids": ids, "ids_plain": plain}
        if decoded != text:
            case["decoded"] = decoded
        cases.append(case)
    about = checkpoint.about(
        "ids: control tokens parsed, nothing added. ids_plain: text that spells a control token "
        "stays text (split_special_tokens=True). Both decode back to the text, except where "
        "`decoded` says what comes back: the vocabulary lacks 21 bytes (0x04 0x06 0x13 0x14 0x16 "
        "0x1d 0xc0 0xc1 0xf1 0xf2 and 0xf5 to 0xff), and text holding one of them loses it without "
        "a trace. The reference is transformers' conversion of the GGUF's vocabulary and merges "
        "with its pre-tokenizer replaced: the conversion ignores tokenizer.ggml.pre (smollm) and "
        "keeps GPT-2's, where the published tokenizer of SmolLM2 has Digits(individual_digits) "
        "followed by ByteLevel."
    )
    write("smollm2_tokenizer.json", about, cases)


def record_chat(checkpoint: Checkpoint, tokenizer: Any) -> None:
    """Writes smollm2_chat.json."""
    cases = []
    for conversation in CONVERSATIONS:
        for generation_prompt in (True, False):
            text = render(tokenizer, conversation.messages, generation_prompt=generation_prompt)
            cases.append(
                {
                    "name": conversation.name,
                    "messages": [message.as_dict() for message in conversation.messages],
                    "add_generation_prompt": generation_prompt,
                    "text": text,
                    "ids": encode(tokenizer, text, parse_control=True),
                }
            )
    about = checkpoint.about(
        "Conversations rendered by the checkpoint's own template (apply_chat_template), and the "
        "ids of the rendering with control tokens parsed, also where a message spells one."
    )
    write("smollm2_chat.json", about, cases)


def write(name: str, about: dict[str, Any], cases: list[dict[str, Any]]) -> None:
    """One case a line, so that a change of one case is a change of one line."""
    lines = ",\n".join("    " + json.dumps(case) for case in cases)
    head = json.dumps(about, indent=2).replace("\n", "\n  ")
    (HERE / name).write_text(f'{{\n  "about": {head},\n  "cases": [\n{lines}\n  ]\n}}\n')
    print(f"{name}: {len(cases)} cases")


RECORDERS = {"greedy": record_greedy, "tokenizer": record_tokenizer, "chat": record_chat}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gguf", type=Path, required=True, help="the checkpoint")
    parser.add_argument("--only", choices=tuple(RECORDERS), action="append")
    arguments = parser.parse_args()
    checkpoint = Checkpoint.of(arguments.gguf)
    tokenizer = load_tokenizer(checkpoint)
    for name in arguments.only or RECORDERS:
        RECORDERS[name](checkpoint, tokenizer)


if __name__ == "__main__":
    main()
