"""What compiling and following a constraint may cost. All of it is finite."""

from __future__ import annotations

from dataclasses import dataclass, fields

from poot_executor.errors import SettingsError


@dataclass(frozen=True, slots=True)
class GuideLimits:
    """Raises SettingsError naming a field that is not a positive number.

    - `seconds`: wall time that a caller waits for a constraint to compile.
    - `workers`: threads that compile constraints and compute masks; `pending`: constraints that may wait for one.
    - `kept`: compiled constraints that are kept for requests to come.
    - `depth`: levels of nesting of a JSON schema.
    - `grammar_symbols`: symbols of all productions; `build_fuel`: nodes of its expressions, about 50,000 a millisecond.
    - `states`: states of the lexer, 1 to 2 KB each.
    - `step_fuel`, `step_items`: lexer nodes and parser items of one mask, about 14,000 and 20,000 a millisecond.
    """

    seconds: float = 10.0
    workers: int = 2
    pending: int = 64
    kept: int = 64
    depth: int = 64
    grammar_symbols: int = 500_000
    build_fuel: int = 1_000_000
    states: int = 50_000
    step_fuel: int = 200_000
    step_items: int = 50_000

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            kinds = (int, float) if item.name == "seconds" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
                raise SettingsError(f"guide limit {item.name} is {value!r}: a positive number")
