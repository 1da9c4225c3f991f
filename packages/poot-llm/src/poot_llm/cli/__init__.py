"""The `poot` command: a file a subcommand, each imported only when it is the one that runs."""

from poot_llm.cli.main import main

__all__ = ["main"]
