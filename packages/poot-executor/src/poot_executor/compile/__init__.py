"""The compiler: `compile(graph, target, options) -> Program`."""

from poot_executor.compile.options import CompileLimits, CompileOptions
from poot_executor.compile.pipeline import compile
from poot_executor.compile.program import Program
from poot_executor.compile.target import Caps, Granularity, Target

__all__ = ["Caps", "CompileLimits", "CompileOptions", "Granularity", "Program", "Target", "compile"]
