"""What a rule of the canonical form is."""

from __future__ import annotations

from collections.abc import Callable

from poot_executor.graph.graph import Value
from poot_executor.graph.rewrite import Call, Rewriter

Rule = Callable[[Rewriter, Call], Value | Call | None]
"""A value that is there already, a simpler call, or None where the rule does not fire. A rule may
emit what its call needs."""
