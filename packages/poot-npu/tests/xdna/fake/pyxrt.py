"""A stand-in for XRT's pyxrt, with its names and call shapes, whose NPU is numpy.

It is stricter than the real one: what XRT leaves undefined is an error here. Memory is not coherent: each buffer has a
host's side and a device's, and only `sync` copies between them. An instruction stream is words: a magic number, tokens,
inner, outputs, whether the weights are transposed, three dtypes, and the order of the three buffers.

The environment injects what a test asks for: FAKE_XRT_STATE is the state in which the next run ends,
FAKE_XRT_WAIT the way in which `runlist.wait` is bound ("duration" or "milliseconds").
"""

# ruff: noqa: N801, N816, PTH123, RUF012 (the names are those of pyxrt)
import enum
import os
import struct
from datetime import timedelta

import numpy as np

MAGIC = 0x54534E49
DTYPES = ("f32", "f16", "bf16")
OPERANDS = ("activations", "weights", "results")
STATES = "NEW QUEUED COMPLETED ERROR ABORT SUBMITTED TIMEOUT NORESPONSE"
ert_cmd_state = enum.IntEnum("ert_cmd_state", [f"ERT_CMD_STATE_{name}" for name in STATES.split()])
xclBOSyncDirection = enum.IntEnum(
    "xclBOSyncDirection", ["XCL_BO_SYNC_BO_TO_DEVICE", "XCL_BO_SYNC_BO_FROM_DEVICE"], start=0
)


class flags(enum.IntEnum):
    normal = 0
    cacheable = 1
    host_only = 3


def need(type_, value):
    """What pybind11 says of an argument of another type."""
    if not isinstance(value, type_) or isinstance(value, bool):
        raise TypeError(f"incompatible function arguments: {value!r} is no {type_}")


class uuid:
    def __init__(self, text):
        self.text = text


class xclbin:
    class xclbinkernel:
        def __init__(self, name):
            self.name = name

        def get_name(self):
            return self.name

    def __init__(self, path):
        need(str, path)
        with open(path, "rb") as file:
            content = file.read()
        if not content.startswith(b"xclbin2\0"):
            raise RuntimeError(f"Invalid xclbin: {path}")
        self.names = content[8:].decode().split()
        self.id = uuid(path)

    def get_kernels(self):
        return [self.xclbinkernel(name) for name in self.names]

    def get_uuid(self):
        return self.id


class device:
    def __init__(self, index):
        need(int, index)
        if index:
            raise RuntimeError(f"No such device with index '{index}'")
        self.registered = {}

    def register_xclbin(self, image):
        need(xclbin, image)
        self.registered[image.id] = image
        return image.id


class hw_context:
    def __init__(self, owner, id):
        need(device, owner)
        need(uuid, id)
        if id not in owner.registered:
            raise RuntimeError("xclbin is not registered")
        self.owner, self.image = owner, owner.registered[id]


class kernel:
    def __init__(self, context, name):
        need(hw_context, context)
        need(str, name)
        if name not in context.image.names:
            raise RuntimeError(f"No such kernel '{name}'")
        self.context, self.name = context, name

    def group_id(self, index):
        need(int, index)
        if not 0 <= index < 6:
            raise RuntimeError(f"no argument {index}")
        return 0x10000 + index


class bo:
    flags = flags
    normal, cacheable, host_only = flags
    alive = 0

    def __init__(self, owner, size, how, group):
        for type_, value in ((device, owner), (int, size), (flags, how), (int, group)):
            need(type_, value)
        if size < 1:
            raise RuntimeError("a buffer has a byte at least")
        self.host, self.there, self.group = bytearray(size), bytearray(size), group
        bo.alive += 1

    def __del__(self):
        bo.alive -= 1

    def write(self, data, seek):
        view = memoryview(data).cast("B")
        need(int, seek)
        if seek + len(view) > len(self.host):
            raise RuntimeError("a write beyond the buffer")
        self.host[seek : seek + len(view)] = view

    def read(self, size, skip):
        need(int, size)
        if skip + size > len(self.host):
            raise RuntimeError("a read beyond the buffer")
        return np.frombuffer(bytes(self.host[skip : skip + size]), np.int8)

    def sync(self, direction):
        need(xclBOSyncDirection, direction)
        if direction == xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE:
            self.there[:] = self.host
        else:
            self.host[:] = self.there

    def size(self):
        return len(self.host)


