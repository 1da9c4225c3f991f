"""The AMD backend: kernel IR to HIP text, and steps recorded as AQL packets of an HSA queue."""
