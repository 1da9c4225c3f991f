"""What the command line says, and what it imports to say it."""

import importlib.metadata
import os
import subprocess
from pathlib import Path

import pytest

from poot_llm.cli.main import COMMANDS

FULL = Path("/dev/full")
PLUG_IN = """
'''do a new thing'''
def add_arguments(parser):
    parser.add_argument("what")
def run(arguments):
    print("done", arguments.what)
    return 7
"""
GROW = "[poot.commands]\ngrow = plug\n"


def test_help_lists_every_command(poot):
    done = poot("--help")
    assert done.status == 0 and done.err == ""
    assert all(f"  {name} " in done.out for name in COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(poot, name):
    done = poot(name, "--help")
    assert done.status == 0 and done.err == ""
    assert f"usage: poot {name}" in done.out


def test_version(poot):
    done = poot("--version")
    assert (done.status, done.out) == (0, f"poot {importlib.metadata.version('poot-llm')}\n")


# A bare package stands in for poot_llm, whose own names are left out: the question is what the command needs.
HELP = """
import importlib.util, sys, types
before = set(sys.modules)
package = types.ModuleType("poot_llm")
package.__path__ = importlib.util.find_spec("poot_llm").submodule_search_locations
sys.modules["poot_llm"] = package
from poot_llm.cli.main import main
assert main(["--help"]) == 0
print(*sorted(set(sys.modules) - before), file=sys.stderr)
"""
MOST_MODULES = 150
"""97 on Python 3.11 and 118 on 3.13, of which 6 are poot's; any of the heavy ones brings a hundred more."""


def test_help_imports_little_and_nothing_heavy(command):
    """What takes its time, which benchmarks/startup.py measures, are imports: those are counted here."""
    given = command()
    given["args"][3:] = ["-c", HELP]
    imported = set(subprocess.run(**given, capture_output=True, check=True).stderr.split())
    assert "argparse" in imported
    assert not imported & {"numpy", "rich", "jinja2", "tokenizers", "safetensors", "wgpu", "poot_executor"}
    assert len(imported) <= MOST_MODULES, sorted(imported)


def test_the_module_and_the_script_are_the_same(poot_process):
    done = poot_process("--help")
    assert done.status == 0 and "usage: poot" in done.out
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="poot")
    assert script.value == "poot_llm.cli:main"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["grow"], ["'grow'", "generate"]),
        (["--wide"], ["--wide"]),
        (["generate"], ["generate", "MODEL", "poot generate --help"]),
        (["generate", "m", "p", "--temperature", "hot"], ["--temperature", "hot"]),
        (["generate", "m", "p", "--capacity", "0"], ["--capacity", "1 or more"]),
        (["bench", "m", "-p", "-3"], ["-p"]),
        (["pull"], ["NAME"]),
    ],
)
def test_a_command_line_that_cannot_be_read(poot, arguments, words):
    refusal = poot(*arguments).refusal
    assert all(word in refusal for word in words)


def test_another_distribution_adds_a_command(poot_process, install):
    site = install("poot-plug", GROW, PLUG_IN)
    listed = poot_process("--help", sites=(site,))
    assert "grow" in listed.out and "from poot-plug" in listed.out
    done = poot_process("grow", "tall", sites=(site,))
    assert (done.status, done.out) == (7, "done tall\n")
    assert "do a new thing" in poot_process("grow", "--help", sites=(site,)).out.lower()


def test_a_command_of_two_words_adds_to_one_of_poots_own(poot_process, install):
    site = install("poot-plug", "[poot.commands]\npull-away = plug\n", PLUG_IN)
    assert "  pull away" in poot_process("--help", sites=(site,)).out
    for words in (("pull", "away", "now"), ("pull-away", "now")):
        done = poot_process(*words, sites=(site,))
        assert (done.status, done.out) == (7, "done now\n")
    assert "'away'" in poot_process("pull", "away").refusal


def test_a_command_is_not_replaced(poot_process, install):
    site = install("poot-plug", "[poot.commands]\ndevices = plug\n", PLUG_IN)
    refusal = poot_process("devices", sites=(site,)).refusal
    assert all(word in refusal for word in ("'devices'", "poot-llm", "poot-plug"))
    assert poot_process("--help", sites=(site,)).status == 0


def test_two_distributions_of_one_command(poot_process, install):
    sites = (install("poot-first", GROW, PLUG_IN), install("poot-second", GROW, PLUG_IN))
    refusal = poot_process("grow", sites=sites).refusal
    assert all(word in refusal for word in ("'grow'", "poot-first", "poot-second"))


@pytest.mark.parametrize(
    ("code", "words"),
    [("import nothing_of_this_name", ["plug", "nothing_of_this_name"]), ("x = 1", ["add_arguments"])],
)
def test_a_broken_command(poot_process, install, code, words):
    site = install("poot-plug", GROW, code)
    refusal = poot_process("grow", sites=(site,)).refusal
    assert all(word in refusal for word in words)
    assert poot_process("--help", sites=(site,)).status == 0


def test_an_unknown_setting(poot, monkeypatch):
    monkeypatch.setenv("POOT_SPEED", "9")
    assert "POOT_SPEED" in poot("devices").refusal


@pytest.mark.skipif(os.name != "posix", reason="a pipe whose reader has gone is SIGPIPE on POSIX")
def test_a_reader_that_has_gone_is_no_crash(command):
    """`poot --help | true`, with a text that does not fit the pipe's buffer being written after it has closed."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stdout:
        done = subprocess.run(**command("--help"), stdout=stdout, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not FULL.exists(), reason="a full disk is /dev/full on Linux")
def test_a_full_disk_is_a_line(command):
    with FULL.open("w") as stdout:
        done = subprocess.run(**command("--help"), stdout=stdout, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert done.stderr == "poot: standard output: No space left on device\n"
