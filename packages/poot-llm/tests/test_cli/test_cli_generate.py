"""`poot generate`: text that streams, one object with --json, and every refusal a line."""

import json
import signal
import subprocess

import numpy as np
import pytest

from poot_llm.registry import Models

PROMPT = "the quick"
TOY = ("--device", "toy", "--capacity", "64", "--chunk", "16")


def test_text_is_what_the_object_says(poot, model):
    shown = poot("generate", model, PROMPT, *TOY, "--max-tokens", "9")
    told = poot("generate", model, PROMPT, *TOY, "--max-tokens", "9", "--json")
    assert (shown.status, shown.err, told.status, told.err) == (0, "", 0, "")
    report = json.loads(told.out)
    assert told.out.count("\n") == 1
    assert shown.out == report["text"] + "\n"
    tokenizer = Models().open(model).tokenizer
    assert report["prompt_ids"] == tokenizer.encode(PROMPT, add_special=True, parse_special=False)
    assert tokenizer.decode(report["tokens"], continues=True) == report["text"]
    assert len(report["tokens"]) == 9 and report["finish_reason"] == "length"
    timings = report["timings"]
    assert timings["prefill_tokens"] == len(report["prompt_ids"])
    assert timings["decode_tokens"] == 8
    assert min(timings.values()) > 0
    assert report["device"] == "toy"


def test_a_process_prints_the_same(poot, poot_process, model):
    done = poot_process("generate", model, PROMPT, *TOY, "--max-tokens", "9")
    assert (done.status, done.err) == (0, "")
    assert done.out == poot("generate", model, PROMPT, *TOY, "--max-tokens", "9").out


