"""Names of features among the caps that the emitter asks for, besides those of the kernel operation table and of known
answers.
"""

from __future__ import annotations

DENORM_PRESERVE = "denorm_preserve"
ROUNDING_RTE = "rounding_rte"
"""Execution modes of VK_KHR_shader_float_controls for f32, beside `inf_nan_preserve`."""

FRAGMENT_BUFFERS = "fragment_buffers"
"""Matrix fragments are loaded from buffers and stored there: robust access covers that. Without it they come from
shared memory and go there, as in every kernel that the compiler makes.
"""

SIZE_CONTROL = "size_control"
"""A pipeline gets the subgroup width that it asks for. Of a device, not of its caps: there the width stands."""
