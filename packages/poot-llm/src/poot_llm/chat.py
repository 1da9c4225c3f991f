"""Chat templates: conversations to prompts, in which only the template's own words are control tokens.

How user text is kept from control. A rendering of the untouched messages cannot tell the template's "<|im_end|>" from
one that a user typed. So `encode` renders the messages in disguise: wherever a control token could begin inside a
message, that one character is exchanged for a private-use character that occurs nowhere in the request. The exchange
is one for one, so a template that trims, slices, measures or concatenates does what it always does. In the rendered
text the control tokens that are still spelled out are the template's own; they are marked, the exchanged characters
are put back, and the whole text is encoded at once with exactly those marks. Text therefore merges across the seams
between template and message as it does in the reference, and a message without control tokens gives the reference's
ids. A character stays as it is where it begins a word that the template itself looks for in messages ("</think>",
say) and that no control token begins with, so templates that search messages find what they search for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import jinja2
from jinja2 import nodes

from poot_executor.errors import CheckpointError, RequestError
from poot_llm.chat_sandbox import Budget, ChatEnvironment
from poot_llm.strict_json import MAX_JSON_BYTES, read_object
from poot_llm.tokenizer import Mark, Tokenizer
from poot_llm.weights.gguf import GgufFile

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
_GGUF_NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_MAX_DEPTH = 64


class ChatTemplate:
    """A checkpoint's chat template and the special tokens that it names. `source` is None where there is none.

    A template that does not parse, or none at all, is no reason not to load a checkpoint: rendering is what raises.
    """

    __slots__ = ("_code", "_literals", "_problem", "source", "variables")

    def __init__(self, source: str | None, variables: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.variables = dict(variables or {})
        self._code: CodeType | None = None
        self._literals: frozenset[str] = frozenset()
        self._problem = "the checkpoint has no chat template: give it a plain prompt"
        if source is None:
            return
        environment = ChatEnvironment(Budget())
        try:
            self._literals = _literals(environment.parse(source))
            self._code = environment.compile(source)
        except Exception as error:  # noqa: BLE001 - parsing a foreign template can overflow and more
            self._problem = f"the checkpoint's chat template is not valid: {error or type(error).__name__}"

    @classmethod
    def from_gguf(cls, file: GgufFile, tokenizer: Tokenizer) -> ChatTemplate:
        """`tokenizer.chat_template` of a GGUF file. Raises CheckpointError where it is not a string."""
        source = file.metadata.get("tokenizer.chat_template")
        if source is not None and not isinstance(source, str):
            raise CheckpointError(f"{file.path}: tokenizer.chat_template is not a string")
        ids = {name: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _GGUF_NAMES.items()}
        texts = {name: tokenizer.token_text(token) for name, token in ids.items() if isinstance(token, int)}
        return cls(source, texts)

    @classmethod
    def from_directory(cls, directory: str | Path) -> ChatTemplate:
        """chat_template.jinja, else chat_template in chat_template.json or tokenizer_config.json. CheckpointError."""
        directory = Path(directory)
        path = directory / "tokenizer_config.json"
        config = read_object(path) if path.exists() else {}
        variables = {}
        for name in _SPECIAL_NAMES:
            token = config.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                variables[name] = text
        return cls(_directory_source(directory, config), variables)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt as text. Messages are mappings with a `role`; `variables` reach the template by name.

        Raises RequestError where there is no template, where it raises, or where it runs away.
        """
        given = _checked(messages, tools, variables)
        return self._run(given, add_generation_prompt, frozenset())

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tokenizer: Tokenizer,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """The prompt's ids: what the template writes is parsed for control tokens, what the caller gave never is.

        That holds for all text in messages, tools and variables: roles, contents, names, keys. Exactly one BOS
        comes first where the checkpoint asks for one. Raises RequestError as `render` does.
        """
        given = _checked(messages, tools, variables)
        disguise = _Disguise(tokenizer.control_texts, self._literals, self.source or "", given)
        text = self._run(disguise.put_on(given), add_generation_prompt, disguise.characters)
        marks: list[Mark] = tokenizer.find_controls(text)
        return tokenizer.complete(tokenizer.encode_marked(disguise.take_off(text), marks))

    def _run(self, given: Mapping[str, Any], add_generation_prompt: bool, stand_ins: frozenset[str]) -> str:
        if self._code is None:
            raise RequestError(f"messages: {self._problem}")
        environment = ChatEnvironment(Budget(), stand_ins)
        template = jinja2.Template.from_code(environment, self._code, environment.globals)
        values = self.variables | dict(given) | {"add_generation_prompt": add_generation_prompt}
        try:
            return template.render(values)
        except Exception as error:
            raise RequestError(f"messages: the chat template raised: {error or type(error).__name__}") from error