def test_text_streams(command, model):
    """The first characters are there long before the last: the reader sees them while the writer still runs."""
    line = command("generate", model, PROMPT, "--device", "toy", "--max-tokens", "200")
    with subprocess.Popen(**line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(1)
        assert process.poll() is None
        rest = process.stdout.read()
    assert process.returncode == 0 and rest.endswith("\n")


def test_a_seed_repeats_an_answer(poot, model):
    def answer(*options):
        done = poot("generate", model, PROMPT, *TOY, "--max-tokens", "12", "--json", *options)
        return json.loads(done.out)

    hot = ("--temperature", "5", "--top-k", "100", "--top-p", "0.99", "--min-p", "0.001")
    first = answer(*hot, "--seed", "11")
    assert first["seed"] == 11
    assert answer(*hot, "--seed", "11")["tokens"] == first["tokens"]
    assert answer(*hot, "--seed", "12")["tokens"] != first["tokens"]
    assert answer(*hot, "--seed", "12", "--top-k", "1")["tokens"] == answer()["tokens"]


def test_a_stop_string_ends_the_answer(poot, model):
    whole = json.loads(poot("generate", model, PROMPT, *TOY, "--max-tokens", "12", "--json").out)["text"]
    stop = whole[len(whole) // 2 :][:2]
    before = whole[: whole.index(stop)]
    done = poot("generate", model, PROMPT, *TOY, "--max-tokens", "12", "--stop", stop, "--stop", "\0never")
    assert done.out == before + "\n"
    told = poot("generate", model, PROMPT, *TOY, "--max-tokens", "12", "--stop", stop, "--json")
    assert json.loads(told.out)["finish_reason"] == "stop"


def test_chat_goes_through_the_template(poot, model, tmp_path):
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": PROMPT}]
    file = tmp_path / "messages.json"
    file.write_text(json.dumps(messages))
    told = poot("generate", model, "--messages", file, *TOY, "--max-tokens", "3", "--json")
    handle = Models().open(model)
    expected = handle.template.encode(messages, handle.tokenizer)
    assert json.loads(told.out)["prompt_ids"] == expected
    same = poot("generate", model, PROMPT, "--chat", "--system", "be brief", *TOY, "--max-tokens", "3", "--json")
    assert json.loads(same.out)["prompt_ids"] == expected
    assert json.loads(same.out)["tokens"] == json.loads(told.out)["tokens"]


def test_messages_come_from_standard_input_too(poot_process, model):
    messages = json.dumps([{"role": "user", "content": "größer 🌍"}])
    done = poot_process("generate", model, "--messages", "-", *TOY, "--max-tokens", "2", "--json", stdin=messages)
    assert done.status == 0, done.err
    handle = Models().open(model)
    assert json.loads(done.out)["prompt_ids"] == handle.template.encode(json.loads(messages), handle.tokenizer)


def test_a_prompt_is_text_and_no_control(poot, model):
    done = poot("generate", model, "<|im_end|>", *TOY, "--max-tokens", "1", "--json")
    assert 2 not in json.loads(done.out)["prompt_ids"]


def test_auto_says_what_it_chose(poot_process, install, model):
    """A distribution that automatic choice takes for a GPU, beside those that it may not take."""
    code = """
from poot_executor.device import Found
from poot_toy_device.driver import ToyDriver
class Eager(ToyDriver):
    automatic = True
    def probe(self):
        return [Found("cpu", "whole graphs")]
"""
    site = install("poot-eager", "[poot.devices]\neager = plug:Eager\n", code)
    done = poot_process("generate", model, PROMPT, "--max-tokens", "1", sites=(site,))
    assert done.status == 0, done.err
    (line,) = [line for line in done.err.splitlines() if line.startswith("device ")]
    assert line.startswith("device eager:cpu (whole graphs), the first GPU that opens") and "toy" not in line
    assert done.err.splitlines()[-1] == line


def test_interrupting_it_is_130(command, model):
    line = command("generate", model, PROMPT, "--device", "toy")
    with subprocess.Popen(**line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_reader_that_leaves_ends_it_quietly(command, model):
    line = command("generate", model, PROMPT, "--device", "toy")
    with subprocess.Popen(**line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (141, "")


# Refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--temperature", "-1"], ["temperature", "-1"]),
        (["--temperature", "nan"], ["temperature", "nan"]),
        (["--top-p", "0"], ["top_p", "0"]),
        (["--top-k", "-2"], ["top_k", "-2"]),
        (["--min-p", "1.5"], ["min_p", "1.5"]),
        (["--max-tokens", "0"], ["max_tokens", "0"]),
        (["--seed", "-4"], ["seed", "-4"]),
        (["--stop", ""], ["stop[0]"]),
        (["--capacity", "100000"], ["capacity", "100000", "256"]),
        (["--chunk", "3"], ["chunk", "3"]),
        (["--capacity", "3"], ["prompt", "capacity", "3"]),
        (["--device", "abacus"], ["abacus", "toy", "reference"]),
        (["--device", "toy:7"], ["toy:7", "toy:cpu"]),
        (["--device", "auto"], ["no device opened", "toy"]),
        (["--system", "be brief"], ["--system", "--chat"]),
        (["--messages", "nowhere.json"], ["--messages", "PROMPT"]),
    ],
)
def test_an_option_out_of_range(poot, model, options, words):
    refusal = poot("generate", model, PROMPT, "--device", "toy", *options).refusal
    assert all(word in refusal for word in words), refusal


@pytest.mark.parametrize(("prompt", "word"), [([""], "empty"), ([], "none"), (["", "--chat"], "empty")])
def test_no_prompt(poot, model, prompt, word):
    refusal = poot("generate", model, *prompt, "--device", "toy").refusal
    assert "prompt" in refusal and word in refusal


def test_a_prompt_beyond_the_capacity_says_both_numbers(poot, model):
    refusal = poot("generate", model, "ab " * 200, "--device", "toy", "--capacity", "32").refusal
    count = len(Models().open(model).tokenizer.encode("ab " * 200, add_special=True, parse_special=False))
    assert str(count) in refusal and "32" in refusal


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["not JSON"]),
        ('{"role": "user"}', ["list"]),
        ("[]", ["one at least"]),
        ('[{"content": "x"}]', ["message 0", "role"]),
        ('[{"role": "user", "content": "x"}, 3]', ["message 1"]),
        ("[" * 100_000, ["not JSON"]),
        ("\xff", ["UTF-8"]),
    ],
)
def test_a_messages_file_that_is_none(poot, model, tmp_path, text, words):
    file = tmp_path / "m.json"
    file.write_bytes(text.encode("latin-1"))
    refusal = poot("generate", model, "--messages", file, "--device", "toy").refusal
    assert str(file) in refusal and all(word in refusal for word in words)


def test_a_messages_file_that_is_absent(poot, model, tmp_path):
    refusal = poot("generate", model, "--messages", tmp_path / "m.json", "--device", "toy").refusal
    assert "m.json" in refusal and "No such file" in refusal
    assert "Is a directory" in poot("generate", model, "--messages", tmp_path, "--device", "toy").refusal


def drop(name):
    return lambda metadata, tensors: tensors.pop(name)


def put(**pairs):
    return lambda metadata, tensors: metadata.update({key.replace("__", "."): v for key, v in pairs.items()})


def surplus(metadata, tensors):
    tensors["extra"] = ("blk.9.attn_q.weight", (4,), "f32", np.zeros(4, "<f4").tobytes())


