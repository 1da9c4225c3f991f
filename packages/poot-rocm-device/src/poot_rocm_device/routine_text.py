"""Elementary functions as HIP text: the shared routines of fused multiply-adds, each a function `poot_<name>`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from poot_executor.dtype import DType
from poot_executor.kernel import fused_routines
from poot_rocm_device.emit_scalar import expression, literal_of

F32, I32, BOOL = DType.F32, DType.I32, DType.BOOL

ROUTINES: Mapping[str, Callable[..., str]] = MappingProxyType(
    {name: getattr(fused_routines, name) for name in ("exp", "log", "sin", "cos", "tanh", "erf", "rsqrt", "pow")}
)


class _Text:
    """The machine that routines run on: each operation is a line of a function's body."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._dtypes: dict[str, DType] = {}

    def argument(self, name: str) -> str:
        self._dtypes[name] = F32
        return name

    def _known(self, dtype: DType, text: str) -> str:
        self._dtypes[text] = dtype
        return text

    def _line(self, dtype: DType, text: str) -> str:
        name = self._known(dtype, f"t{len(self.lines)}")
        self.lines.append(f"    const {dtype} {name} = {text};")
        return name

    def number(self, value: float) -> str:
        """An f32 literal."""
        return self._known(F32, literal_of(F32, value))

    def integer(self, value: int) -> str:
        """An i32 literal."""
        return self._known(I32, literal_of(I32, value))

    def apply(self, kind: str, *operands: str) -> str:
        """One operation."""
        compares = kind in ("eq", "ne", "lt", "le", "gt", "ge")
        dtype = self._dtypes[operands[-1]]
        return self._line(BOOL if compares else dtype, expression(kind, dtype, operands))

    def bits(self, x: str) -> str:
        """The bits as i32."""
        return self._line(I32, f"poot_bits<i32>({x})")

    def real(self, i: str) -> str:
        """The f32 of bits."""
        return self._line(F32, f"poot_bits<f32>({i})")

    def converted(self, i: str) -> str:
        """Rounded to nearest."""
        return self._line(F32, f"(f32){i}")


def routine_text(name: str) -> str:
    """The function of a routine."""
    text = _Text()
    arguments = [text.argument(argument) for argument in ("a", "b")[: 2 if name == "pow" else 1]]
    result = ROUTINES[name](text, *arguments)
    head = f"POOT_INLINE f32 poot_{name}({', '.join(f'f32 {argument}' for argument in arguments)}) {{"
    return "\n".join([head, *text.lines, f"    return {result};", "}", ""])
