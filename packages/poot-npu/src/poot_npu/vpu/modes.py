"""What can be asked for: an OpenVINO device and how it may compute, as a selector and as properties of a compilation.

A selector is OpenVINO's name of the device in small letters ("cpu", "gpu", "gpu.1", "npu"), with "-fast" behind it for
what the plug-in does by itself. Without, the plug-in is held to float32: neither rounds it activations to bf16 or f16,
nor to 8 bits for contractions with weights. An NPU computes in f16, and so is one thing only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FAST = "-fast"
ORDER = ("NPU", "GPU", "CPU")
"""The plug-ins that are offered, preferred first."""


@dataclass(frozen=True, slots=True)
class Mode:
    """An OpenVINO device and a way to compute. `exact` holds it to float32."""

    device: str
    exact: bool

    @property
    def plugin(self) -> str:
        """The device's kind: CPU, GPU or NPU."""
        return self.device.partition(".")[0]

    @property
    def selector(self) -> str:
        """What it is asked for by, behind "vpu:"."""
        return self.device.lower() + (FAST if self.plugin != "NPU" and not self.exact else "")

    @property
    def arithmetic(self) -> str:
        """How it computes, in words."""
        if self.exact:
            return "exact: float32 activations"
        return "float16" if self.plugin == "NPU" else "fast: bf16, f16 or 8-bit activations, as the plug-in chooses"

    @property
    def dynamic(self) -> bool:
        """Whether attention may sweep another number of positions from step to step. An NPU takes static shapes."""
        return self.plugin == "CPU"

    def properties(self) -> Mapping[str, str | int]:
        """Properties that a model is compiled with.

        PERFORMANCE_HINT says that one step after another is asked for. In the exact mode three settings work together:
        the type of inference, no quantization of activations, and no rewriting of the graph for speed.
        """
        latency: dict[str, str | int] = {"PERFORMANCE_HINT": "LATENCY"}
        if not self.exact:
            return latency
        precise: dict[str, str | int] = {
            "INFERENCE_PRECISION_HINT": "f32",
            "EXECUTION_MODE_HINT": "ACCURACY",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }
        return latency | precise


def modes(available: Sequence[str]) -> list[Mode]:
    """Every mode of the devices that OpenVINO names, preferred ones first, the exact one before the fast."""
    offered: list[Mode] = []
    for plugin in ORDER:
        for device in (name for name in available if name.partition(".")[0] == plugin):
            offered += [Mode(device, exact) for exact in ((True, False) if plugin != "NPU" else (False,))]
    return offered
