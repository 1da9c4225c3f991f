"""Passes from graph to graph. Each keeps the oracle's result bit for bit (any NaN counts as any other), and returns the
graph itself where it changes nothing."""

from poot_executor.compile.passes.pipeline import MAX_ROUNDS, PASSES, Pass, run_passes

__all__ = ["MAX_ROUNDS", "PASSES", "Pass", "run_passes"]
