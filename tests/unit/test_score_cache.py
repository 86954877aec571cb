"""Scores that are kept by model and data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simcse.evaluation import Pairs, Scores, STSSet
from simcse.evaluation.significance import ItemMean, RankCorrelation
from simcse_platform import provenance
from simcse_platform.score_cache import ScoreCache

SETS = [STSSet("mine", "test", {"all": Pairs(("a",), ("b",), np.zeros(1))})]
SCORES = {
    "mine": Scores(
        71.5, "spearman", {"pairs": 3}, RankCorrelation(np.array([0.1, 0.5]), np.array([1.0, 2.0]))
    ),
    "other": Scores(50.0, "mrr", {"queries": 2}, ItemMean(np.array([100.0, 0.0]))),
    "geometry": Scores(-2.0, "uniformity", {"pairs": 3}),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_bytes(b"1")
    return folder


def cache(tmp_path: Path, model: Path, **data_sha256: str) -> ScoreCache:
    return ScoreCache(tmp_path / "kept", model=model, sets=SETS, data_sha256=data_sha256)


def test_what_was_written_is_read_with_every_item(tmp_path: Path, model: Path) -> None:
    kept = cache(tmp_path, model, a="00")
    assert kept.read() is None
    kept.write(SCORES)
    found = cache(tmp_path, model, a="00").read()
    assert found == SCORES
    once = np.ones((1, 2), np.int64)
    for name in ("mine", "other"):
        sample, want = found[name].sample, SCORES[name].sample
        assert sample is not None
        assert want is not None
        assert sample.headlines(once) == want.headlines(once)
    assert found["geometry"].sample is None


def test_another_model_other_data_and_other_code_are_not_found(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache(tmp_path, model, a="00").write(SCORES)
    assert cache(tmp_path, model, a="01").read() is None
    with monkeypatch.context() as patched:
        patched.setattr(provenance, "source_hash", lambda: "other")
        assert cache(tmp_path, model, a="00").read() is None
    (model / "weights").write_bytes(b"2")
    assert cache(tmp_path, model, a="00").read() is None


def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, model: Path) -> None:
    kept = cache(tmp_path, model)
    kept.write(SCORES)
    (file,) = (tmp_path / "kept").iterdir()
    file.write_bytes(file.read_bytes()[:100])
    assert kept.read() is None
    file.write_bytes(b"")
    assert kept.read() is None
    with file.open("wb") as content:
        np.save(content, np.zeros(3))
    assert kept.read() is None
    kept.write(SCORES)
    assert kept.read() == SCORES
