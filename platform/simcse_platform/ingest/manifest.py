"""The manifest of a prepared dataset: what the folder holds and how it was made."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from simcse.errors import DataError, UsageError
from simcse_platform.ingest.parquet import read_footer

MANIFEST = "manifest.json"
QUARANTINE = "quarantine.jsonl"
FORMAT_VERSION = 1
TOKENS_SUFFIX = "_tokens"
FOLLOWING = "following"
"""Column of a dataset in document order: sentences that follow directly, in the same document and
shard, up to `MAX_FOLLOWING`."""
MAX_FOLLOWING = 3


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Shard(_Record):
    """One parquet file."""

    path: str
    """Relative to the folder."""
    rows: int
    size: int
    """Bytes."""
    sha256: str


class Manifest(_Record):
    """Everything about a prepared dataset but its rows."""

    format_version: int = FORMAT_VERSION
    content_key: str
    """Identity of the input and of every setting that shaped the output."""
    rows: int
    columns: tuple[str, ...]
    """Text columns in the order anchor, positive, hard negatives; the ids of column `c` lie in
    `c_tokens`."""
    shards: tuple[Shard, ...]
    tokenizer_model: str
    """Folder or hub id, as it was named."""
    tokenizer_fingerprint: str
    max_length: int
    dropped: dict[str, int]
    """Rows left out although they could be read, by reason."""
    quarantined: dict[str, int]
    """Rows that could not be read, by reason; `quarantine.jsonl` lists them."""
    cut: int
    """Sentences that were longer than `max_length` tokens."""
    lengths: dict[str, dict[int, int]]
    """Sentences by number of tokens, for each column."""
    keep_order: bool = False
    """Whether rows are in document order, with a column `following`."""
    lexical_overlap: float | None = None
    """Mean F1 between the words of anchor and positive, from 0 to 1; None for one column."""


def is_prepared(folder: Path) -> bool:
    """Whether `folder` is a finished prepared dataset: the manifest is what is written last."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of `folder`. Raises `DataError` when it is no manifest of this version."""
    path = folder / MANIFEST
    try:
        tree = json.loads(path.read_bytes())
        if tree.get("format_version") != FORMAT_VERSION:
            raise DataError(
                f"{path} has format version {tree.get('format_version')}, this program reads "
                f"{FORMAT_VERSION}: prepare the dataset again"
            )
        return Manifest.model_validate(tree)
    except (ValidationError, AttributeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is no manifest of a prepared dataset: prepare it again") from None


def check_shards(folder: Path, manifest: Manifest) -> None:
    """Sizes and footers of all shards against the manifest. Raises `DataError` naming the file."""
    for shard in manifest.shards:
        path = folder / shard.path
        if not path.is_file():
            raise DataError(f"{path} is missing: prepare the dataset again")
        size = path.stat().st_size
        if size != shard.size:
            raise DataError(
                f"{path} has {size} bytes and the manifest says {shard.size}: prepare the dataset "
                "again"
            )
        rows = read_footer(path).num_rows
        if rows != shard.rows:
            raise DataError(
                f"{path} has {rows} rows and the manifest says {shard.rows}: prepare the dataset "
                "again"
            )


def check_compatible(folder: Path, manifest: Manifest, fingerprint: str, max_length: int) -> None:
    """The tokens against the run that wants them. Raises `UsageError` naming the difference."""
    if manifest.tokenizer_fingerprint != fingerprint:
        raise UsageError(
            f"{folder} was prepared with the tokenizer of {manifest.tokenizer_model}, which is not "
            "that of encoder.model: prepare it again with this model"
        )
    if manifest.max_length != max_length:
        raise UsageError(
            f"{folder} was prepared with max_length {manifest.max_length}, encoder.max_length is "
            f"{max_length}: prepare it again or set encoder.max_length={manifest.max_length}"
        )
