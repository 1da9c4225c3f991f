"""`LLM` over batches: answers equal those of requests alone, collected, streamed and awaited; failures stay apart."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from poot_executor.errors import BindError, CheckpointError, DeviceNotFound, RequestError, SettingsError
from poot_llm.batching import BatchWorker
from poot_llm.driver import Driver, DriverOptions, FinishReason, Layout, NonFiniteLogits
from poot_llm.generation import complete
from poot_llm.llm import LLM, ServedModel
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams

_SPEC = importlib.util.spec_from_file_location("driving", Path(__file__).parent / "fixtures" / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
fixture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixture)

PROMPTS = ["the quick brown fox", "jumps", "over the lazy dog and then", "the quick brown dog", "reads on about tokens"]
SHORT = SamplingParams(max_tokens=7, ignore_eos=True)
DRAWN = SamplingParams(max_tokens=9, ignore_eos=True, temperature=1.0, seed=5)


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> ModelHandle:
    return fixture.checkpoint(tmp_path_factory.mktemp("tiny"))


@contextmanager
def serving(handle: ModelHandle, **options: object) -> Iterator[ServedModel]:
    """A model on the oracle; a pool that does not hold all rows at once, so that some give way."""
    chosen = {"capacity": 64, "chunk": 8, "rows": 3, "layout": Layout.PAGED, "pool_blocks": 7} | options

    @contextmanager
    def opening() -> Iterator[Driver]:
        with fixture.driving(handle, **chosen) as rig:
            yield rig.driver

    with ServedModel(BatchWorker(opening)) as model:
        yield model


@pytest.fixture(scope="module")
def model(handle: ModelHandle) -> Iterator[ServedModel]:
    with serving(handle) as made:
        yield made


@pytest.fixture(scope="module")
def alone(handle: ModelHandle) -> Iterator[Driver]:
    with fixture.driving(handle, capacity=64) as rig:
        yield rig.driver


def expected(alone: Driver, prompt: str, params: SamplingParams) -> tuple[str, tuple[int, ...]]:
    ids = alone.handle.tokenizer.encode(prompt, add_special=True, parse_special=False)
    answer = complete(alone, ids, params)
    return answer.text, answer.tokens


def test_a_batch_gives_what_requests_alone_give(model: ServedModel, alone: Driver) -> None:
    params = [SHORT, DRAWN, DRAWN, SHORT, SHORT]
    outputs = model.generate(PROMPTS, params)
    assert [output.prompt for output in outputs] == PROMPTS
    for output, prompt, one in zip(outputs, PROMPTS, params, strict=True):
        (answer,) = output.outputs
        assert (answer.text, answer.token_ids) == expected(alone, prompt, one)
        assert answer.finish_reason is FinishReason.LENGTH and answer.failure is None
    use = model.driver.use()
    assert (use.rows_taken, use.blocks_held) == (0, 0)


def test_one_prompt_text_or_ids(model: ServedModel, alone: Driver) -> None:
    text, tokens = expected(alone, PROMPTS[0], SHORT)
    (output,) = model.generate(PROMPTS[0], SHORT)
    assert output.outputs[0].text == text
    (output,) = model.generate(list(output.prompt_token_ids), SHORT)
    assert output.prompt is None and output.outputs[0].token_ids == tokens
    assert model.generate([], SHORT) == []


def test_several_answers_have_seeds_of_their_own(model: ServedModel, alone: Driver) -> None:
    several = SamplingParams(n=3, max_tokens=9, ignore_eos=True, temperature=1.0, seed=5)
    (output,) = model.generate(PROMPTS[1], several)
    for index, answer in enumerate(output.outputs):
        one = SamplingParams(max_tokens=9, ignore_eos=True, temperature=1.0, seed=5 + index)
        assert (answer.index, answer.text) == (index, expected(alone, PROMPTS[1], one)[0])


def test_streamed_is_collected(model: ServedModel, alone: Driver) -> None:
    for params in (SHORT, DRAWN):
        text, tokens = expected(alone, PROMPTS[2], params)
        pieces = list(model.stream(PROMPTS[2], params))
        assert "".join(piece.text for piece in pieces) == text
        assert tuple(piece.token for piece in pieces) == tokens
        assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    with pytest.raises(RequestError, match="n is 2"):
        model.stream(PROMPTS[0], SamplingParams(n=2))


def test_stop_strings_end_batched_and_streamed_answers_alike(model: ServedModel, alone: Driver) -> None:
    long = SamplingParams(max_tokens=30, ignore_eos=True)
    text, _ = expected(alone, PROMPTS[0], long)
    stop = text[8:11]
    stopping = SamplingParams(max_tokens=30, ignore_eos=True, stop=(stop,))
    shown = text[: text.index(stop)]
    outputs = model.generate([PROMPTS[0], PROMPTS[1]], [stopping, SHORT])
    answer = outputs[0].outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_string) == (shown, FinishReason.STOP, stop)
    pieces = list(model.stream(PROMPTS[0], stopping))
    assert "".join(piece.text for piece in pieces) == shown
    assert pieces[-1].finish_reason is FinishReason.STOP


def test_a_stream_that_is_left_gives_its_room_back(model: ServedModel) -> None:
    stream = model.stream(PROMPTS[0], SamplingParams(ignore_eos=True))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert len(model.generate(PROMPTS, SHORT)) == len(PROMPTS)
    assert model.driver.use().rows_taken == 0


def test_awaited_requests_run_together(model: ServedModel, alone: Driver) -> None:
    async def streamed(prompt: str) -> str:
        return "".join([piece.text async for piece in model.astream(prompt, SHORT)])

    async def both() -> tuple[list[str], list[str]]:
        whole = asyncio.gather(*(model.agenerate(prompt, SHORT) for prompt in PROMPTS))
        pieces = asyncio.gather(*(streamed(prompt) for prompt in PROMPTS))
        return [output.outputs[0].text for output in await whole], await pieces

    texts, pieces = asyncio.run(both())
    assert texts == pieces == [expected(alone, prompt, SHORT)[0] for prompt in PROMPTS]


def test_a_cancelled_task_gives_its_room_back(model: ServedModel) -> None:
    async def leave() -> bool:
        task = asyncio.create_task(model.agenerate(PROMPTS[0], SamplingParams(ignore_eos=True)))
        await asyncio.sleep(0.02)
        if task.done():
            return False
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return True

    # This machine may hold this task up until the answer is whole.
    assert any(asyncio.run(leave()) for _ in range(20))
    model.generate(PROMPTS[:2], SHORT)
    assert model.driver.use().rows_taken == 0


def test_chat_goes_through_the_template(model: ServedModel, alone: Driver) -> None:
    conversations = [[{"role": "user", "content": text}] for text in PROMPTS[:2]]
    outputs = model.chat(conversations, SHORT)
    template, tokenizer = alone.handle.template, alone.handle.tokenizer
    for output, conversation in zip(outputs, conversations, strict=True):
        ids = template.encode(conversation, tokenizer)
        assert output.outputs[0].text == complete(alone, ids, SHORT).text
    (single,) = model.chat(conversations[0], SHORT)
    assert single == outputs[0]
    assert "".join(p.text for p in model.stream_chat(conversations[0], SHORT)) == single.outputs[0].text
    assert asyncio.run(model.achat(conversations[0], SHORT)) == single


def test_logprobs_are_given_a_token(model: ServedModel) -> None:
    (output,) = model.generate(PROMPTS[0], SamplingParams(max_tokens=4, ignore_eos=True, logprobs=2))
    answer = output.outputs[0]
    assert len(answer.logprobs) == len(answer.token_ids) == 4
    for token, logprobs in zip(answer.token_ids, answer.logprobs, strict=True):
        assert logprobs.top[0] == (token, pytest.approx(logprobs.logprob)) and len(logprobs.top) == 2


def test_structured_answers(model: ServedModel) -> None:
    params = SamplingParams.of({"max_tokens": 20, "structured_outputs": {"choice": ["yes", "no"]}})
    outputs = model.generate(PROMPTS[:3], [params, SHORT, params])
    assert {outputs[0].outputs[0].text, outputs[2].outputs[0].text} <= {"yes", "no"}
    assert outputs[0].outputs[0].finish_reason is FinishReason.STOP
    wrong = SamplingParams.of({"structured_outputs": {"regex": "("}})
    with pytest.raises(RequestError, match="regex"):
        model.generate([PROMPTS[0], PROMPTS[1]], [SHORT, wrong])
    assert len(model.generate(PROMPTS, SHORT)) == len(PROMPTS)


def test_what_is_refused_is_refused_before_anything_runs(model: ServedModel) -> None:
    with pytest.raises(RequestError, match=r"prompts\[1\]: prompt: .* capacity is 64"):
        model.generate([PROMPTS[0], [5] * 64], SHORT)
    with pytest.raises(RequestError, match=r"prompts\[0\]: .*stop_token_ids has id 320"):
        model.generate(PROMPTS[0], SamplingParams(stop_token_ids=(320,)))
    with pytest.raises(RequestError, match="2 of them for 1 prompts"):
        model.generate(PROMPTS[:1], [SHORT, SHORT])


def test_one_that_fails_costs_no_other(tmp_path: Path) -> None:
    handle = fixture.checkpoint(tmp_path, tied=False)
    raw = bytearray(handle.path.read_bytes())
    start = raw.find(handle.store.tensor("token_embd.weight").data.tobytes())
    row = start + 33 * handle.config.width * 4
    raw[row : row + 4] = np.float32(np.nan).tobytes()
    (tmp_path / "damaged.gguf").write_bytes(raw)
    with serving(fixture.Models().open(tmp_path / "damaged.gguf")) as model:
        outputs = model.generate([[5, 33], [7, 9, 12]], SHORT)
        bad, good = (output.outputs[0] for output in outputs)
        assert isinstance(bad.failure, NonFiniteLogits) and bad.finish_reason is FinishReason.ERROR
        assert good.token_ids == tuple(fixture.greedy(handle, [7, 9, 12], 7))
        with pytest.raises(NonFiniteLogits):
            list(model.stream([5, 33], SHORT))


def test_opening_raises_where_it_is_asked(handle: ModelHandle, tmp_path: Path) -> None:
    with pytest.raises(DeviceNotFound, match="nowhere"):
        LLM(handle.path, device="nowhere")
    with pytest.raises(SettingsError, match="the model's context is 256"):
        LLM(handle.path, device="reference", options=DriverOptions(capacity=9999))
    (tmp_path / "no.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError):
        LLM(tmp_path / "no.gguf")


def test_a_closed_model_says_so(handle: ModelHandle) -> None:
    with serving(handle) as model:
        stream = model.stream(PROMPTS[0], SamplingParams(ignore_eos=True))
        next(stream)
        model.close()
        model.close()
        with pytest.raises(BindError, match="closed"):
            list(stream)
        with pytest.raises(BindError, match="closed"):
            model.generate(PROMPTS[0])


def test_a_bar_on_standard_error(model: ServedModel, capsys: pytest.CaptureFixture[str]) -> None:
    model.generate(PROMPTS[:2], SHORT, progress=True)
    shown = capsys.readouterr()
    assert "2/2" in shown.err and shown.out == ""
    model.generate(PROMPTS[:2], SHORT)
    assert capsys.readouterr().err == ""
