"""Addresses in a kernel: what its parameters give, computed once before anything else, and elements of buffers."""

from __future__ import annotations

from poot_executor.kernel.ir import Access, Kernel, Val
from poot_executor.kernel.known_indices import KnownIndices
from poot_executor.kernel.warpgroups import TILE
from poot_ptx_device.instructions import Instructions
from poot_ptx_device.operands import is_literal

STATIC_BYTES = 48 << 10
"""Shared memory that a kernel may declare."""
TILE_BYTES = 4 * TILE
SHARED_MEMORY = f".extern .shared .align {TILE_BYTES} .b8 shared_memory[];"
"""The one memory of a kernel that has more, declared before its entry."""


def dynamic_bytes(kernel: Kernel) -> int:
    """Shared memory that a kernel's launch gives it; 0 where it declares its own."""
    if sum(4 * array.count for array in kernel.shared) <= STATIC_BYTES:
        return 0
    return sum(-(-4 * array.count // TILE_BYTES) * TILE_BYTES for array in kernel.shared)


class Addresses(Instructions, KnownIndices):
    """Instructions of one kernel that know its parameters, and what its integers are known to lie in."""

    def __init__(self, kernel: Kernel) -> None:
        Instructions.__init__(self)
        KnownIndices.__init__(self, kernel)
        self.dynamic = dynamic_bytes(kernel) > 0
        self.multiplies = any(op.kind == "warpgroup_mma" for op in kernel.body.walk())
        self._head: list[str] = []
        self._known: dict[tuple[str, int, int], str] = {}
        self._addresses: list[dict[tuple[int, str], str]] = [{}]

    # What is computed once, before anything else

    def once(self, key: tuple[str, int, int], name: str, *instructions: str) -> str:
        """A register that the kernel's first instructions set: each text holds `{}` in the place of the register."""
        if key not in self._known:
            self._known[key] = self.fresh(name)
            self._head += [text.format(self._known[key]) + ";" for text in instructions]
        return self._known[key]

    def shared_place(self, array: int) -> tuple[str, int]:
        """The symbol that a shared array lies behind, and how many bytes."""
        if not self.dynamic:
            return f"s{array}", 0
        offset = 0
        for before in self.kernel.shared[:array]:
            offset += -(-4 * before.count // TILE_BYTES) * TILE_BYTES
        return "shared_memory", offset

    def shared_start(self, array: int) -> str:
        """The address of a shared array."""
        name, offset = self.shared_place(array)
        add = [f"add.u32 {{0}}, {{0}}, {offset}"] if offset else []
        return self.once(("shared", array, 0), "b32", f"mov.u32 {{0}}, {name}", *add)

    def shared_declarations(self) -> list[str]:
        """The arrays, each by itself; none where they lie in one memory, which is as large as the launch says."""
        if self.dynamic:
            return []
        align = TILE_BYTES if self.multiplies else 16
        return [
            f".shared .align {align} .b8 s{place}[{array.count * 4}];" for place, array in enumerate(self.kernel.shared)
        ]

    def address(self, place: int) -> str:
        """A buffer's address in global memory."""
        return self.once(("p", place, 0), "b64", f"ld.param.u64 {{0}}, [p{place}]", "cvta.to.global.u64 {0}, {0}")

    def count(self, place: int) -> str:
        """A buffer's element count."""
        return self.once(("n", place, 0), "b32", f"ld.param.u32 {{}}, [n{place}]")

    def end(self, place: int, width: int) -> str:
        """The count, cut to whole vectors."""
        count = self.count(place)
        return count if width == 1 else self.once(("end", place, width), "b32", f"and.b32 {{}}, {count}, {-width}")

    def last(self, place: int, width: int) -> str:
        """The index of the last whole vector. An allocation is never shorter than a vector."""
        end = self.end(place, width)
        atleast = end if width == 1 else self.once(("least", place, width), "b32", f"max.u32 {{}}, {end}, {width}")
        return self.once(("last", place, width), "b32", f"sub.u32 {{}}, {atleast}, {width}")

    def fault(self) -> str:
        """The address of the fault word."""
        return self.once(("fault", 0, 0), "b64", "ld.param.u64 {0}, [fault]", "cvta.to.global.u64 {0}, {0}")

    def element(self, place: int, index: Val) -> str:
        """The address of an element that needs no guard, in brackets: what is near a known address is an offset from
        it."""
        base, offset = self.near(index)
        if (constant := self.constant(base)) is not None:
            return f"[{self.address(place)}+{4 * (offset + constant)}]"
        register = self.scalar(base)
        if is_literal(register) or not -(1 << 20) < offset < 1 << 20:
            return self.computed(place, self.scalar(index))
        address = next((found[place, register] for found in self._addresses if (place, register) in found), None)
        if address is None:
            address = self.result("b64", f"mad.wide.u32 {{}}, {register}, 4, {self.address(place)}")
            self._addresses[-1][place, register] = address
        return f"[{address}+{4 * offset}]" if offset else f"[{address}]"

    def computed(self, place: int, index: str) -> str:
        """The address of an element, in brackets: indices are widened here."""
        if is_literal(index):
            return f"[{self.address(place)}+{4 * int(index)}]"
        return f"[{self.result('b64', f'mad.wide.u32 {{}}, {index}, 4, {self.address(place)}')}]"

    def reads_only(self, place: int) -> bool:
        """Whether no dispatch ever writes the buffer, so that loads may go past coherence."""
        return self.kernel.params[place].access is Access.READ
