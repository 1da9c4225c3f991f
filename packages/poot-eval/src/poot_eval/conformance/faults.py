"""What happens when a kernel's check or a program's check fails: typed, once, and until a reset."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.conformance.inputs import Rng, floats
from poot_eval.conformance.launching import kernel_device, launch
from poot_eval.conformance.memory import used
from poot_eval.conformance.stepping import POSITIONS, Stepper
from poot_executor.device import Device
from poot_executor.dtype import F32, I32
from poot_executor.errors import CheckFailed, KernelFault, NeedsReset
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.kernel_device import KernelDevice


def guarded(name: str, code: int) -> Kernel:
    """y[t] = table[x[t]], with a check that x[t] is inside, clamped before it is used."""
    b = KernelBuilder(name, 32)
    x, table = b.buffer("x", I32, Access.READ), b.buffer("table", I32, Access.READ)
    y, t = b.buffer("y", I32, Access.READ_WRITE), b.thread_id()
    b.check((x[t] >= 0) & (x[t] < 32), code)
    y[t] = table[b.min(b.max(x[t], 0), 31)]
    return b.finish()


def survivor(device: Device) -> KernelDevice:
    """A device that a failed check does not cost us."""
    target = kernel_device(device)
    if target.target.caps.traps:
        pytest.skip(f"a failed check traps on {target.target.kind} and loses the context: it has a test of its own")
    return target


class FaultConformance:
    """Failed checks, and what is left after them."""

    @pytest.mark.parametrize("code", [1, 7, 255])
    def test_a_kernel_check_names_kernel_and_code(self, device: Device, rng: Rng, code: int) -> None:
        """Raised by the wait, once; what follows runs as if nothing had been."""
        target = survivor(device)
        kernel = guarded(f"guarded{code}", code)
        places = rng.permutation(32).astype(np.int32)
        bad = places.copy()
        bad[int(rng.integers(0, 32))] = int(rng.choice([-1, 32, 1 << 30]))
        table, before = rng.integers(0, 1000, 32).astype(np.int32), used(device)
        with pytest.raises(KernelFault) as raised:
            launch(target, kernel, [bad, table, np.zeros(32, np.int32)])
        assert (raised.value.kernel, raised.value.code) == (kernel.name, code)
        assert used(device) == before
        target.synchronize()
        got = launch(target, kernel, [places, table, np.full(32, -1, np.int32)])
        assert np.array_equal(got[2], table[places])

    def test_a_kernel_fault_needs_a_reset(self, device: Device, rng: Rng) -> None:
        """The step's outputs are lost; no step runs until the state is reset; then all is well."""
        survivor(device)
        with Stepper(device, floats(rng, (8, 5), F32)) as stepper:
            stepper.step([1, 2, 3], 4)
            with pytest.raises(KernelFault):
                stepper.engine.step(stepper.executable, stepper.entry, stepper.inputs([1, 2, 3], POSITIONS))
            self._refused_until_reset(stepper)

    def test_a_failed_check_needs_a_reset(self, device: Device, rng: Rng) -> None:
        """It names its place among the checks and the first offender."""
        with Stepper(device, floats(rng, (8, 5), F32)) as stepper:
            stepper.step([1, 2, 3], 4)
            with pytest.raises(CheckFailed) as raised:
                stepper.engine.step(stepper.executable, stepper.entry, stepper.inputs([5, -7, -9], 2))
            assert (raised.value.code, raised.value.index) == (0, 1)
            self._refused_until_reset(stepper)

    def test_a_step_behind_a_failed_one_is_lost(self, device: Device, rng: Rng) -> None:
        """It ran over a state that the failed one had touched."""
        with Stepper(device, floats(rng, (8, 5), F32)) as stepper:
            stepper.step([1, 2, 3], 4)
            first = stepper.engine.submit(stepper.executable, stepper.entry, stepper.inputs([-1, 0, 0], 2))
            second = stepper.engine.submit(stepper.executable, stepper.entry, stepper.inputs([1, 0, 0], 2))
            with pytest.raises(CheckFailed):
                stepper.engine.collect(first)
            with pytest.raises(NeedsReset):
                stepper.engine.collect(second)
            self._refused_until_reset(stepper)

    def test_an_executable_that_did_not_fail_goes_on(self, device: Device, rng: Rng) -> None:
        """Only the one whose step failed needs the reset."""
        with Stepper(device, floats(rng, (8, 5), F32)) as failed, Stepper(device, floats(rng, (8, 5), F32)) as other:
            other.step([4, 5, 6], 7)
            with pytest.raises(CheckFailed):
                failed.engine.step(failed.executable, failed.entry, failed.inputs([-1, 0, 0], 2))
            other.step([1, 2, 3], 4)
            self._refused_until_reset(failed)

    @staticmethod
    def _refused_until_reset(stepper: Stepper) -> None:
        for _ in range(2):
            with pytest.raises(NeedsReset):
                stepper.engine.step(stepper.executable, stepper.entry, stepper.inputs([1, 2, 3], 4))
        stepper.engine.reset_state(stepper.executable)
        stepper.clear()
        stepper.step([7, 8, 9], 1)
        stepper.step([7, 0, 9], 1)
