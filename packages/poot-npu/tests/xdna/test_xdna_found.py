"""What is there: sysfs, pyxrt, kernel sets; and the reason for whatever is not."""

import json
import sys
import types

import pytest

from poot_executor.device import Found, Missing
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import DeviceSettings
from poot_npu.xdna.driver import XdnaDriver
from poot_npu.xdna.hardware import look
from poot_npu.xdna.kernels import read_kernel_set

SHAPE = (2, 4, 3)


def reasons(driver):
    """What the probe says is missing; `open` must say the same."""
    entries = driver.probe()
    assert all(isinstance(entry, Missing) for entry in entries)
    with pytest.raises(DeviceNotFound) as refusal:
        driver.open("", DeviceSettings())
    assert str(refusal.value) == entries[0].reason
    return entries[0].reason


def test_no_npu(tmp_path, pyxrt, make_sysfs):
    assert "no AMD NPU" in reasons(XdnaDriver(tmp_path / "nowhere"))
    assert "no AMD NPU" in reasons(XdnaDriver(make_sysfs(tmp_path / "sys", npu=False, driver=False)))


def test_an_npu_without_its_driver(tmp_path, pyxrt, make_sysfs):
    reason = reasons(XdnaDriver(make_sysfs(tmp_path / "sys", driver=False)))
    assert "Strix" in reason and "amdxdna" in reason and "6.14" in reason


def test_no_pyxrt(sysfs, no_pyxrt):
    assert "pyxrt does not load (ModuleNotFoundError" in reasons(XdnaDriver(sysfs))


def test_a_pyxrt_from_before_npus(sysfs, monkeypatch):
    monkeypatch.setitem(
        sys.modules, "pyxrt", types.SimpleNamespace(**dict.fromkeys("device xclbin kernel bo run".split(), int))
    )
    assert "too old: it has no hw_context, no runlist" in reasons(XdnaDriver(sysfs))


def test_no_kernels(sysfs, pyxrt, home):
    reason = reasons(XdnaDriver(sysfs))
    assert "kernels that you supply" in reason and str(home / "xdna") in reason


def test_kernel_sets_in_the_cache_are_found_and_a_broken_one_says_why(sysfs, pyxrt, home, kernel_set):
    kernel_set(home / "xdna" / "small", [SHAPE, (1, 4, 3)])
    kernel_set(home / "xdna" / "torn", [SHAPE])
    (home / "xdna" / "torn" / "2x4x3.bin").write_bytes(b"12345")
    small, torn = XdnaDriver(sysfs).probe()
    assert small == Found("small", "AMD NPU, 2 contractions, experimental")
    assert "contractions[0]: instructions of 5 bytes are not words of 4" in torn.reason
    for selector in ("", "small", str(home / "xdna" / "small")):
        XdnaDriver(sysfs).open(selector, DeviceSettings()).close()
    with pytest.raises(DeviceNotFound, match=r"elsewhere.kernels\.json: No such file"):
        XdnaDriver(sysfs).open("elsewhere", DeviceSettings())


def test_auto_never_takes_it():
    assert XdnaDriver.automatic is False


def test_accelerators_of_other_drivers_are_none(tmp_path, make_sysfs):
    hardware = look(make_sysfs(tmp_path / "sys", npu=False, driver=False))
    assert (hardware.npus, hardware.nodes) == ((), ())
    assert look(make_sysfs(tmp_path / "other")).nodes == ("accel0",)


def test_an_xclbin_that_xrt_refuses_or_that_has_other_kernels(sysfs, pyxrt, home, kernel_set):
    folder = kernel_set(home / "xdna" / "bad", [SHAPE])
    (folder / "all.xclbin").write_bytes(b"something else")
    with pytest.raises(DeviceNotFound, match=r"did not open with .*Invalid xclbin"):
        XdnaDriver(sysfs).open("bad", DeviceSettings())
    kernel_set(folder, [SHAPE], kernel="OTHER")
    with pytest.raises(DeviceNotFound, match="has no kernel 'OTHER': it has DPU:dpu, MLIR_AIE:inst"):
        XdnaDriver(sysfs).open("bad", DeviceSettings())


# The manifest


def test_a_kernel_set_as_it_is_read(tmp_path, kernel_set):
    read = read_kernel_set(kernel_set(tmp_path / "set", [SHAPE], dtypes=("bf16", "f16", "f32"), count="bytes"))
    contraction = read.contractions[SHAPE]
    assert (read.name, contraction.kernel, contraction.shape) == ("set", "MLIR_AIE", SHAPE)
    dtypes = (contraction.activations, contraction.weights, contraction.results)
    assert [str(dtype) for dtype in dtypes] == ["bf16", "f16", "f32"]
    assert contraction.transposed and contraction.count == len(contraction.instructions) == 44


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tokens": 0}, "tokens must be a number of 1 or more, not 0"),
        ({"inner": True}, "inner must be a number"),
        ({"activations": "int8"}, "activations must be one of f32, f16, bf16, not 'int8'"),
        ({"weight_order": "rows"}, "weight_order must be one of outputs-inner, inner-outputs"),
        ({"arguments": ["weights", "results"]}, "arguments must be activations, weights, results in some order"),
        ({"count": "lines"}, "count must be one of words, bytes"),
        ({"kernel": ""}, "kernel must be a text"),
        ({"instructions": "none.bin"}, "there is no file 'none.bin'"),
        ({"instructions": "../all.bin"}, "'../all.bin' is outside of the folder"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, fields, words, kernel_set):
    folder = kernel_set(tmp_path / "set", [SHAPE], **fields)
    with pytest.raises(DeviceNotFound) as refusal:
        read_kernel_set(folder)
    assert f"kernels.json: contractions[0]: {words}" in str(refusal.value)


@pytest.mark.parametrize("field", ["kernel", "instructions", "tokens", "results", "weight_order"])
def test_a_missing_field_is_named(tmp_path, field, kernel_set):
    folder = kernel_set(tmp_path / "set", [SHAPE])
    manifest = json.loads((folder / "kernels.json").read_text())
    del manifest["contractions"][0][field]
    (folder / "kernels.json").write_text(json.dumps(manifest))
    with pytest.raises(DeviceNotFound, match=rf"contractions\[0\]: the field '{field}' is missing"):
        read_kernel_set(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "an object is needed, not list"),
        ('{"version": 2}', "version 2, this poot reads 1"),
        ('{"version": 1, "xclbin": "all.xclbin", "contractions": []}', "contractions must be a list with one item"),
        ('{"version": 1, "xclbin": "all.xclbin", "contractions": [3]}', "an object is needed, not int"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_manifest_that_is_none(tmp_path, text, words, kernel_set):
    folder = kernel_set(tmp_path / "set", [SHAPE])
    (folder / "kernels.json").write_text(text)
    with pytest.raises(DeviceNotFound, match=r"kernels\.json") as refusal:
        read_kernel_set(folder)
    assert words in str(refusal.value)


def test_a_shape_that_is_there_twice(tmp_path, kernel_set):
    with pytest.raises(DeviceNotFound, match=r"contractions\[1\]: the shape \[2, 4, 3\] is there twice"):
        read_kernel_set(kernel_set(tmp_path / "set", [SHAPE, SHAPE]))
