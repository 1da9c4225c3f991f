"""HIP kernels of poot-rocm-device on a processor: the same text, compiled by the machine's own clang."""
