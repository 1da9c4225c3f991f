"""Compiling a graph for a target: passes, regions, kernels, order, memory. Read `compile` from top to bottom."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from poot_executor.compile.attention import fuse_attention
from poot_executor.compile.classify import weight_view
from poot_executor.compile.collection import collection_paused
from poot_executor.compile.expression import Scene
from poot_executor.compile.extent import longest_expression
from poot_executor.compile.lower import lower_region
from poot_executor.compile.lower.draft import Draft
from poot_executor.compile.lower.reuse import CapsKernels, Reuse, SharedKernels
from poot_executor.compile.options import CompileOptions
from poot_executor.compile.order import order_units
from poot_executor.compile.passes import run_passes
from poot_executor.compile.plan import Plan, Planner, Schema, make_schema
from poot_executor.compile.program import Decline, Program, StateUse, WeightUse
from poot_executor.compile.projections import fuse_projections
from poot_executor.compile.region import Region
from poot_executor.compile.schedule import batch_invariant
from poot_executor.compile.schedule_picks import (
    KEY,
    MEASURED,
    NORM,
    Schedules,
    invariant_pick,
    legal,
    norm_of,
    picked_caps,
    region_key,
)
from poot_executor.compile.target import Caps, Granularity, Pick, Target
from poot_executor.compile.unit import make_unit
from poot_executor.compile.wide import regions_within
from poot_executor.errors import CompileLimit, Unsupported
from poot_executor.formats import FORMATS, Format
from poot_executor.graph.graph import Graph, Value
from poot_executor.graph.keys import StateKey
from poot_executor.graph.verify import verify
from poot_executor.kernel.ir import Kernel
from poot_executor.kernel.passes import optimize
from poot_executor.layout import WeightLayout, layout_for
from poot_executor.weights import WeightKey

_LOG = logging.getLogger("poot.compile")


def compile(graph: Graph, target: Target, options: CompileOptions = CompileOptions()) -> Program:  # noqa: B008
    """The program of a graph on a target. Needs no hardware.

    Raises Unsupported naming the equation and the missing capability, CompileLimit naming the limit, GraphError for an
    ill-formed graph.
    """
    if options.cache is not None and not options.verify and options.dump is None:
        return options.cache.get(graph, target, options, lambda: _compile(graph, target, options))
    return _compile(graph, target, options)


def _compile(graph: Graph, target: Target, options: CompileOptions) -> Program:
    with collection_paused():
        return Compilation(graph, target, options).program(options.schedules)


class Compilation:
    """A compilation whose schedules are chosen last, so that many choices share what comes before: passes, layouts,
    and the kernels of all regions that are scheduled alike."""

    def __init__(self, graph: Graph, target: Target, options: CompileOptions) -> None:
        """Raises GraphError and CompileLimit."""
        verify(graph)
        _limit("equations", options.limits.equations, len(graph.equations))
        self._graph, self._passes = run_passes(graph, verify=options.verify, dump=options.dump)
        self._target, self._options = target, options
        self._layouts = weight_layouts(self._graph, target.caps)
        self._schema = make_schema(self._graph, target.caps.offset_alignment)
        self._caps = batch_invariant(target.caps) if options.deterministic else target.caps
        self._kernels = (SharedKernels() if options.shared is None else options.shared).of(self._caps)
        self._optimize = _optimizer(self._kernels, options)

    def program(self, schedules: Schedules, *, keep: bool = False) -> Program:
        """The program under these schedules; with `keep` its arena reuses nothing, so that any of its dispatches can
        run again after the step. Raises Unsupported and CompileLimit."""
        graph, target, limits, layouts = self._graph, self._target, self._options.limits, self._layouts
        if target.caps.granularity is Granularity.GRAPH:
            return _program(graph, target, self._schema, _whole_graph(graph, target, layouts), self._passes, ())
        picks = self._usable(schedules)
        norms = {} if self._options.deterministic else picks
        regions = fuse_attention(graph, regions_within(graph, layouts, self._caps), layouts, self._caps)
        regions = fuse_projections(graph, regions, layouts, self._caps, norms)
        _limit("expression_operations", limits.expression_operations, longest_expression(graph, regions.stored))
        scene = Scene(graph, regions.stored, layouts)
        units = [make_unit(region, self._lowered(scene, region, picks)) for region in regions.regions]
        ordered = order_units(graph, units, self._caps)
        launched = self._kernels.launched
        plan = Planner(graph, ordered, layouts, self._schema, self._caps, self._optimize, keep, launched).run()
        _limit("dispatches", limits.dispatches, len(plan.commands))
        _limit("arena_bytes", limits.arena_bytes, plan.arena_bytes)
        _limit("constant_bytes", limits.constant_bytes, len(plan.constants))
        return _program(graph, target, self._schema, plan, self._passes, regions.declines)

    def _usable(self, schedules: Schedules) -> dict[str, Pick]:
        """The picks that this target can use; a line in the log for each other one."""
        picks: dict[str, Pick] = {}
        for key, pick in schedules.picks:
            problem = legal(key, pick, self._target.caps)
            if problem is None:
                picks[key] = invariant_pick(pick) if self._options.deterministic else pick
            else:
                _LOG.warning("the measured schedule of %s is ignored: %s", key, problem)
        return picks

    def _lowered(self, scene: Scene, region: Region, picks: Mapping[str, Pick]) -> list[Draft]:
        """A region's dispatches, with its measured pick where there is one that fits it."""
        key = region_key(scene.graph, region, scene.layouts)
        pick = picks.get(key, ()) if key is not None else ()
        if pick:
            try:
                return self._with(scene, region, key, pick)
            except Unsupported as refusal:
                _LOG.warning("the measured schedule of %s is ignored: %s", key, refusal)
        return self._with(scene, region, key, ())

    def _with(self, scene: Scene, region: Region, key: str | None, pick: Pick) -> list[Draft]:
        caps = picked_caps(self._caps, pick) if pick else self._caps
        reuse = self._kernels.drafted.setdefault(pick, Reuse())

        def made() -> list[Draft]:
            drafts = lower_region(scene, region, caps)
            return drafts if key is None else [_explained(scene, region, key, pick, draft) for draft in drafts]

        return reuse.lower(scene, region, made)


