"""The kernel language: kernels as Python, one IR for every backend, passes, verifier, and the emitters' rule table.

`KernelBuilder` makes kernel IR from Python calls, `ir` defines it, `verify` checks it and `show` prints it.
"""

from poot_executor.kernel.buffers import BufferRef, SharedRef
from poot_executor.kernel.builder import KernelBuilder, Var
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.ir import KERNEL_OPS, Access, Block, Kernel, KType, Op, OpRow, Param, SharedArray, Val
from poot_executor.kernel.show import show
from poot_executor.kernel.verify import verify

__all__ = [
    "KERNEL_OPS", "Access", "Block", "BufferRef", "Handle", "KType", "Kernel", "KernelBuilder", "Op", "OpRow", "Param",
    "SharedArray", "SharedRef", "Val", "Var", "show", "verify",
]  # fmt: skip
