"""What a terminal sees: an offer where no model was named, progress while it is fetched and loaded, and a Ctrl-C that
is clean wherever it comes."""

import os
import random
import signal
import subprocess

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="terminals are opened the POSIX way")

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"
TOY = ("--device", "toy", "--capacity", "64", "--chunk", "16")


def ended_by_interrupt(terminal) -> None:
    """130 after one Ctrl-C, the cursor shown, no traceback."""
    assert terminal.close() == 130, terminal.seen
    assert "Traceback" not in terminal.seen and "ignored" not in terminal.seen
    assert terminal.seen.rfind(SHOW_CURSOR) >= terminal.seen.rfind(HIDE_CURSOR)


# The offer


@pytest.mark.parametrize("arguments", [["chat"], ["chat", "smollm2"], ["generate", "smollm2", "hello"]])
def test_a_model_that_is_not_here_is_offered_and_may_be_declined(on_terminal, arguments, tmp_path):
    terminal = on_terminal(*arguments)
    if len(arguments) == 1:
        terminal.wait_for("No model was named. ")
    terminal.wait_for("SmolLM2-135M-Instruct: a download of 93 MB")
    terminal.wait_for("[Y/n] ")
    terminal.say("n\n")
    terminal.wait_for("poot: model 'smollm2' was not fetched: `poot pull smollm2` does it later")
    assert terminal.close() == 2
    assert not (tmp_path / "cache").exists()


def test_the_end_of_input_is_no_agreement(on_terminal):
    terminal = on_terminal("chat")
    terminal.wait_for("[Y/n] ")
    terminal.say("\x04")
    terminal.wait_for("was not fetched")
    assert terminal.close() == 2


def test_without_a_terminal_nobody_is_asked(poot_process, tmp_path):
    refusal = poot_process("chat", stdin="y\n").refusal
    assert "no MODEL" in refusal and "poot pull smollm2" in refusal
    assert "run `poot pull smollm2`" in poot_process("chat", "smollm2", stdin="y\n").refusal
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("answer", ["\n", "y\n", "Yes\n"])
def test_an_agreed_download_shows_progress_and_stops_at_ctrl_c(on_terminal, stalled_index, tmp_path, answer):
    terminal = on_terminal("chat")
    terminal.wait_for("[Y/n] ")
    terminal.say(answer)
    terminal.wait_for("downloading")
    terminal.wait_for("92.9 MB")
    assert stalled_index.asked.wait(240)
    terminal.interrupt()
    ended_by_interrupt(terminal)
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_ctrl_c_at_the_offer_leaves(on_terminal):
    terminal = on_terminal("chat")
    terminal.wait_for("[Y/n] ")
    terminal.interrupt()
    ended_by_interrupt(terminal)


# Loading


SLOW = """
import time
from poot_toy_device.device import ToyDevice
from poot_toy_device.driver import ToyDriver
class Device(ToyDevice):
    def allocate(self, kind, nbytes):
        time.sleep(0.01)
        return super().allocate(kind, nbytes)
    def lower(self, program, bindings):
        time.sleep(0.3)
        return super().lower(program, bindings)
    def replay(self, recording):
        time.sleep(0.3)
        super().replay(recording)
class Driver(ToyDriver):
    def open(self, selector, settings):
        time.sleep(0.3)
        return Device(settings.timeout)
"""


@pytest.fixture
def slow(install):
    """The toy device, each stage of it long enough to be seen."""
    return install("poot-slow", "[poot.devices]\nslow = plug:Driver\n", SLOW)


def test_loading_shows_its_stages_and_leaves_the_text_alone(on_terminal, poot_process, model, slow):
    given = ("generate", model, "the quick", "--device", "slow", *TOY[2:], "--max-tokens", "3")
    expected = poot_process(*given, sites=(slow,))
    assert expected.status == 0 and expected.err == ""
    terminal = on_terminal(*given, sites=(slow,))
    for stage in ("opening a device", "step 1, loading", "step 1, recording", "step 2, ", "reading the prompt"):
        terminal.wait_for(f"tiny: {stage}")
    assert terminal.close() == 0
    _, shown, after = terminal.seen.rpartition(SHOW_CURSOR)
    assert shown
    # What remains on the screen is the text: the line before it was taken back.
    assert after.rpartition("\x1b[2K")[2].replace("\r\n", "\n") == expected.out


