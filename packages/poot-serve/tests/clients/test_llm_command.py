"""The command `llm` with an OpenAI-compatible model, in processes of its own as its users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.device("vpu")]

CONFIGURED = """
- model_id: poot
  model_name: smollm2
  api_base: "{url}/v1"
  supports_tools: true
  supports_schema: true
- model_id: poot-text
  model_name: smollm2
  api_base: "{url}/v1"
  completion: true
"""


@pytest.fixture
def llm(url: str, tmp_path: Path):
    pytest.importorskip("llm", reason="llm is not installed")
    (tmp_path / "extra-openai-models.yaml").write_text(CONFIGURED.format(url=url), "utf-8")

    def run(*arguments: str) -> str:
        environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "unused"}
        line = [sys.executable, "-m", "llm", *arguments]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_prompt_streamed_and_not(llm) -> None:
    given = ("-m", "poot", "What is the capital of France?", "-o", "temperature", "0", "-o", "max_tokens", "10")
    streamed = llm(*given)
    assert "Paris" in streamed
    assert llm(*given, "--no-stream").strip() == streamed.strip()
    assert json.loads(llm("logs", "--json", "-n", "1"))[0]["response"].strip() == streamed.strip()


def test_a_completion(llm) -> None:
    assert llm("-m", "poot-text", "The capital of France is", "-o", "temperature", "0", "-o", "max_tokens", "4").strip()


def test_a_schema(llm) -> None:
    options = ("-o", "temperature", "0", "-o", "max_tokens", "30")
    found = json.loads(llm("-m", "poot", "--schema", "capital bool", "Is Paris a capital?", *options))
    assert isinstance(found["capital"], bool)