def misshape(metadata, tensors):
    tensors["output_norm.weight"] = ("output_norm.weight", (32,), "f32", np.zeros(32, "<f4").tobytes())


def twice(metadata, tensors):
    tensors["again"] = tensors["output_norm.weight"]


def unknown_format(metadata, tensors):
    name = "blk.0.ffn_up.weight"
    tensors[name] = (name, (96, 256), "q4_k", bytes(96 * 144))


def no_template(metadata, tensors):
    del metadata["tokenizer.chat_template"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop("blk.1.ffn_up.weight"), ["blk.1.ffn_up.weight"]),
        (surplus, ["blk.9.attn_q.weight"]),
        (twice, ["output_norm.weight", "twice"]),
        (unknown_format, ["q4_k", "blk.0.ffn_up.weight"]),
        (misshape, ["output_norm.weight", "[32]"]),
        (put(general__architecture="grok"), ["grok", "llama"]),
        (put(general__architecture=3), ["general.architecture"]),
        (put(llama__attention__head_count=0), ["head_count"]),
        (put(tokenizer__ggml__model="unheard-of"), ["unheard-of"]),
    ],
)
def test_a_checkpoint_that_does_not_fit(poot, rewritten, change, words):
    refusal = poot("generate", rewritten(change), PROMPT, *TOY).refusal
    assert all(word in refusal for word in words), refusal


@pytest.mark.parametrize(
    "change", [no_template, put(tokenizer__chat_template="{{ raise_exception('no') }}"),
               put(tokenizer__chat_template="{% for %}")],
)  # fmt: skip
def test_a_template_that_is_missing_or_raises(poot, rewritten, change):
    path = rewritten(change)
    assert "template" in poot("generate", path, PROMPT, "--chat", *TOY).refusal
    assert "template" in poot("chat", path, *TOY).refusal
    assert poot("generate", path, PROMPT, *TOY, "--max-tokens", "1").status == 0


def cut(data):
    return data[: len(data) // 2]


def huge_count(data):
    """A header that claims more tensors than any file holds."""
    return data[:8] + b"\xff" * 8 + data[16:]


def long_key(data):
    """A first key longer than the file."""
    return data[:24] + b"\xff" * 7 + b"\x7f" + data[32:]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"", ["gguf"]),
        (lambda data: data[:3], ["magic"]),
        (lambda data: b"PK\3\4" + data[4:], ["magic"]),
        (lambda data: data[:4] + b"\1\0\0\0" + data[8:], ["version"]),
        (cut, ["leaves the file"]),
        (lambda data: data[:1000], ["remain"]),
        (huge_count, ["tensor count"]),
        (long_key, ["key"]),
    ],
)
def test_a_damaged_file(poot, model, tmp_path, damage, words):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damage(model.read_bytes()))
    refusal = poot("generate", path, PROMPT, *TOY).refusal
    assert str(path) in refusal
    assert all(word in refusal for word in words), refusal


def test_a_model_that_is_nowhere(poot, tmp_path):
    assert "nothing.gguf" in poot("generate", tmp_path / "nothing.gguf", PROMPT).refusal
    assert "poot pull smollm2" in poot("generate", "smollm2", PROMPT).refusal
    assert "config.json" in poot("generate", tmp_path, PROMPT).refusal


def test_a_refusal_in_a_process_of_its_own(poot_process, model, tmp_path):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(cut(model.read_bytes()))
    assert str(path) in poot_process("generate", path, PROMPT, *TOY).refusal
    assert "abacus" in poot_process("generate", model, PROMPT, "--device", "abacus").refusal


def test_a_device_that_is_broken_or_claimed_twice(poot_process, install, model):
    broken = install("poot-broken", "[poot.devices]\nbroken = plug:Driver\n", "import nothing_of_this_name\n")
    refusal = poot_process("generate", model, PROMPT, "--device", "broken", sites=(broken,)).refusal
    assert "nothing_of_this_name" in refusal
    assert poot_process("generate", model, PROMPT, *TOY, "--max-tokens", "1", sites=(broken,)).status == 0
    twin = install("poot-twin", "[poot.devices]\ntoy = plug:Driver\n")
    refusal = poot_process("generate", model, PROMPT, *TOY, sites=(twin,)).refusal
    assert "poot-twin" in refusal and "poot-toy-device" in refusal


def test_nothing_is_written_anywhere(poot, model, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    assert poot("generate", model, PROMPT, *TOY, "--temperature", "-1").status == 2
    assert sorted(tmp_path.rglob("*")) == before