def test_a_conversation_shows_its_stages(on_terminal, model, slow):
    terminal = on_terminal("chat", model, "--device", "slow", *TOY[2:], "--max-tokens", "2", sites=(slow,))
    terminal.wait_for("opening a device")
    terminal.wait_for("> ")
    terminal.say("ab\n")
    terminal.wait_for("tiny: step 1, loading")
    terminal.wait_for("reading the prompt")
    terminal.wait_for("> ")
    terminal.say("/exit\n")
    assert terminal.close() == 0


# Ctrl-C


@pytest.fixture
def moment(request):
    """Seconds up to the length of a short run, another one in every run of the tests."""
    seconds = random.SystemRandom().uniform(0, 1.5)
    print(f"Ctrl-C after {seconds:.3f} s")
    return seconds


@pytest.mark.parametrize("repeat", range(4))
def test_ctrl_c_is_clean_whenever_it_comes(on_terminal, endless, moment, repeat):
    terminal = on_terminal("generate", endless, "the quick", "--device", "toy", "--capacity", "8192")
    terminal.wait_for_more()
    terminal.pause(moment)
    terminal.interrupt()
    ended_by_interrupt(terminal)


@pytest.mark.parametrize("part", ["start", "stop"])
def test_ctrl_c_while_a_line_of_progress_begins_or_ends(on_terminal, install, model, part):
    """Behind it the line is neither there nor gone, and nobody else would show the cursor again."""
    code = f"""
import signal
from poot_toy_device.driver import ToyDriver
from rich.console import Console
from rich.live import Live
whole = Live.{part}
def cut(self, *given, **named):
    Console.show_cursor = lambda console, show=True: None if show else hide(console, show)
    whole(self, *given, **named)
    signal.raise_signal(signal.SIGINT)
hide = Console.show_cursor
class Driver(ToyDriver):
    def open(self, selector, settings):
        Live.{part} = cut
        return super().open(selector, settings)
"""
    site = install("poot-cut", "[poot.devices]\ncut = plug:Driver\n", code)
    terminal = on_terminal("generate", model, "the quick", "--device", "cut", "--chunk", "16", sites=(site,))
    ended_by_interrupt(terminal)
    assert HIDE_CURSOR in terminal.seen


def test_ctrl_c_ends_a_benchmark(on_terminal, endless, moment):
    options = ("--device", "toy", "--capacity", "8192", "-p", "0", "-n", "8000")
    terminal = on_terminal("bench", endless, *options)
    terminal.wait_for_more()
    terminal.pause(moment)
    terminal.interrupt()
    ended_by_interrupt(terminal)


def test_a_second_ctrl_c_does_not_wait(on_terminal, install, model):
    """A device that takes for ever to close is left where it is."""
    code = """
import sys, time
from poot_toy_device.device import ToyDevice
from poot_toy_device.driver import ToyDriver
class Device(ToyDevice):
    def close(self):
        print("closing", file=sys.stderr, flush=True)
        time.sleep(600)
class Driver(ToyDriver):
    def open(self, selector, settings):
        return Device(settings.timeout)
"""
    site = install("poot-stuck", "[poot.devices]\nstuck = plug:Driver\n", code)
    terminal = on_terminal("generate", model, "the quick", "--device", "stuck", "--chunk", "16", sites=(site,))
    terminal.wait_for("reading the prompt")
    terminal.interrupt()
    terminal.wait_for("closing")
    terminal.interrupt()
    assert terminal.close() == -2
    assert "Traceback" not in terminal.seen


def test_an_ignored_ctrl_c_stays_ignored(command, model):
    """As in a job that a shell runs in the background."""
    line = command("generate", model, "the quick", *TOY, "--max-tokens", "6")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(**line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, "")
