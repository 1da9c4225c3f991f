"""Compiled models on disk: whole or not at all, whatever is in the folder and whoever writes it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from poot_eval.conformance import open_or_skip
from poot_eval.conformance.inputs import Recorder
from poot_eval.conformance.matching import assert_device_matches
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.settings import read_settings
from poot_npu.vpu.blobs import PAGE, BlobFolder

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
BLOBS = (b"first blob", b"x" * 5000, b"")


def kept(tmp_path):
    folder = BlobFolder(tmp_path)
    folder.write(KEY, b"text", BLOBS)
    return folder, tmp_path / f"{KEY.hex()}.vpu"


def test_what_is_kept_is_read(tmp_path):
    folder, path = kept(tmp_path)
    entry = folder.read(KEY)
    assert entry.text == b"text" and tuple(blob.tobytes() for blob in entry.blobs) == BLOBS
    assert all(blob.ctypes.data % PAGE == 0 for blob in entry.blobs[:2])
    entry.settle()
    assert entry.blobs[1].tobytes() == BLOBS[1]
    assert folder.read(OTHER) is None and [p.name for p in tmp_path.iterdir()] == [path.name]
    assert (folder.rejected, folder.warning) == (0, None)


def test_what_is_held_survives_the_file_and_touches_it_no_more(tmp_path, rng):
    folder, path = BlobFolder(tmp_path), tmp_path / f"{KEY.hex()}.vpu"
    blob = rng.bytes(600 * PAGE + 10)
    folder.write(KEY, b"text", [b"other", blob])
    entry = folder.read(KEY)
    entry.hold(1, PAGE - 1, PAGE + 1)
    entry.hold(1, 600 * PAGE, 600 * PAGE + 10)
    entry.settle()
    with path.open("r+b") as file:  # as no writer of poot does: it shows what is read from where
        file.write(bytes(path.stat().st_size))
    held = entry.blobs[1].tobytes()
    assert held[: 2 * PAGE] == blob[: 2 * PAGE] and held[600 * PAGE :] == blob[600 * PAGE :]
    assert not any(held[2 * PAGE : 600 * PAGE])


def test_a_damaged_entry_is_none(tmp_path, rng):
    folder, path = kept(tmp_path)
    whole = path.read_bytes()
    damaged = [whole[:n] for n in (0, 1, 50, 111, len(whole) - 1)]
    for place in rng.choice(len(whole), 40, replace=False):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(0, 8))
        damaged.append(bytes(changed))
    for content in [*damaged, b"something else entirely" * 9, whole + b"more"]:
        path.write_bytes(content)
        assert folder.read(KEY) is None
    assert folder.rejected == len(damaged) + 1  # an empty file is not mapped at all


def test_an_entry_under_another_name_is_none(tmp_path):
    folder, path = kept(tmp_path)
    path.rename(tmp_path / f"{OTHER.hex()}.vpu")
    assert folder.read(OTHER) is None and folder.rejected == 1


def test_a_folder_that_cannot_be_written_costs_the_entry(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    folder = BlobFolder(tmp_path / "file" / "below")
    folder.write(KEY, b"text", BLOBS)
    assert folder.warning and folder.read(KEY) is None
    nowhere = BlobFolder(None)
    nowhere.write(KEY, b"text", BLOBS)
    assert not nowhere and nowhere.read(KEY) is None


def test_the_oldest_go_first(tmp_path):
    folder = BlobFolder(tmp_path, max_bytes=20_000)
    keys = [bytes([n]) * 32 for n in range(5)]
    for n, key in enumerate(keys):
        folder.write(key, b"", [bytes(6000)])
        path = tmp_path / f"{key.hex()}.vpu"
        os.utime(path, (1000 + n, 1000 + n))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"{key.hex()}.vpu" for key in keys[-len(left) :]} and 1 <= len(left) <= 2


def graph(rng):
    g = Recorder("kept", rng)
    table = g.weight(FORMATS["q8_0"], 40, 64)
    x = f.embedding(table, FORMATS["q8_0"], g.indices((3,), 40))
    g.output(f.linear(x, g.weight(FORMATS["q4_1"], 33, 64), FORMATS["q4_1"]))
    return g


def keeping(tmp_path):
    """A device that keeps models of any size."""
    device = open_or_skip("vpu:cpu", read_settings({"POOT_HOME": str(tmp_path)}))
    device._compiler.least_bytes = 0
    return device


def test_a_model_is_compiled_once_and_then_found(tmp_path, rng):
    """Also where its file is damaged or foreign in between: then it is made again, and is right."""
    g = graph(rng)
    built = g.builder.build()
    files = tmp_path / "kernels" / "vpu"
    for turn in range(4):
        with keeping(tmp_path) as device:
            assert_device_matches(device, built, g.given())
            assert device._compiler.built == (0 if turn == 1 else 1)
        (path,) = files.iterdir()
        if turn == 1:
            path.write_bytes(path.read_bytes()[:-1])
        if turn == 2:
            # Whole and of this key, and no model: what another version could have left.
            BlobFolder(files).write(bytes.fromhex(path.stem), b"[]", [b"no model"])


def test_small_models_are_not_kept(tmp_path, rng):
    g = graph(rng)
    with open_or_skip("vpu:cpu", read_settings({"POOT_HOME": str(tmp_path)})) as device:
        for turn in range(2):
            assert_device_matches(device, g.builder.build(), g.given())
            assert device._compiler.built == turn + 1
    assert not (tmp_path / "kernels" / "vpu").exists()


def test_other_weights_are_another_entry(tmp_path, rng):
    g = graph(rng)
    built = g.builder.build()
    with keeping(tmp_path) as device:
        assert_device_matches(device, built, g.given())
        other = graph(rng)
        for key, value in g.given().items():
            if value.dtype != np.uint8:
                other.inputs[key] = value
        assert_device_matches(device, built, {**g.given(), **{k: other.given()[k] for k in g.given()}})
    assert len(list((tmp_path / "kernels" / "vpu").iterdir())) == 2


CHILD = """
import sys, numpy as np
sys.path.insert(0, sys.argv[2])
from test_blobs import graph, keeping
from pathlib import Path
from poot_eval.conformance.matching import assert_device_matches
g = graph(np.random.default_rng(int(sys.argv[3])))
with keeping(Path(sys.argv[1])) as device:
    assert_device_matches(device, g.builder.build(), g.given())
print("right")
"""


@pytest.mark.slow
def test_two_processes_may_start_at_once(tmp_path, rng):
    seed = str(int(rng.integers(0, 1 << 30)))
    command = [sys.executable, "-c", CHILD, str(tmp_path), str(Path(__file__).parent), seed]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for child in children:
        out, err = child.communicate(timeout=120)
        assert child.returncode == 0 and out.strip().endswith("right"), err
    (path,) = (tmp_path / "kernels" / "vpu").iterdir()
    assert BlobFolder(path.parent).read(bytes.fromhex(path.stem)) is not None
