"""langchain-openai against the server: messages, streams, tools and structured output."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict

pytestmark = [pytest.mark.slow, pytest.mark.device("vpu")]


class City(BaseModel):
    """A city. A schema that allows further properties lets a small model go on for ever."""

    model_config = ConfigDict(extra="forbid")
    size: Literal["small", "large"]
    capital: bool


@pytest.fixture(scope="module")
def chat(url):
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    return langchain.ChatOpenAI(
        base_url=f"{url}/v1",
        api_key="unused",
        model="smollm2",
        temperature=0,
        max_tokens=40,
        max_retries=0,
        timeout=300,
    )


def test_an_answer_and_its_stream(chat) -> None:
    messages = [("system", "Answer in a word."), ("human", "What is the capital of France?")]
    short = chat.bind(max_tokens=8)
    answer = short.invoke(messages)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] <= 8
    assert "".join(piece.content for piece in short.stream(messages)) == answer.content


def test_a_tool_is_called(chat) -> None:
    def multiply(a: int, b: int) -> int:
        """Multiply two numbers."""
        return a * b

    answer = chat.bind_tools([multiply], tool_choice="multiply").invoke("How much is 3 times 4?")
    (call,) = answer.tool_calls
    assert call["name"] == "multiply"
    assert {name: type(value) for name, value in call["args"].items()} == {"a": int, "b": int}


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(chat, method) -> None:
    found = chat.with_structured_output(City, method=method).invoke("Describe Paris.")
    assert isinstance(found, City)
