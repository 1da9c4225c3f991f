"""An NPU of files: sysfs, a kernel set, and a pyxrt that is a module on the path."""

import json
import struct
import sys
from pathlib import Path

import pytest

FAKE = Path(__file__).parent / "fake"
OPERANDS = ("activations", "weights", "results")
CODES = {"f32": 0, "f16": 1, "bf16": 2}


def write_sysfs(root, *, npu=True, driver=True):
    """What Linux shows of an NPU, with and without its driver."""
    pci = root / "bus" / "pci" / "devices" / "0000:c4:00.1"
    pci.mkdir(parents=True)
    (pci / "vendor").write_text("0x1022\n" if npu else "0x8086\n")
    (pci / "device").write_text("0x17f0\n")
    other = root / "class" / "accel" / "accel1" / "device"
    other.mkdir(parents=True)
    (root / "bus" / "pci" / "drivers" / "intel_vpu").mkdir(parents=True)
    (other / "driver").symlink_to(root / "bus" / "pci" / "drivers" / "intel_vpu")
    if driver:
        (root / "bus" / "pci" / "drivers" / "amdxdna").mkdir()
        (pci / "driver").symlink_to(root / "bus" / "pci" / "drivers" / "amdxdna")
        node = root / "class" / "accel" / "accel0"
        node.mkdir()
        (node / "device").symlink_to(pci)
    return root


def write_kernel_set(folder, shapes, *, dtypes=("f32", "f32", "f32"), transposed=True, order=OPERANDS, **fields):
    """A kernel set for these contractions; `fields` replace fields of each contraction."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "all.xclbin").write_bytes(b"xclbin2\0DPU:dpu MLIR_AIE:inst")
    contractions = []
    for tokens, inner, outputs in shapes:
        name = f"{tokens}x{inner}x{outputs}.bin"
        codes = [CODES[dtype] for dtype in dtypes] + [OPERANDS.index(operand) for operand in order]
        words = [0x54534E49, tokens, inner, outputs, int(transposed), *codes]
        (folder / name).write_bytes(struct.pack(f"<{len(words)}I", *words))
        item = {"kernel": "MLIR_AIE", "instructions": name, "tokens": tokens, "inner": inner, "outputs": outputs}
        item |= dict(zip(OPERANDS, dtypes, strict=True))
        item |= {"weight_order": "outputs-inner" if transposed else "inner-outputs", "arguments": list(order)}
        contractions.append(item | fields)
    manifest = {"version": 1, "xclbin": "all.xclbin", "contractions": contractions}
    (folder / "kernels.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="session")
def make_sysfs():
    """`write_sysfs`."""
    return write_sysfs


@pytest.fixture(scope="session")
def kernel_set():
    """`write_kernel_set`."""
    return write_kernel_set


@pytest.fixture(scope="session")
def fake_folder():
    """Where the stand-in for pyxrt lies."""
    return FAKE


@pytest.fixture
def sysfs(tmp_path):
    """An NPU with its driver."""
    return write_sysfs(tmp_path / "sys")


@pytest.fixture
def pyxrt(monkeypatch):
    """The stand-in, imported afresh from its file."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.delitem(sys.modules, "pyxrt", raising=False)
    for name in ("FAKE_XRT_STATE", "FAKE_XRT_WAIT"):
        monkeypatch.delenv(name, raising=False)
    import pyxrt

    yield pyxrt
    sys.modules.pop("pyxrt", None)


@pytest.fixture
def no_pyxrt(monkeypatch):
    """A Python without XRT."""
    monkeypatch.setitem(sys.modules, "pyxrt", None)


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """A cache folder of the test's own."""
    monkeypatch.setenv("POOT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
