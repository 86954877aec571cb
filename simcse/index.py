"""An index of sentences on disk, which grows by appending and is searched exactly.

A folder of three files that only grow, and `index.json`, written last, which says how much of them
counts. What an interrupted build or append left behind does not count, and the next one overwrites
it; one process may write at a time. Neither building nor searching needs memory for more than one
batch or tile.

n: sentences, m: sentences of one batch, q: queries, D: width.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from simcse.config import Settings
from simcse.errors import DataError, ModelError, UsageError
from simcse.index_ranking import Float32, Positions, check_search, rank_tiles

_DESCRIPTION, _NEW_DESCRIPTION = "index.json", ".index.json"
_VECTORS, _TEXT, _ENDS = "vectors.f32", "sentences.txt", "ends.i64"
_REMAINS = {_NEW_DESCRIPTION, _VECTORS, _TEXT, _ENDS}
"""What a build that did not finish may leave behind."""
_TILE_BYTES = 1 << 24
_QUERIES_AT_ONCE = 256

Hit = tuple[str, float]
"""A sentence and its cosine with the query."""


class Searcher(Protocol):
    def search(
        self, queries_qD: NDArray[np.floating], *, top_k: int, threshold: float
    ) -> list[list[Hit]]:
        """Hits of each query, best first, equal scores in the order of insertion."""


class _File(Settings):
    """The part of a file that counts."""

    size: int = Field(default=0, ge=0)
    """Bytes."""
    crc32: int = 0


class _Description(Settings):
    """What `index.json` says of an index."""

    format: Literal[1] = 1
    """Version of the layout."""
    model: str
    """Name of the model whose vectors these are, for people."""
    fingerprint: str
    """Of everything that decides that model's vectors."""
    dimension: int = Field(ge=1)
    """Width of a vector."""
    sentences: int = Field(ge=0)
    vectors: _File
    """`vectors.f32`: float32 `[n, D]`, unit length."""
    text: _File
    """`sentences.txt`: each sentence in UTF-8 and a line feed."""
    ends: _File
    """`ends.i64`: int64 `[n]`, where in the text each sentence's line ends."""


