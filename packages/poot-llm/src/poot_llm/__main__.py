"""`python -m poot_llm` is `poot`."""

from __future__ import annotations

import sys

from poot_llm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
