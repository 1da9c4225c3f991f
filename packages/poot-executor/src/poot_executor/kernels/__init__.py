"""The kernel library, one kernel a file, in the kernel language. `compile/lower` specializes them."""
