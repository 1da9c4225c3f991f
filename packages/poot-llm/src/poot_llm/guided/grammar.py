"""A constraint in the words of the package that follows it, after the checks that need no compiler."""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher

from poot_executor.errors import RequestError
from poot_llm.guided.gbnf import lark_of_gbnf
from poot_llm.guided.limits import GuideLimits
from poot_llm.guided.spec import StructuredOutputs, levels_of

JSON_OPTIONS = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,16}"}
"""Between the parts of a JSON text up to 16 spaces may come: without a bound, a model may give nothing else."""


def grammar_text(spec: StructuredOutputs, limits: GuideLimits) -> str:
    """The grammar as llguidance takes it. Raises RequestError naming the field, for JSON that is none, nesting beyond
    the limit, and GBNF that cannot be read.
    """
    kind, text = spec.kind, spec.text
    try:
        return _grammar(kind, text, limits)
    except ValueError as error:
        raise RequestError(f"structured_outputs.{kind}: {error}") from None


def _grammar(kind: str, text: str, limits: GuideLimits) -> str:
    if kind in ("json", "json_object"):
        schema = _checked_schema(text, limits.depth)
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_OPTIONS)
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    if kind == "choice":
        choices = json.loads(text)
        return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(c, ensure_ascii=False) for c in choices))
    return LLMatcher.grammar_from_lark(lark_of_gbnf(text) if kind == "grammar" else text)


def _checked_schema(text: str, depth: int) -> dict[str, Any]:
    """The schema as an object; True, which allows everything, is the empty one."""
    try:
        schema = json.loads(text)
    except RecursionError:
        raise RequestError(f"structured_outputs.json is nested more than {depth} levels deep") from None
    except ValueError as error:
        raise RequestError(f"structured_outputs.json is no JSON: {error}") from None
    if schema is False:
        raise RequestError("structured_outputs.json allows no answer: the schema is false")
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise RequestError("structured_outputs.json: a schema is an object or a boolean")
    if "x-guidance" in schema:
        raise RequestError("structured_outputs.json: x-guidance is not taken from a schema")
    if (found := levels_of(schema, depth)) > depth:
        raise RequestError(f"structured_outputs.json is nested {found} levels deep or more, at most {depth}")
    return schema
