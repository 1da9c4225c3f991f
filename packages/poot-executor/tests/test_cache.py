"""The compile cache: hits by content, damaged entries, folders that fail, bounds, processes."""

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_executor.cache import (
    SUFFIX,
    CompileCache,
    cache_key,
    decode_entry,
    encode_entry,
    source_digest,
)
from poot_executor.compile.target import Caps, Target
from poot_executor.device import Compiled
from poot_executor.errors import Unsupported

TARGET = Target("wgpu", Caps(features=frozenset({"subgroup", "dot4"})))
CODE = Compiled("matvec", b"\x00fn main() {}\n", "main")
DIGEST = b"d" * 32


class Maker:
    """Compiles, and counts how often."""

    def __init__(self, compiled=CODE):
        self.compiled = compiled
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.compiled


def entries(folder):
    return sorted(folder.glob("*" + SUFFIX))


def counts(cache):
    s = cache.stats()
    return s.hits, s.misses, s.rejected, s.written


def test_an_entry_is_compiled_once_and_found_by_another_cache(tmp_path):
    make = Maker()
    folder = tmp_path / "not" / "there" / "yet"
    first = CompileCache(folder)
    assert first.get(TARGET, DIGEST, make) == CODE
    assert first.get(TARGET, DIGEST, make) == CODE
    assert CompileCache(folder).get(TARGET, DIGEST, make) == CODE
    assert make.calls == 1
    assert counts(first) == (1, 1, 0, 1)
    assert first.stats().warning is None
    assert [p.name for p in folder.iterdir()] == [entries(folder)[0].name]


def test_everything_that_the_code_depends_on_is_in_the_key(tmp_path):
    caps = TARGET.caps
    others = [
        ("kind", Target("ptx", caps), DIGEST, ""),
        ("digest", TARGET, b"e" * 32, ""),
        ("emitter", TARGET, DIGEST, "another"),
        ("features", Target("wgpu", replace(caps, features=frozenset({"dot4"}))), DIGEST, ""),
        ("limit", Target("wgpu", replace(caps, max_group_size=128)), DIGEST, ""),
        ("errors", Target("wgpu", replace(caps, errors={**caps.errors, "exp": 9.0})), DIGEST, ""),
        ("traps", Target("wgpu", replace(caps, traps=True)), DIGEST, ""),
    ]
    CompileCache(tmp_path).get(TARGET, DIGEST, Maker())
    for name, target, digest, emitter in others:
        make = Maker()
        CompileCache(tmp_path, emitter=emitter).get(target, digest, make)
        assert make.calls == 1, name
    assert len(entries(tmp_path)) == 1 + len(others)


