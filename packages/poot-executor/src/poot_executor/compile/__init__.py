"""The compiler: `compile(graph, target, options) -> Program`. A name is imported when it is asked for."""

from poot_executor.compile.exports import __dir__ as __dir__
from poot_executor.compile.exports import __getattr__ as __getattr__

__all__ = ["Caps", "CompileLimits", "CompileOptions", "Granularity", "Program", "Target", "compile"]