def _directory_source(directory: Path, config: Mapping[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.exists():
        try:
            if path.stat().st_size > MAX_JSON_BYTES:
                raise CheckpointError(f"{path}: is too large for a template")
            return path.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
    path = directory / "chat_template.json"
    fields: Mapping[str, Any] = read_object(path) if path.exists() else config
    source = fields.get("chat_template")
    if isinstance(source, list):
        named = [entry for entry in source if isinstance(entry, dict) and entry.get("name") == "default"]
        source = named[0].get("template") if named else None
    if source is not None and not isinstance(source, str):
        raise CheckpointError(f"{directory}: chat_template is not a string")
    return source


def _checked(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, variables: Mapping[str, Any]
) -> dict[str, Any]:
    """The caller's values, plain data throughout. Raises RequestError by field."""
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise RequestError("messages: a list of at least one message is needed")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or not message["role"]:
            raise RequestError(f"messages[{index}]: a mapping with a role is needed")
    given = {**variables, "messages": messages, "tools": tools}
    return {name: _plain(value, name, _MAX_DEPTH) for name, value in given.items()}


def _plain(value: Any, where: str, depth: int) -> Any:
    """A copy in lists and dicts: a template sees data and no objects."""
    if depth == 0:
        raise RequestError(f"{where}: nested more than {_MAX_DEPTH} deep")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise RequestError(f"{where}: key {key!r} is not a string")
        return {key: _plain(item, f"{where}.{key}", depth - 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(item, f"{where}[{index}]", depth - 1) for index, item in enumerate(value)]
    raise RequestError(f"{where}: a {type(value).__name__} is not plain data")


def _literals(template: nodes.Template) -> frozenset[str]:
    """The strings that a template can compare messages with, and the names that it reads from them."""
    texts = {node.value for node in template.find_all(nodes.Const) if isinstance(node.value, str)}
    return frozenset(texts | {node.attr for node in template.find_all(nodes.Getattr)}) - {""}


class _Disguise:
    """The exchange of characters described above, for one request."""

    __slots__ = ("_back", "_forth", "_pattern")

    def __init__(
        self, controls: frozenset[str], literals: frozenset[str], source: str, given: Mapping[str, Any]
    ) -> None:
        firsts = sorted({control[0] for control in controls})
        taken = set(source).union(*_texts(given))
        free = (chr(code) for block in _PRIVATE_USE for code in block if chr(code) not in taken)
        self._forth = dict(zip(firsts, free, strict=False))
        if len(self._forth) < len(firsts):
            raise RequestError("messages: they use every private-use character, none is left to protect them with")
        self._back = str.maketrans({hidden: first for first, hidden in self._forth.items()})
        # A literal is safe to leave when no control token can begin where it begins.
        safe = sorted(
            (text for text in literals if text[0] in self._forth and not _meets(text, controls)),
            key=len,
            reverse=True,
        )
        alternatives = [f"(?:{'|'.join(map(re.escape, safe))})"] if safe else []
        if firsts:
            alternatives.append(f"([{re.escape(''.join(firsts))}])")
        self._pattern = re.compile("|".join(alternatives)) if alternatives else None

    @property
    def characters(self) -> frozenset[str]:
        return frozenset(self._forth.values())

    def put_on(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _mapped(value, self._hide) for name, value in given.items()}

    def take_off(self, text: str) -> str:
        return text.translate(self._back)

    def _hide(self, text: str) -> str:
        if self._pattern is None:
            return text
        # A safe literal lets its first character stay; what follows it is looked at in its turn.
        out, position = [], 0
        while (match := self._pattern.search(text, position)) is not None:
            first = text[match.start()]
            out += [text[position : match.start()], self._forth[first] if match[1] else first]
            position = match.start() + 1
        return "".join([*out, text[position:]])


def _meets(literal: str, controls: frozenset[str]) -> bool:
    return any(control.startswith(literal) or literal.startswith(control) for control in controls)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _texts(item)
