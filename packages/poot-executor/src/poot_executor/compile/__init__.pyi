from poot_executor.compile.options import CompileLimits as CompileLimits
from poot_executor.compile.options import CompileOptions as CompileOptions
from poot_executor.compile.pipeline import compile as compile
from poot_executor.compile.program import Program as Program
from poot_executor.compile.target import Caps as Caps
from poot_executor.compile.target import Granularity as Granularity
from poot_executor.compile.target import Target as Target

__all__ = ["Caps", "CompileLimits", "CompileOptions", "Granularity", "Program", "Target", "compile"]