class run:
    def __init__(self, code):
        need(kernel, code)
        self.kernel, self.args, self.listed = code, {}, None
        self.now = ert_cmd_state.ERT_CMD_STATE_NEW

    def set_arg(self, index, value):
        need(int, index)
        need((bo, int), value)
        if isinstance(value, bo) and value.group != self.kernel.group_id(index):
            raise RuntimeError(f"argument {index} lies in group {value.group:#x}")
        self.args[index] = value

    def start(self):
        raise RuntimeError("a run that may be in a run list was started alone")

    def state(self):
        return self.now

    def compute(self):
        injected = os.environ.pop("FAKE_XRT_STATE", "")
        if injected == "LOST":
            raise RuntimeError("ioctl failed: No such device")
        if injected:
            self.now = ert_cmd_state[f"ERT_CMD_STATE_{injected}"]
            return
        code, *buffers = (self.args[i].there for i in (1, 3, 4, 5))
        words = struct.unpack(f"<{len(code) // 4}I", code)
        assert self.args[2] in (len(words), len(code))
        magic, tokens, inner, outputs, transposed, *rest = words
        assert magic == MAGIC, "the instructions never reached the NPU"
        dtypes = dict(zip(OPERANDS, (DTYPES[code] for code in rest[:3]), strict=True))
        place = {OPERANDS[code]: buffers[i] for i, code in enumerate(rest[3:6])}
        shapes = {
            "activations": (tokens, inner),
            "weights": (outputs, inner) if transposed else (inner, outputs),
            "results": (tokens, outputs),
        }
        x, w = (load(place[name], dtypes[name]).reshape(shapes[name]) for name in OPERANDS[:2])
        data = store(x @ (w.T if transposed else w), dtypes["results"])
        assert len(place["results"]) == len(data)
        place["results"][:] = data
        self.now = ert_cmd_state.ERT_CMD_STATE_COMPLETED


def load(data, dtype):
    """Values as float32."""
    if dtype == "bf16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, {"f32": np.float32, "f16": np.float16}[dtype]).astype(np.float32)


def store(x, dtype):
    """Values rounded to a dtype, ties to even."""
    x = np.ascontiguousarray(x, np.float32)
    if dtype == "bf16":
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()
    return x.astype({"f32": np.float32, "f16": np.float16}[dtype]).tobytes()


class runlist:
    executed = []
    """The number of runs of every list that was executed."""

    def __init__(self, context):
        need(hw_context, context)
        self.context, self.runs, self.pending = context, [], False

    def add(self, one):
        need(run, one)
        if one.listed is not None:
            raise RuntimeError("a run that is in a list already")
        if sorted(one.args) != list(range(6)) or one.args[0] != 3:
            raise RuntimeError(f"arguments {sorted(one.args)}, the first of them {one.args.get(0)}")
        taken = [id(other.args[i]) for other in self.runs for i in (3, 4, 5)]
        writes = [id(other.args[i]) for other in (*self.runs, one) for i in (3, 4, 5)]
        shared = {i for i in writes if writes.count(i) > 1}
        if shared & {id(one.args[3]), id(one.args[5])} & set(taken):
            raise RuntimeError("two runs of a list share what one of them writes")
        one.listed = self
        self.runs.append(one)

    def execute(self):
        if self.pending or not self.runs:
            raise RuntimeError("a run list that is empty or not done")
        self.pending = True
        for one in self.runs:
            one.now = ert_cmd_state.ERT_CMD_STATE_SUBMITTED
        runlist.executed.append(len(self.runs))

    def wait(self, *timeout):
        if not self.pending:
            raise RuntimeError("a run list that was not executed")
        milliseconds = os.environ.get("FAKE_XRT_WAIT") == "milliseconds"
        if timeout:
            need(int if milliseconds else (timedelta, float), timeout[0])
        for one in self.runs:
            one.compute()
            if one.now == ert_cmd_state.ERT_CMD_STATE_SUBMITTED:
                break
            if one.now not in (ert_cmd_state.ERT_CMD_STATE_COMPLETED, ert_cmd_state.ERT_CMD_STATE_TIMEOUT):
                raise RuntimeError(f"runlist failed execution: {one.now.name}")
        self.pending = False
        if timeout and not milliseconds:
            raise TypeError(
                "Unable to convert function return value to a Python type! Unregistered type : std::cv_status"
            )
        return ert_cmd_state.ERT_CMD_STATE_COMPLETED if timeout else None
