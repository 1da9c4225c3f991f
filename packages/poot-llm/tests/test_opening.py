"""Opening a driver: programs that were compiled once are not compiled again, and measured schedules are used."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from poot_executor.compile import CompileOptions
from poot_executor.compile.program_cache import ProgramCache
from poot_executor.discover import open_device
from poot_executor.settings import Settings, read_settings
from poot_executor.tuned import Pick, TunedFor, save_picks
from poot_llm.driver import DriverOptions
from poot_llm.llm import LLM
from poot_llm.opening import open_driver
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams

_SPEC = importlib.util.spec_from_file_location("driving", Path(__file__).parent / "fixtures" / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
fixture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixture)

DEVICE = "reference:plain"
OPTIONS = DriverOptions(capacity=32, chunk=4)
SHORT = SamplingParams(max_tokens=3, ignore_eos=True)


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> ModelHandle:
    return fixture.checkpoint(tmp_path_factory.mktemp("tiny"))


def test_an_llm_compiles_nothing_that_one_before_it_compiled(
    handle: ModelHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POOT_HOME", str(tmp_path))
    monkeypatch.setenv("POOT_COMPILE_CACHE", "1")
    seen = []
    for _ in range(2):
        with LLM(handle.path, device=DEVICE, options=OPTIONS) as model:
            (output,) = model.generate("the quick brown", SHORT)
            cache = model.driver.options.compile.cache
            assert cache is not None
            seen.append((output.outputs[0].token_ids, cache.stats()))
    (tokens, first), (again, second) = seen
    assert tokens == again
    assert first.hits == 0 and first.written == first.misses > 0
    assert (second.hits, second.misses) == (first.written, 0)


def test_what_poot_tune_measured_is_compiled_with(handle: ModelHandle, tmp_path: Path) -> None:
    settings = Settings(tmp_path, compile_cache=False)
    device, choice = open_device(DEVICE, settings.device)
    with device:
        of = TunedFor.of(device.target, choice.description)
    save_picks(settings.tuned, of, {"norm f32 32": Pick({"apart": 1}, 1e-6, 2e-6)})
    with open_driver(handle, DEVICE, OPTIONS, settings) as opened:
        assert opened.choice.name == "reference"
        assert opened.driver.options.compile.schedules.mapping() == {"norm f32 32": (("apart", 1),)}


def test_what_the_options_say_themselves_stays(handle: ModelHandle, tmp_path: Path) -> None:
    kept = ProgramCache(None)
    options = DriverOptions(capacity=32, chunk=4, compile=CompileOptions(dump=tmp_path / "own", cache=kept))
    settings = read_settings({"POOT_HOME": str(tmp_path), "POOT_DUMP": str(tmp_path / "dump")})
    with open_driver(handle, DEVICE, options, settings) as opened:
        chosen = opened.driver.options.compile
        assert chosen.cache is kept and chosen.dump == tmp_path / "own"
    with open_driver(handle, DEVICE, OPTIONS, settings) as opened:
        assert opened.driver.options.compile.dump == tmp_path / "dump"
