"""The suite fails on devices that are a little wrong: each is the reference device with one
defect."""

import subprocess
import sys
from importlib.metadata import entry_points

import numpy as np
import pytest

from poot_eval.conformance import DeviceConformance, open_or_skip
from poot_eval.conformance.guard import LEAST, cases_of
from poot_eval.device import ReferenceDevice, ReferenceRecording
from poot_eval.kernel_values import RULES
from poot_executor.device import BufferKind, Copy, Dispatch
from poot_executor.dtype import BF16, F32
from poot_executor.errors import DeviceError, KernelFault
from poot_executor.kernel.ir import Block, Kernel, Op
from poot_executor.settings import Settings

SUITE = DeviceConformance()


CAUGHT = (AssertionError, pytest.fail.Exception, DeviceError)


def caught(device, test, *args):
    with device, pytest.raises(CAUGHT):
        test(device, *args)


def test_a_small_relative_error_is_caught(rng, monkeypatch):
    import poot_eval.kernel_values as values

    spoiled = dict(RULES)
    spoiled["exp"] = lambda x: RULES["exp"](x * np.float32(1 + 2e-6))
    spoiled["fma"] = lambda a, b, c: RULES["fma"](a, b * np.float32(1 + 1e-3), c)
    spoiled["div"] = lambda a, b: RULES["div"](a, b) * (np.float32(1 + 2.0**-23) if a.dtype == np.float32 else 1)
    monkeypatch.setattr(values, "RULES", spoiled)
    caught(ReferenceDevice(), SUITE.test_elementwise, rng, "exp", F32)
    caught(ReferenceDevice(), SUITE.test_elementwise, rng, "div", F32)
    caught(ReferenceDevice(), SUITE.test_row_reduction, rng, "softmax")
    caught(ReferenceDevice(), SUITE.test_contraction, rng, "q4_1", 3)
    caught(ReferenceDevice(), SUITE.test_contraction, rng, "f32", 8)


class Truncating(ReferenceDevice):
    """bf16 is truncated where it should be rounded: the rounding's addend is gone."""

    def load(self, kernel, compiled):
        kernel = super().load(kernel, compiled)
        return rewritten(kernel, "const", lambda op: op.attrs["value"] == 0x7FFF, {"value": 0})


def rewritten(kernel, kind, matches, attrs):
    """A kernel with the attributes of some operations replaced."""

    def block(old):
        return Block(old.args, tuple(op_(op) for op in old.ops))

    def op_(op):
        new = attrs if op.kind == kind and matches(op) else op.attrs
        return Op(op.kind, op.operands, op.results, new, tuple(map(block, op.blocks)), op.line)

    return Kernel(kernel.name, kernel.params, kernel.shared, kernel.group_size, block(kernel.body))


def test_rounding_is_caught(rng):
    caught(Truncating(), SUITE.test_cast, rng, F32, BF16)


class Dirty(ReferenceDevice):
    """Memory that is not cleared."""

    def allocate(self, kind, nbytes):
        buffer = super().allocate(kind, nbytes)
        buffer.handle[-1] = 1
        return buffer


class Leaking(ReferenceDevice):
    """What is freed stays counted."""

    def free(self, buffer):
        used = dict(self._used)
        super().free(buffer)
        self._used = used


class Forgiving(ReferenceDevice):
    """Kernel faults are dropped."""

    def synchronize(self):
        try:
            super().synchronize()
        except KernelFault:
            return


class Repeating(ReferenceDevice):
    """A fault is raised again by the next wait."""

    def synchronize(self):
        try:
            super().synchronize()
        except KernelFault as error:
            self._staged.append(error)
            raise


class Lazy(ReferenceDevice):
    """The last group of every grid is left out."""

    def _interpret(self, dispatch, kernel, deadline):
        x, y, z = dispatch.groups
        if x * y * z > 1:
            dispatch = Dispatch(dispatch.kernel, dispatch.args, (max(x - 1, 1), y, z), dispatch.work)
        return super()._interpret(dispatch, kernel, deadline)


class Stale(ReferenceDevice):
    """A recording keeps the inputs that it was first replayed with."""

    def replay(self, recording):
        held = self.__dict__.setdefault("_first", {})
        for command in recording.commands:
            for arg in () if isinstance(command, Copy) else command.args:
                if arg.slice.buffer.kind is BufferKind.INPUT:
                    kept = held.setdefault(id(arg.slice.buffer), arg.slice.buffer.handle.copy())
                    arg.slice.buffer.handle[:] = kept
        super().replay(recording)


