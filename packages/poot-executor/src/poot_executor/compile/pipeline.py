"""Compiling a graph for a target: passes, regions, kernels, order, memory. Read `compile` from top to bottom."""

from __future__ import annotations

from collections.abc import Callable

from poot_executor.compile.attention import fuse_attention
from poot_executor.compile.classify import weight_view
from poot_executor.compile.expression import Scene
from poot_executor.compile.extent import longest_expression
from poot_executor.compile.lower import lower_region
from poot_executor.compile.lower.reuse import Reuse
from poot_executor.compile.options import CompileOptions
from poot_executor.compile.order import make_unit, order_units
from poot_executor.compile.passes import run_passes
from poot_executor.compile.plan import Plan, Planner, Schema, make_schema
from poot_executor.compile.program import Decline, Program, StateUse, WeightUse
from poot_executor.compile.projections import fuse_projections
from poot_executor.compile.regions import form_regions
from poot_executor.compile.schedule import batch_invariant
from poot_executor.compile.target import Caps, Granularity, Target
from poot_executor.errors import CompileLimit, Unsupported
from poot_executor.formats import FORMATS, Format
from poot_executor.graph.graph import Graph, Value
from poot_executor.graph.keys import StateKey
from poot_executor.graph.verify import verify
from poot_executor.kernel.ir import Kernel
from poot_executor.kernel.passes import optimize
from poot_executor.layout import WeightLayout, layout_for
from poot_executor.weights import WeightKey


def compile(graph: Graph, target: Target, options: CompileOptions = CompileOptions()) -> Program:  # noqa: B008
    """The program of a graph on a target. Needs no hardware.

    Raises Unsupported naming the equation and the missing capability, CompileLimit naming the limit, GraphError for an
    ill-formed graph.
    """
    if options.cache is not None and not options.verify and options.dump is None:
        return options.cache.get(graph, target, options, lambda: _compile(graph, target, options))
    return _compile(graph, target, options)


def _compile(graph: Graph, target: Target, options: CompileOptions) -> Program:
    verify(graph)
    _limit("equations", options.limits.equations, len(graph.equations))
    graph, passes = run_passes(graph, verify=options.verify, dump=options.dump)
    layouts = weight_layouts(graph, target.caps)
    schema = make_schema(graph, target.caps.offset_alignment)
    if target.caps.granularity is Granularity.GRAPH:
        return _program(graph, target, schema, _whole_graph(graph, target, layouts), passes, ())
    caps = batch_invariant(target.caps) if options.deterministic else target.caps
    regions = fuse_attention(graph, form_regions(graph), layouts, caps)
    regions = fuse_projections(graph, regions, layouts, caps)
    _limit("expression_operations", options.limits.expression_operations, longest_expression(graph, regions.stored))
    scene = Scene(graph, regions.stored, layouts)
    reuse = Reuse()
    units = [
        make_unit(graph, r, reuse.lower(scene, r, lambda r=r: lower_region(scene, r, caps))) for r in regions.regions
    ]
    ordered = order_units(graph, units)
    plan = Planner(graph, ordered, layouts, schema, caps, _optimizer(caps, options)).run()
    _limit("dispatches", options.limits.dispatches, len(plan.commands))
    _limit("arena_bytes", options.limits.arena_bytes, plan.arena_bytes)
    _limit("constant_bytes", options.limits.constant_bytes, len(plan.constants))
    return _program(graph, target, schema, plan, passes, regions.declines)


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
            format_, shape, tile_rows=caps.tile_rows, max_bytes=caps.max_binding_bytes, alignment=caps.offset_alignment
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


def _optimizer(caps: Caps, options: CompileOptions) -> Callable[[Kernel], Kernel]:
    """Kernel passes, once a kernel: equal regions share theirs."""
    done: dict[Kernel, Kernel] = {}

    def run(kernel: Kernel) -> Kernel:
        if kernel not in done:
            done[kernel] = optimize(
                kernel, subgroup="subgroup" in caps.features, subgroup_width=caps.subgroup_width, check=options.verify
            )
            shared = 4 * sum(array.count for array in done[kernel].shared)
            if shared > caps.max_shared_bytes:
                missing = f"it needs {shared:,} bytes of shared memory, the target has {caps.max_shared_bytes:,}"
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
