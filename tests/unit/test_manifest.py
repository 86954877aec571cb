from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simcse.errors import DataError, UsageError
from simcse_platform.ingest.manifest import (
    Manifest,
    Shard,
    check_compatible,
    check_shards,
    is_prepared,
    read_manifest,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shard = tmp_path / "shard-00000.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "text_tokens": [[1, 2], [1, 3]]}), shard)
    manifest = Manifest(
        content_key="k",
        rows=2,
        columns=("text",),
        shards=(Shard(path=shard.name, rows=2, size=shard.stat().st_size, sha256="0"),),
        tokenizer_model="bert",
        tokenizer_fingerprint="f",
        max_length=32,
        dropped={"empty": 1},
        quarantined={},
        cut=0,
        lengths={"text": {2: 2}},
    )
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json())
    return tmp_path


def test_a_manifest_comes_back_as_it_was_written(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert is_prepared(folder)
    assert manifest.lengths == {"text": {2: 2}}
    check_shards(folder, manifest)
    check_compatible(folder, manifest, "f", 32)


def test_another_tokenizer_or_length_is_refused_by_name(folder: Path) -> None:
    manifest = read_manifest(folder)
    with pytest.raises(UsageError, match="was prepared with the tokenizer of bert"):
        check_compatible(folder, manifest, "other", 32)
    with pytest.raises(UsageError, match=r"with max_length 32, encoder\.max_length is 64"):
        check_compatible(folder, manifest, "f", 64)


def test_a_shard_that_is_missing_or_changed_is_named(folder: Path) -> None:
    manifest = read_manifest(folder)
    shard = folder / "shard-00000.parquet"
    good = shard.read_bytes()
    shard.write_bytes(good[:-10])
    with pytest.raises(DataError, match=r"shard-00000\.parquet has \d+ bytes and the manifest"):
        check_shards(folder, manifest)
    shard.write_bytes(good[:-10] + bytes(10))
    with pytest.raises(DataError, match=r"shard-00000\.parquet is no readable parquet file"):
        check_shards(folder, manifest)
    shard.write_bytes(good)
    more = manifest.model_copy(
        update={"shards": (manifest.shards[0].model_copy(update={"rows": 3}),)}
    )
    with pytest.raises(DataError, match=r"shard-00000\.parquet has 2 rows and the manifest"):
        check_shards(folder, more)
    shard.unlink()
    with pytest.raises(DataError, match=r"shard-00000\.parquet is missing"):
        check_shards(folder, manifest)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format_version": 1}'])
def test_a_broken_manifest_is_named(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=r"manifest\.json is no manifest of a prepared dataset"):
        read_manifest(folder)


def test_a_manifest_of_another_version_is_refused(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"format_version": 9}')
    with pytest.raises(DataError, match=r"manifest\.json has format version 9, .* reads 1"):
        read_manifest(folder)
