"""`poot tune`: what it measures is kept, explained and run with."""

import json


def test_what_was_measured_is_kept_and_used(poot, model, tmp_path, monkeypatch):
    monkeypatch.setenv("POOT_HOME", str(tmp_path / "home"))
    given = ("--device", "reference:plain", "--capacity", "32", "--chunk", "1")
    done = poot("tune", model, *given, "--depth", "4", "--only", "norm")
    assert done.status == 0, done.err
    heading, *lines = done.out.splitlines()
    assert heading == "1 rows x 1 tokens x 32 of 32 positions, 4 filled"
    kinds = {line.split()[0] for line in lines}
    assert kinds == {"norm"}
    assert not any("wrong" in line for line in lines)
    (path,) = (tmp_path / "home" / "tuned").iterdir()
    assert str(path) in done.err.replace("\n", "")
    kept = json.loads(path.read_text())["picks"]
    explained = poot("explain", model, "--target", "reference:plain", "--capacity", "32")
    assert explained.status == 0
    # The interpreter's time decides, so either may have won.
    assert ("measured: a norm of its own is faster" in " ".join(explained.out.split())) == bool(kept)
    answer = ("generate", model, "one", "--max-tokens", "1", *given)
    tuned = poot(*answer)
    path.unlink()
    plain = poot(*answer)
    assert (tuned.status, tuned.out) == (0, plain.out)


def test_whole_graph_devices_and_depths_beyond_the_capacity_are_refused(poot, model):
    assert "schedules them itself" in poot("tune", model, "--device", "toy", "--capacity", "32").refusal
    assert "--depth 40" in poot("tune", model, "--device", "toy", "--capacity", "32", "--depth", "40").refusal
