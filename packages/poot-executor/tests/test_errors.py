"""Errors: all under one root, with fields, and messages that say what to do next."""

import pytest

from poot_executor import errors


def every_error():
    return [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]


def test_every_error_is_under_the_root_and_documented():
    found = every_error()
    assert len(found) > 15
    for error in found:
        assert issubclass(error, errors.PootError)
        assert error.__doc__


def test_faults_of_a_device_are_device_errors():
    for name in ("OutOfMemory DeviceLost DeviceTimeout Poisoned KernelFault CheckFailed NeedsReset"
                 ).split():  # fmt: skip
        assert issubclass(getattr(errors, name), errors.DeviceError)
    for name in ("BindError", "CallOrder", "Unsupported", "DeviceNotFound"):
        assert not issubclass(getattr(errors, name), errors.DeviceError)


@pytest.mark.parametrize(
    ("error", "fields", "message"),
    [
        (
            errors.Unsupported("sort of f32[4]", "no such operation"),
            {"what": "sort of f32[4]", "missing": "no such operation"},
            "sort of f32[4]: no such operation",
        ),
        (
            errors.CompileLimit("dispatches", 10, 12),
            {"name": "dispatches", "limit": 10, "count": 12},
            "compile limit dispatches is 10, this program needs 12",
        ),
        (
            errors.OutOfMemory(5000, 100, 4096, "state"),
            {"asked": 5000, "free": 100, "limit": 4096},
            "out of device memory: asked for 5,000 bytes of state (free 100 bytes, limit 4,096 bytes)",
        ),
        (
            errors.OutOfMemory(5000, None, None),
            {"asked": 5000, "free": None, "limit": None},
            "out of device memory: asked for 5,000 bytes of memory",
        ),
        (
            errors.OutOfMemory(5, 0, None),
            {"free": 0},
            "out of device memory: asked for 5 bytes of memory (free 0 bytes)",
        ),
        (
            errors.DeviceTimeout("a replay", 2.5),
            {"seconds": 2.5},
            "a replay did not finish within 2.5 s; the device is poisoned: open it again in a new process",
        ),
        (
            errors.KernelFault("gather", 3),
            {"kernel": "gather", "code": 3},
            "kernel gather failed its check 3; reset the state before the next step",
        ),
        (
            errors.CheckFailed(1, 7),
            {"code": 1, "index": 7},
            "validation check 1 rejected the step at index 7; reset the state before the next step",
        ),
        (
            errors.DuplicateDevice("x", "one", "two"),
            {"name": "x", "first": "one", "second": "two"},
            "'x' is claimed by both one and two: uninstall one of them",
        ),
    ],
)
def test_fields_and_messages(error, fields, message):
    assert {name: getattr(error, name) for name in fields} == fields
    assert str(error) == message