def _explained(scene: Scene, region: Region, key: str, pick: Pick, draft: Draft) -> Draft:
    """The dispatch with what its schedule is known by, for `explain` and `tune`."""
    norm = norm_of(scene.graph, region, scene.layouts)
    said = {KEY: key, **({} if norm is None else {NORM: norm}), **({MEASURED: dict(pick)} if pick else {})}
    return replace(draft, schedule={**draft.schedule, **said})


def weight_layouts(graph: Graph, caps: Caps) -> dict[Value, WeightLayout]:
    """The device layout of every CONST, from the format in which the graph reads it."""
    packed: dict[Value, Format] = {}
    for equation in graph.equations:
        if equation.op == "packed_dequant":
            base = weight_view(graph, equation.inputs[0]) or _gathered(graph, equation.inputs[0])
            if base is None:
                raise Unsupported(f"packed_dequant of {equation.inputs[0]}", "packed bytes come from a weight")
            format_ = FORMATS[equation.params["format"]]
            if packed.setdefault(base, format_) is not format_:
                raise Unsupported(f"weight {base}", f"it is read as {packed[base].name} and as {format_.name}")
    layouts: dict[Value, WeightLayout] = {}
    for entry in graph.inputs:
        if not isinstance(entry.key, WeightKey):
            continue
        value = entry.value
        format_ = packed.get(value) or FORMATS.get(value.dtype.value)
        if format_ is None:
            raise Unsupported(f"weight {entry.key} of {value.type}", "dense weights are f32, f16 or bf16")
        shape = value.shape
        if format_.is_packed:
            shape = (*shape[:-1], shape[-1] // format_.nbytes * format_.columns)
        layouts[value] = layout_for(
            format_,
            shape,
            tile_rows=caps.tile_rows,
            max_bytes=caps.max_binding_bytes,
            alignment=caps.offset_alignment,
            fragments="mma" in caps.features,
        )
    return layouts


def _gathered(graph: Graph, value: Value) -> Value | None:
    equation = graph.equation(value)
    if equation is None or not equation.inputs:
        return None
    below = equation.inputs[0]
    return weight_view(graph, below) or _gathered(graph, below)


def _whole_graph(graph: Graph, target: Target, layouts: dict[Value, WeightLayout]) -> Plan:
    """A whole-graph device lowers the graph itself; its operations are refused here by name."""
    allowed = target.caps.operations
    for equation in graph.equations:
        if allowed and equation.op not in allowed:
            raise Unsupported(f"{equation.op} -> {equation.output.type}", f"device {target.kind} has no {equation.op}")
    weights = tuple(
        WeightUse(i.key, i.value.type, layouts[i.value]) for i in graph.inputs if isinstance(i.key, WeightKey)
    )
    states = tuple(StateUse(i.key, i.value.type) for i in graph.inputs if isinstance(i.key, StateKey))
    return Plan((), weights, states, b"", 0, 0)


def _optimizer(kernels: CapsKernels, options: CompileOptions) -> Callable[[Kernel], Kernel]:
    """Kernel passes, once a kernel: equal regions share theirs."""
    caps, done = kernels.caps, kernels.optimized

    def run(kernel: Kernel) -> Kernel:
        if kernel not in done:
            done[kernel] = optimize(
                kernel, subgroup="subgroup" in caps.features, subgroup_width=caps.subgroup_width, check=options.verify
            )
            shared = 4 * sum(array.count for array in done[kernel].shared)
            if shared > caps.most_shared_bytes:
                missing = f"it needs {shared:,} bytes of shared memory, the target has {caps.most_shared_bytes:,}"
                raise Unsupported(f"region {kernel.name}", missing)
        return done[kernel]

    return run


def _program(
    graph: Graph, target: Target, schema: Schema, plan: Plan, passes: tuple[str, ...], declines: tuple[Decline, ...]
) -> Program:
    return Program(
        graph,
        target,
        plan.commands,
        plan.weights,
        plan.states,
        schema.slots,
        schema.input_bytes,
        schema.outputs,
        schema.checks,
        schema.output_bytes,
        plan.constants,
        plan.arena_bytes,
        plan.arena_floor,
        passes,
        declines,
    )


def _limit(name: str, limit: int, count: int) -> None:
    if count > limit:
        raise CompileLimit(name, limit, count)
