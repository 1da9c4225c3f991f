"""AMD's XDNA NPUs through XRT: experimental, with kernels that the user supplies. docs/xdna.md is its page."""