class Shuffled(ReferenceDevice):
    """Commands of a recording run in the wrong order."""

    def record(self, commands, download):
        recording = super().record(commands, download)
        return ReferenceRecording(tuple(reversed(recording.commands)))


@pytest.mark.parametrize(
    ("defect", "test", "args"),
    [
        (Dirty, "test_memory_starts_at_zero", (BufferKind.STATE,)),
        (Leaking, "test_counters_say_what_is_allocated", None),
        (Leaking, "test_everything_is_given_back", ()),
        (Forgiving, "test_a_kernel_check_names_kernel_and_code", (7,)),
        (Forgiving, "test_a_kernel_fault_needs_a_reset", ()),
        (Repeating, "test_a_kernel_check_names_kernel_and_code", (7,)),
        (Lazy, "test_elementwise", ("add", F32)),
        (Lazy, "test_contraction", ("q8_0", 1)),
        (Stale, "test_many_steps_match_the_oracle", ()),
        (Stale, "test_many_steps_record_once", ()),
        (Shuffled, "test_many_steps_match_the_oracle", ()),
        (Shuffled, "test_replay_equals_eager", ()),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_defect_is_caught(rng, defect, test, args):
    bound = getattr(SUITE, test)
    if args is None:
        with defect() as device, pytest.raises(CAUGHT):
            bound(device)
    else:
        caught(defect(), bound, rng, *args)


def test_a_class_that_overrides_a_test_is_caught():
    class Lax(DeviceConformance):
        def test_many_steps_record_once(self):
            """Nothing."""

    DeviceConformance().test_the_class_inherits_every_test()
    with pytest.raises(AssertionError, match="Lax overrides test_many_steps_record_once"):
        Lax().test_the_class_inherits_every_test()
    assert cases_of(DeviceConformance) >= LEAST


def test_a_missing_device_is_a_skip_with_a_reason_or_a_failure_where_required(tmp_path):
    settings = Settings(tmp_path)
    with pytest.raises(pytest.skip.Exception, match="no reference:quantum"):
        open_or_skip("reference:quantum", settings)
    for required in ("reference", "reference:quantum"):
        strict = Settings(tmp_path, require_devices=frozenset([required]))
        with pytest.raises(pytest.fail.Exception, match=f"{required} is required and missing"):
            open_or_skip("reference:quantum", strict)
    with open_or_skip("reference:plain", settings) as device:
        assert device.target.kind == "reference"


FILE = """
import numpy as np
from poot_eval.conformance.memory import MemoryConformance

def test_draw(rng):
    print("drawn", rng.integers(0, 1 << 60))

def test_assertions_of_the_suite_show_their_values():
    class Odd:
        def memory(self):
            return type("Memory", (), {"used": {}})()
        def allocate(self, kind, nbytes):
            return np.zeros(nbytes, np.uint8)
        def free(self, buffer): pass
        def write(self, buffer, data): pass
        def read(self, buffer, out):
            out[:] = 9
    MemoryConformance().test_memory_starts_at_zero(Odd(), np.random.default_rng(), "any")
"""


OTHERS = [e.name for e in entry_points(group="pytest11") if not e.value.startswith("poot_eval.")]
"""Plug-ins of distributions that happen to be here, of which some take seconds to import."""


def run_pytest(folder, *options):
    without = [f"-pno:{name}" for name in OTHERS]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *without, *options, "test_file.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False).stdout


def test_a_seed_is_printed_and_repeats_the_inputs(tmp_path):
    (tmp_path / "test_file.py").write_text(FILE)
    texts = [run_pytest(tmp_path, "-rP", *options) for options in (["--poot-seed=5"], ["--poot-seed=5"], [])]
    assert "repeat with --poot-seed=5" in texts[0] and "poot seed: --poot-seed=5" in texts[0]
    draws = [[line for line in text.splitlines() if line.startswith("drawn")] for text in texts]
    assert draws[0] and draws[0] == draws[1] != draws[2]
    assert "poot seed: --poot-seed=" in texts[2] and "--poot-seed=5\n" not in texts[2]
    assert "assert not np.True_" in texts[0], texts[0]
