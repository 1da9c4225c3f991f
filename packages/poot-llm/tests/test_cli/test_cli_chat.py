"""`poot chat`: history, what stops a reply, what leaves the program, and a full context."""

import os
import signal

import pytest

from poot_executor.engine import Engine
from poot_executor.errors import RequestError
from poot_executor.settings import DeviceSettings
from poot_llm.cli.chat import Conversation, talk
from poot_llm.cli.loading import Loading
from poot_llm.driver import Driver, DriverOptions
from poot_llm.registry import Models
from poot_llm.sampling import SamplingParams

SHOW_CURSOR = "\x1b[?25h"
SHORT = SamplingParams(max_tokens=4)


@pytest.fixture
def driver(model):
    """A driver of 128 positions on the toy device."""
    from poot_toy_device.driver import ToyDriver

    with ToyDriver().open("", DeviceSettings()) as device, Engine(device) as engine:
        yield Driver(Models().open(model), engine, DriverOptions(capacity=128, chunk=16))


def prompt_text(driver, messages):
    return driver.handle.template.render(messages)


def test_what_was_said_is_in_the_next_prompt(driver, capsys, monkeypatch):
    talking = Conversation(driver, SHORT, "be brief", Loading("tiny"))
    talking.say("one")
    talking.say("two")
    roles = [message["role"] for message in talking.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert [m["content"] for m in talking.messages if m["role"] == "user"] == ["one", "two"]
    shown = capsys.readouterr().out.split("\n")
    replies = [m["content"] for m in talking.messages if m["role"] == "assistant"]
    assert "\n".join(shown) == "".join(f"{reply}\n" for reply in replies)
    # The same conversation, asked for whole, gives the same second reply: nothing else is carried over.
    fresh = Conversation(driver, SHORT, "be brief", Loading("tiny"))
    fresh.messages = talking.messages[:3]
    fresh.say("two")
    assert fresh.messages == talking.messages


def test_reset_forgets_all_but_the_system_message(driver, monkeypatch, capsys):
    talking = Conversation(driver, SHORT, "be brief", Loading("tiny"))
    monkeypatch.setattr("sys.stdin", iter(["one\n", "/reset\n", "\n", "  /help \n", "/exit\n", "never\n"]))
    talk(talking, interactive=False)
    assert talking.messages == [{"role": "system", "content": "be brief"}]
    err = capsys.readouterr().err
    assert "[a new conversation]" in err and "Ctrl-D" in err


def test_an_overflow_is_refused_and_not_remembered(driver, capsys):
    talking = Conversation(driver, SHORT, None, Loading("tiny"))
    talking.say("one")
    before = list(talking.messages)
    with pytest.raises(RequestError, match="128"):
        talking.say("ab " * 200)
    assert talking.messages == before
    talking.say("two")
    assert len(talking.messages) == 4


def test_a_full_context_says_so(driver, capsys):
    talking = Conversation(driver, SamplingParams(), None, Loading("tiny"))
    talking.say("one")
    assert "128 positions are full" in capsys.readouterr().err
    short = Conversation(driver, SHORT, None, Loading("tiny"))
    short.say("one")
    assert capsys.readouterr().err == ""


def test_an_overflow_on_a_terminal_goes_on(driver, monkeypatch, capsys):
    lines = iter(["ab " * 200, "one"])

    def read(prompt):
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    talking = Conversation(driver, SHORT, None, Loading("tiny"))
    talk(talking, interactive=True)
    assert len(talking.messages) == 2
    err = capsys.readouterr().err
    assert err.startswith("poot: prompt: ") and "/reset" in err and "Traceback" not in err


def test_an_overflow_in_a_pipe_is_a_refusal(poot_process, model):
    given = ("chat", model, "--device", "toy", "--capacity", "64", "--temperature", "0", "--max-tokens", "3")
    refusal = poot_process(*given, stdin="ab " * 100 + "\n").refusal
    assert "64" in refusal
    done = poot_process(*given, stdin="ab\n")
    assert done.status == 0 and done.out.endswith("\n") and done.err == ""


def test_a_model_without_a_template_is_refused_before_a_device_is_opened(poot, rewritten):
    path = rewritten(lambda metadata, tensors: metadata.pop("tokenizer.chat_template"))
    assert "template" in poot("chat", path, "--device", "abacus").refusal


@pytest.fixture
def terminal(on_terminal, endless):
    """`poot chat` at its first prompt."""
    term = on_terminal("chat", endless, "--device", "toy", "--temperature", "0", "--capacity", "8192")
    term.wait_for("> ")
    return term


@pytest.mark.skipif(os.name != "posix", reason="terminals are opened the POSIX way")
def test_ctrl_c_stops_the_reply_and_not_the_program(terminal):
    terminal.say("the quick brown fox\n")
    terminal.wait_for("fox\r\n")
    terminal.wait_for("reading the prompt")
    terminal.wait_for(SHOW_CURSOR)  # what showed it is gone: the reply has begun
    terminal.wait_for_more()
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal.wait_for("[stopped]")
    terminal.wait_for("> ")
    assert terminal.process.poll() is None
    terminal.interrupt_until("> ")  # at the prompt it is no end either
    terminal.say("/reset\n")
    terminal.wait_for("[a new conversation]")
    terminal.wait_for("> ")  # before it the terminal's own line discipline would take the Ctrl-D
    terminal.say("\x04")
    assert terminal.close() == 0


@pytest.mark.skipif(os.name != "posix", reason="terminals are opened the POSIX way")
def test_exit_leaves(terminal):
    terminal.say("/exit\n")
    assert terminal.close() == 0
