"""What can be asked for: an OpenVINO device and how it may compute, as a selector and as properties of a compilation.

A selector is OpenVINO's name of the device in small letters ("cpu", "gpu", "gpu.1", "npu"), with "-fast" behind it for
what the plug-in does by itself. Without, the plug-in is held to float32: neither rounds it activations to bf16 or f16,
nor to 8 bits for contractions with weights. An NPU computes in f16, and so is one thing only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FAST = "-fast"
FEW_ROWS = 8
"""Rows of a contraction up to which memory limits it, and not arithmetic."""
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
        return "float16" if self.plugin == "NPU" else "fast: activations in 8 or 16 bits"

    @property
    def dynamic(self) -> bool:
        """Whether attention may sweep another number of positions from step to step. An NPU takes static shapes."""
        return self.plugin == "CPU"

    def apart(self, rows: int) -> bool:
        """Whether minima of weights are added to contractions of `rows` rows, d · (q · x) + m · Σx, and are no zero
        points in float32: where the plug-in quantizes x, which it does for weights without zero points alone."""
        return not self.exact and self.plugin == "CPU" and rows <= FEW_ROWS

    def properties(self, rows: int) -> Mapping[str, str | int]:
        """Properties that a model which multiplies `rows` rows by weights is compiled with.

        PERFORMANCE_HINT says that one step after another is asked for. Threads are not pinned to processors, where they
        would wait for whatever else runs on one. The plug-in's kernels made of several elementwise operations
        (snippets) are off: each has code and structures of its own, with which a model takes twice as long to be read
        from disk, and 50 MB more, and kernels of one operation are as fast here. In the exact mode three settings work
        together: the type of inference, no quantization of activations, and no rewriting of the graph for speed. In the
        fast mode of a CPU few rows are quantized to 8 bits for contractions with weights, and the rest stays float32;
        for many rows the plug-in chooses.
        """
        chosen: dict[str, str | int] = {"PERFORMANCE_HINT": "LATENCY"}
        if self.plugin == "CPU":
            chosen["ENABLE_CPU_PINNING"] = False
            chosen["SNIPPETS_MODE"] = "DISABLE"
        if self.exact:
            chosen |= {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
            if self.plugin == "CPU":
                chosen["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
        elif self.plugin == "CPU" and rows <= FEW_ROWS:
            chosen |= {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32}
        return chosen


def modes(available: Sequence[str]) -> list[Mode]:
    """Every mode of the devices that OpenVINO names, preferred ones first, the exact one before the fast."""
    offered: list[Mode] = []
    for plugin in ORDER:
        for device in (name for name in available if name.partition(".")[0] == plugin):
            offered += [Mode(device, exact) for exact in ((True, False) if plugin != "NPU" else (False,))]
    return offered