def test_equal_caps_have_equal_keys_in_every_process():
    """Sets and mappings have no order of their own: hash seeds must not change the key."""
    script = textwrap.dedent(
        """
        from poot_executor.cache import cache_key
        from poot_executor.compile.target import Caps, Target
        features = frozenset({"subgroup", "dot4", "f16", "i8", "fragments"})
        print(cache_key(Target("wgpu", Caps(features=features)), b"d" * 32, "c").hex())
        """
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(keys) == 1 and len(keys.pop().strip()) == 64


def test_parts_of_a_key_do_not_run_into_each_other():
    caps = TARGET.caps
    keys = {
        cache_key(Target("ab", caps), b"c", "x"),
        cache_key(Target("a", caps), b"bc", "x"),
        cache_key(Target("ab", caps), b"", "xc"),
    }
    assert len(keys) == 3


def test_caps_without_a_canonical_text_are_refused():
    with pytest.raises(TypeError, match="no canonical text"):
        cache_key(Target("wgpu", replace(TARGET.caps, features=object())), DIGEST, "")


def test_no_folder_keeps_nothing():
    make = Maker()
    cache = CompileCache(None)
    for _ in range(2):
        assert cache.get(TARGET, DIGEST, make) == CODE
    assert make.calls == 2
    assert counts(cache) == (0, 2, 0, 0)


def test_what_make_raises_passes_and_nothing_is_kept(tmp_path):
    def refuse():
        raise Unsupported("operation erf", "no rule")

    cache = CompileCache(tmp_path)
    with pytest.raises(Unsupported, match="erf"):
        cache.get(TARGET, DIGEST, refuse)
    assert list(tmp_path.iterdir()) == []


DAMAGES = {
    "empty": lambda data: b"",
    "truncated head": lambda data: data[:20],
    "truncated tail": lambda data: data[:-1],
    "one byte more": lambda data: data + b"\0",
    "flipped bit": lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
    "foreign": lambda data: b"#!/bin/sh\nexit 1\n",
    "another version": lambda data: b"POOTKRN0" + data[8:],
    "another key": lambda data: encode_entry(b"k" * 32, CODE),
    "huge": lambda data: data + bytes(65 << 20),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_entry_is_ignored_and_rewritten(tmp_path, damage):
    CompileCache(tmp_path).get(TARGET, DIGEST, Maker())
    (path,) = entries(tmp_path)
    good = path.read_bytes()
    path.write_bytes(damage(good))
    make = Maker()
    cache = CompileCache(tmp_path)
    assert cache.get(TARGET, DIGEST, make) == CODE
    assert make.calls == 1
    assert cache.stats().rejected == 1 and cache.stats().warning is None
    assert path.read_bytes() == good


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_in_an_entrys_place_does_not_block(tmp_path):
    CompileCache(tmp_path).get(TARGET, DIGEST, Maker())
    (path,) = entries(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert CompileCache(tmp_path).get(TARGET, DIGEST, Maker()) == CODE
    assert path.is_file()


def test_a_folder_in_an_entrys_place_costs_the_entry_alone(tmp_path):
    CompileCache(tmp_path).get(TARGET, DIGEST, Maker())
    (path,) = entries(tmp_path)
    path.unlink()
    path.mkdir()
    cache = CompileCache(tmp_path)
    assert cache.get(TARGET, DIGEST, Maker()) == CODE
    assert "cannot be written" in cache.stats().warning
    assert cache.get(TARGET, b"e" * 32, Maker()) == CODE
    assert cache.stats().written == 1
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@given(st.binary(max_size=300))
def test_any_bytes_are_an_entry_or_none(data):
    assert decode_entry(DIGEST, data) is None


@given(st.data())
def test_any_change_of_an_entry_makes_it_none(data):
    good = encode_entry(DIGEST, CODE)
    assert decode_entry(DIGEST, good) == CODE
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, len(good)))
    changed = good[:start] + data.draw(st.binary(max_size=40)) + good[end:]
    if changed != good:
        assert decode_entry(DIGEST, changed) is None


@given(st.binary(max_size=120))
def test_a_payload_with_a_right_checksum_is_still_taken_apart_with_care(tail):
    """Whoever can write the folder can write a checksum: lengths and text are checked as well."""
    payload = DIGEST + tail
    data = b"POOTKRN1" + hashlib.sha256(payload).digest() + payload
    found = decode_entry(DIGEST, data)
    assert found is None or encode_entry(DIGEST, found) == data


@pytest.mark.parametrize(
    "tail",
    [
        b"\1\0\0\0k\2\0\0\0cc\5\0\0\0main",  # the last field ends beyond the file
        b"\1\0\0\0k\2\0\0\0cc\4\0\0\0main!",  # something follows it
        b"\1\0\0\0k\2\0\0\0cc",  # it is not there
        b"\1\0\0\0\xff\2\0\0\0cc\4\0\0\0main",  # the name is no text
        b"\xff\xff\xff\xffk",
    ],
)
def test_fields_that_do_not_fit_are_no_entry(tail):
    def with_checksum(payload):
        return b"POOTKRN1" + hashlib.sha256(payload).digest() + payload

    good = DIGEST + b"\1\0\0\0k\2\0\0\0cc\4\0\0\0main"
    assert decode_entry(DIGEST, with_checksum(good)) == Compiled("k", b"cc", "main")
    assert decode_entry(DIGEST, with_checksum(DIGEST + tail)) is None


@given(st.text(max_size=20), st.binary(max_size=50), st.text(max_size=20))
def test_entries_there_and_back(name, code, entry):
    compiled = Compiled(name, code, entry)
    assert decode_entry(DIGEST, encode_entry(DIGEST, compiled)) == compiled


def test_a_folder_that_cannot_be_made_never_fails_the_compile(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    cache = CompileCache(blocked / "kernels")
    make = Maker()
    for _ in range(2):
        assert cache.get(TARGET, DIGEST, make) == CODE
    assert make.calls == 2
    assert "cannot be" in cache.stats().warning and "kernels" in cache.stats().warning


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_never_fails_the_compile(tmp_path):
    tmp_path.chmod(0o500)
    cache = CompileCache(tmp_path)
    assert cache.get(TARGET, DIGEST, Maker()) == CODE
    assert "Permission denied" in cache.stats().warning
    tmp_path.chmod(0o700)


def test_a_full_disk_never_fails_the_compile_and_leaves_nothing(tmp_path):
    """The system itself refuses the write: a file size limit, in a process of its own."""
    resource = pytest.importorskip("resource", reason="this system has no resource limits")
    assert resource.RLIMIT_FSIZE is not None
    script = textwrap.dedent(
        """
        import json, resource, sys
        from pathlib import Path
        from poot_executor.cache import CompileCache
        from poot_executor.compile.target import Caps, Target
        from poot_executor.device import Compiled
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        cache = CompileCache(Path(sys.argv[1]))
        target = Target("wgpu", Caps())
        big = cache.get(target, b"d" * 32, lambda: Compiled("k", bytes(100_000), "main"))
        small = cache.get(target, b"e" * 32, lambda: Compiled("k", b"", "main"))
        s = cache.stats()
        print(json.dumps([len(big.code), len(small.code), s.written, s.warning]))
        """
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, text=True)
    big, small, written, warning = json.loads(done.stdout)
    assert (big, small, written) == (100_000, 0, 1)
    assert "File too large" in warning
    assert len(list(tmp_path.iterdir())) == 1


def test_the_oldest_entries_go_first_and_the_folder_stays_bounded(tmp_path):
    compiled = Compiled("k", bytes(10_000), "main")
    cache = CompileCache(tmp_path, max_bytes=55_000)
    for i in range(5):
        cache.get(TARGET, bytes([i]) * 32, Maker(compiled))
        os.utime(max(entries(tmp_path), key=os.path.getmtime), (1000 + i, 1000 + i))
    assert len(entries(tmp_path)) == 5
    # The oldest is read: it is not the oldest any more.
    assert cache.get(TARGET, bytes([0]) * 32, Maker()) == compiled
    for i in range(5, 30):
        cache.get(TARGET, bytes([i]) * 32, Maker(compiled))
        assert sum(p.stat().st_size for p in entries(tmp_path)) <= 55_000
        if i == 5:
            make = Maker(compiled)
            CompileCache(tmp_path).get(TARGET, bytes([0]) * 32, make)
            assert make.calls == 0
    assert cache.stats().evicted == 30 - len(entries(tmp_path))


def test_an_entry_larger_than_the_bound_is_not_kept(tmp_path):
    cache = CompileCache(tmp_path, max_bytes=1000)
    assert cache.get(TARGET, DIGEST, Maker(Compiled("k", bytes(2000), "main"))).name == "k"
    assert entries(tmp_path) == []


def test_what_a_dead_writer_left_behind_goes_and_foreign_files_stay(tmp_path):
    old, new, foreign = tmp_path / ".writing-old", tmp_path / ".writing-new", tmp_path / "notes"
    for path in (old, new, foreign):
        path.write_bytes(b"x")
    for path in (old, foreign):
        os.utime(path, (0, 0))
    CompileCache(tmp_path).get(TARGET, DIGEST, Maker())
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != SUFFIX) == [".writing-new", "notes"]


def test_processes_share_a_folder(tmp_path):
    """Four processes write, read and evict the same entries at the same time."""
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from poot_executor.cache import CompileCache
        from poot_executor.compile.target import Caps, Target
        from poot_executor.device import Compiled
        cache = CompileCache(Path(sys.argv[1]), max_bytes=300_000)
        for turn in range(200):
            i = turn * int(sys.argv[2]) % 50
            made = Compiled(f"k{i}", bytes([i]) * 10_000, "main")
            assert cache.get(Target("wgpu", Caps()), bytes([i]) * 32, lambda: made) == made
        s = cache.stats()
        assert s.rejected == 0 and s.warning is None, s
        """
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(step)], stderr=subprocess.PIPE)
        for step in (1, 3, 7, 9)
    ]
    complaints = [process.communicate(timeout=240)[1].decode() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0, 0], complaints
    assert [p for p in tmp_path.iterdir() if p.suffix != SUFFIX] == []


def test_the_source_digest_changes_with_the_sources_and_imports_nothing(tmp_path, monkeypatch):
    package = tmp_path / "some_emitter"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    first = source_digest("some_emitter")
    assert len(first) == 64 and source_digest("some_emitter") == first
    (package / "emit.py").write_text("x = 1\n")
    assert source_digest("some_emitter") != first
    assert source_digest("no_such_package_here") == ""