class SentenceIndex:
    """Sentences and their unit vectors in a folder; made by `create` or `open`."""

    def __init__(self, folder: Path, description: _Description) -> None:
        self._folder = folder
        self._description = description

    @classmethod
    def create(cls, folder: Path, *, model: str, fingerprint: str, dimension: int) -> Self:
        """An empty index, which counts as an index from its first `append` on.

        `fingerprint` stands for the model, `model` is its name for people. Raises `UsageError` when
        `folder` holds anything but the remains of a build that did not finish.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            foreign = sorted({path.name for path in folder.iterdir()} - _REMAINS)
        except OSError as error:
            raise UsageError(
                f"the index folder {folder} cannot be made ({error.strerror}): name another folder"
            ) from None
        if foreign:
            raise UsageError(
                f"{folder} already holds {foreign[0]}: name another folder for the new index"
            )
        nothing = _File()
        return cls(
            folder,
            _Description(
                model=model,
                fingerprint=fingerprint,
                dimension=dimension,
                sentences=0,
                vectors=nothing,
                text=nothing,
                ends=nothing,
            ),
        )

    @classmethod
    def open(cls, folder: Path, *, model: str, fingerprint: str) -> Self:
        """The index in `folder`, all of it read once and its checksums compared.

        Raises `UsageError` when there is none or another model made it, `DataError` when a file of
        it is damaged.
        """
        if not is_index(folder):
            raise UsageError(f"there is no complete index in {folder}: build it, or check the path")
        path = folder / _DESCRIPTION
        try:
            description = _Description.model_validate_json(path.read_bytes())
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in fault["loc"]) or "it"
            raise DataError(
                f"{path} cannot be used ({field}: {fault['msg']}): remove the folder and build the "
                "index anew"
            ) from None
        if description.fingerprint != fingerprint:
            raise UsageError(
                f"the index in {folder} was made with another model ({description.model}) than "
                f"{model}, or with other weights: search it with that model, or build one in "
                "another folder"
            )
        count, width = description.sentences, description.dimension
        if (description.vectors.size, description.ends.size) != (4 * count * width, 8 * count):
            raise DataError(
                f"{path} contradicts itself: it counts {count} sentences of {width} numbers in "
                f"{description.vectors.size} bytes: remove the folder and build the index anew"
            )
        _check_file(folder / _VECTORS, description.vectors)
        _check_file(folder / _TEXT, description.text)
        _check_file(folder / _ENDS, description.ends)
        return cls(folder, description)

    @property
    def dimension(self) -> int:
        return self._description.dimension

    def __len__(self) -> int:
        return self._description.sentences

    def __iter__(self) -> Iterator[str]:
        """The sentences in order of insertion, read as they are needed."""
        return self._read(range(len(self)))

    def append(self, batches: Iterable[tuple[Sequence[str], NDArray[np.floating]]]) -> None:
        """Add batches of sentences and their vectors `[m, D]` of any length: all, or none.

        Nothing counts before the last batch is written. Raises `ModelError` for a vector that has
        no direction: NaN, infinite or zero.
        """
        old = self._description
        count = old.sentences
        with (
            _GrowingFile(self._folder / _VECTORS, old.vectors) as vectors_file,
            _GrowingFile(self._folder / _TEXT, old.text) as text_file,
            _GrowingFile(self._folder / _ENDS, old.ends) as ends_file,
        ):
            for sentences, vectors_mD in batches:
                if vectors_mD.shape != (len(sentences), self.dimension):
                    raise ValueError(
                        f"{len(sentences)} sentences came with vectors of shape "
                        f"{vectors_mD.shape}, and the index has vectors of {self.dimension} numbers"
                    )
                lines = [f"{sentence}\n".encode() for sentence in sentences]
                ends_m = text_file.size + np.cumsum([len(line) for line in lines], dtype=np.int64)
                vectors_file.write(unit_vectors(vectors_mD, sentences).tobytes())
                text_file.write(b"".join(lines))
                ends_file.write(ends_m.tobytes())
                count += len(lines)
        description = old.model_copy(
            update={
                "sentences": count,
                "vectors": vectors_file.written,
                "text": text_file.written,
                "ends": ends_file.written,
            }
        )
        new = self._folder / _NEW_DESCRIPTION
        new.write_text(description.model_dump_json(indent=1) + "\n", encoding="utf-8")
        new.replace(self._folder / _DESCRIPTION)
        self._description = description

    def search(
        self, queries_qD: NDArray[np.floating], *, top_k: int, threshold: float
    ) -> list[list[Hit]]:
        """Exact; cosines of at least `threshold` only. Raises `UsageError` for an empty index."""
        check_search(top_k=top_k, threshold=threshold)
        if len(self) == 0:
            raise UsageError("the index is empty: add sentences before a search")
        rank = partial(rank_tiles, top_k=min(top_k, len(self)), threshold=threshold)
        queries_qD = unit_vectors(queries_qD)
        parts = np.split(queries_qD, range(_QUERIES_AT_ONCE, len(queries_qD), _QUERIES_AT_ONCE))
        return [self.read_hits(hits) for part_qD in parts for hits in rank(part_qD, self.tiles())]

    def read_hits(self, hits: Sequence[tuple[int, float]]) -> list[Hit]:
        """The same hits with sentences in place of their positions."""
        sentences = self._read(position for position, _ in hits)
        return [(sentence, score) for sentence, (_, score) in zip(sentences, hits, strict=True)]

    def tiles(self, first: int = 0) -> Iterator[tuple[int, Float32]]:
        """First position and vectors of each tile, from position `first` on."""
        size = max(1, _TILE_BYTES // (4 * self.dimension))
        for start in range(first, len(self), size):
            # Mapped one by one: pages of a mapped file count as memory of this process.
            yield start, self._map_vectors(start, min(size, len(self) - start))

    def vectors(self, positions_c: Positions) -> Float32:
        """Vectors `[c, D]` of some sentences."""
        return np.asarray(self._map_vectors(0, len(self))[positions_c])

    def _map_vectors(self, start: int, count: int) -> Float32:
        row_bytes = 4 * self.dimension
        return np.memmap(
            self._folder / _VECTORS,
            np.float32,
            mode="r",
            offset=start * row_bytes,
            shape=(count, self.dimension),
        )

    def _read(self, positions: Iterable[int]) -> Iterator[str]:
        ends_n = np.memmap(self._folder / _ENDS, np.int64, mode="r", shape=(len(self),))
        with (self._folder / _TEXT).open("rb") as file:
            for position in positions:
                start = int(ends_n[position - 1]) if position else 0
                file.seek(start)
                yield file.read(int(ends_n[position]) - start - 1).decode()


def is_index(folder: Path) -> bool:
    """Whether a build in `folder` came to its end."""
    return (folder / _DESCRIPTION).is_file()


def unit_vectors(
    vectors_mD: NDArray[np.floating], sentences: Sequence[str] | None = None
) -> Float32:
    """The vectors at length 1. Raises `ModelError` naming the sentence of one without direction."""
    length_m = np.linalg.norm(vectors_mD.astype(np.float64), axis=1)
    bad_m = ~np.isfinite(length_m) | (length_m == 0)
    if bad_m.any():
        first = int(bad_m.argmax())
        whose = f"row {first}" if sentences is None else repr(sentences[first])
        raise ModelError(
            f"{int(bad_m.sum())} of {len(vectors_mD)} vectors are zero or not finite, the first "
            f"that of {whose}: where an encoder made them, its weights have diverged, so go back "
            "to an earlier checkpoint"
        )
    unit_mD: Float32 = (vectors_mD / length_m[:, None]).astype(np.float32)
    return unit_mD


class _GrowingFile:
    """A file that is written from the end of what counts; the rest of it is cut off."""

    def __init__(self, path: Path, old: _File) -> None:
        self._file = path.open("ab")
        self._file.truncate(old.size)
        self.size, self._crc32 = old.size, old.crc32

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)
        self._crc32 = zlib.crc32(data, self._crc32)

    @property
    def written(self) -> _File:
        return _File(size=self.size, crc32=self._crc32)


def _check_file(path: Path, expected: _File) -> None:
    anew = "remove the folder and build the index anew"
    size = path.stat().st_size if path.is_file() else 0
    if size < expected.size:
        raise DataError(f"{path} is cut off, {size} of {expected.size} bytes are there: {anew}")
    crc32, left = 0, expected.size
    with path.open("rb") as file:
        while left:
            block = file.read(min(left, 1 << 20))
            crc32, left = zlib.crc32(block, crc32), left - len(block)
    if crc32 != expected.crc32:
        raise DataError(f"{path} is damaged, its checksum is another: {anew}")
