"""The device `ptx`: NVIDIA GPUs through the CUDA driver."""
