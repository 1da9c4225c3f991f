"""The conformance suite that every device passes, importable: a device's whole test of the contract
is

```python
import pytest
from poot_eval.conformance import DeviceConformance, open_or_skip


@pytest.fixture(scope="module")
def device():
    with open_or_skip("wgpu") as opened:
        yield opened


class TestWgpu(DeviceConformance):
    \"\"\"Inherits every contract test; overrides none.\"\"\"
```

Inputs are drawn fresh; `--poot-seed` repeats a run. The pytest plug-in that has it comes with
poot-eval.
"""

import pytest

# Before they are imported, so that a failing assertion of the suite shows its values.
pytest.register_assert_rewrite("poot_eval.conformance")

from poot_eval.conformance.kernel_suite import KernelDeviceConformance  # noqa: E402
from poot_eval.conformance.opening import open_or_skip  # noqa: E402
from poot_eval.conformance.suite import DeviceConformance  # noqa: E402

__all__ = ["DeviceConformance", "KernelDeviceConformance", "open_or_skip"]
