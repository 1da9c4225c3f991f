"""The suite: one class of everything that every device must pass."""

from __future__ import annotations

from poot_eval.conformance.elementwise import ElementwiseConformance
from poot_eval.conformance.faults import FaultConformance
from poot_eval.conformance.guard import GuardConformance
from poot_eval.conformance.kernel_flow import KernelFlowConformance, SubgroupConformance
from poot_eval.conformance.kernels import KernelConformance
from poot_eval.conformance.leaks import LeakConformance
from poot_eval.conformance.memory import MemoryConformance
from poot_eval.conformance.operations import (
    ContractionConformance,
    MovementConformance,
    RandomConformance,
    ReductionConformance,
)
from poot_eval.conformance.random_graphs import RandomGraphConformance
from poot_eval.conformance.regions import (
    AttentionRegions,
    ContractionRegions,
    IndexedRegions,
    PointwiseRegions,
    RowRegions,
)
from poot_eval.conformance.replay import ReplayConformance
from poot_eval.conformance.steps import StepConformance


class DeviceConformance(
    GuardConformance,
    MemoryConformance,
    KernelConformance,
    KernelFlowConformance,
    SubgroupConformance,
    ElementwiseConformance,
    ReductionConformance,
    ContractionConformance,
    MovementConformance,
    RandomConformance,
    PointwiseRegions,
    RowRegions,
    ContractionRegions,
    IndexedRegions,
    AttentionRegions,
    RandomGraphConformance,
    ReplayConformance,
    StepConformance,
    FaultConformance,
    LeakConformance,
):
    """Inherit it as a whole, with a module-level fixture `device`; override nothing."""
