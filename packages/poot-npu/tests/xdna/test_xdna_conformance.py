"""The device passes the suite, with a kernel set that covers contractions in float32."""

import sys

import pytest

from poot_eval.conformance import DeviceConformance
from poot_executor.settings import DeviceSettings
from poot_npu.xdna.driver import XdnaDriver


@pytest.fixture(scope="module")
def device(tmp_path_factory, kernel_set, make_sysfs, fake_folder):
    folder = tmp_path_factory.mktemp("npu")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(fake_folder))
        patch.delitem(sys.modules, "pyxrt", raising=False)
        shapes = [(m, k, n) for m in range(1, 9) for k in (16, 32, 64) for n in (1, 2, 8, 16, 32, 64)]
        kernels = kernel_set(folder / "set", shapes)
        with XdnaDriver(make_sysfs(folder / "sys")).open(str(kernels), DeviceSettings()) as opened:
            yield opened
        sys.modules.pop("pyxrt", None)


class TestXdna(DeviceConformance):
    """Inherits every contract test; overrides none."""
