"""The original project's tool: embed, compare and search sentences (its `simcse/tool.py`).

Same methods, arguments and results. Different on purpose: any pooling that the model folder names,
an index on disk, one order of results whatever searches, errors that say what is wrong.

n: sentences, m: sentences of one batch, q: queries, D: width.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simcse import index_faiss
from simcse.config import Pooling
from simcse.encoder import SentenceEncoder
from simcse.errors import UsageError
from simcse.index import Hit, Searcher, SentenceIndex, is_index, unit_vectors
from simcse.index_ranking import check_search
from simcse.index_source import SentenceFile
from simcse.tokenizer import tokenizer_fingerprint

_MAX_LENGTH = 128
_BATCHES_AT_ONCE = 64
"""Batches of an index that are in memory together, sorted by length to save padding."""

Vectors = NDArray[np.float32]
Progress = Callable[[int], None]


class Sentences(Protocol):
    """A list, or a `SentenceFile`."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[str]: ...


class SimCSE:
    """A sentence encoder and an index of sentences.

    A loaded encoder in place of a name keeps its own pooling. `device` None is a GPU if there is
    one, `pooler` None what the model says. `num_cells` and `num_cells_in_search` are those of
    `build_index(..., faiss_fast=True)`.
    """

    def __init__(
        self,
        model_name_or_path: str | Path | SentenceEncoder,
        device: str | None = None,
        num_cells: int = 100,
        num_cells_in_search: int = 10,
        pooler: Pooling | None = None,
    ) -> None:
        _check_at_least(1, num_cells=num_cells, num_cells_in_search=num_cells_in_search)
        self._device = _usable(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if isinstance(model_name_or_path, SentenceEncoder):
            if pooler not in (None, model_name_or_path.pooling):
                raise UsageError(
                    f"pooler is {pooler!r}, but the encoder pools by "
                    f"{model_name_or_path.pooling}: name its folder to load it with another"
                )
            self._encoder = model_name_or_path
            self._name = str(self._encoder.backbone.name_or_path)
        else:
            self._encoder = SentenceEncoder.load(model_name_or_path, pooling=pooler)
            self._name = str(model_name_or_path)
        self._num_cells, self._num_cells_in_search = num_cells, num_cells_in_search
        self.index: SentenceIndex | None = None
        """What `search` searches; replaced by `build_index` and `open_index`."""
        self._searcher: Searcher | None = None

    def encode(
        self,
        sentence: str | list[str],
        device: str | None = None,
        return_numpy: bool = False,
        normalize_to_unit: bool = True,
        keepdim: bool = False,
        batch_size: int = 64,
        max_length: int = _MAX_LENGTH,
    ) -> Tensor | Vectors:
        """Vectors `[n, D]`, float32, on the CPU; `[D]` of one string, `[1, D]` with `keepdim`.

        Sentences are cut to `max_length` tokens, or to the model's own limit where that is lower.
        Raises `UsageError` for no sentences, `ModelError` when the encoder gives a vector without
        direction (NaN, infinite, zero).
        """
        vectors_nD = self._embed(
            sentence, device, batch_size, max_length, normalize=normalize_to_unit
        )
        vectors = vectors_nD[0] if isinstance(sentence, str) and not keepdim else vectors_nD
        return vectors if return_numpy else torch.from_numpy(vectors)

    def similarity(
        self,
        queries: str | list[str],
        keys: str | list[str] | Vectors,
        device: str | None = None,
    ) -> float | Vectors:
        """Cosines `[queries, keys]`; `[keys]` of one string, a number of one string and one key.

        Keys may be vectors of any length, `[n, D]` or `[D]`.
        """
        queries_qD = self._embed(queries, device)
        if isinstance(keys, np.ndarray):
            width = self._encoder.dimension
            if keys.shape[-1] != width:
                raise UsageError(f"keys have width {keys.shape[-1]}: {self._name} gives {width}")
            keys_nD, is_one_key = unit_vectors(np.atleast_2d(keys)), keys.ndim == 1
        else:
            keys_nD, is_one_key = self._embed(keys, device), isinstance(keys, str)
        cosines_qn: Vectors = queries_qD @ keys_nD.T
        if not isinstance(queries, str):
            return cosines_qn
        return float(cosines_qn[0, 0]) if is_one_key else cosines_qn[0]

    def build_index(
        self,
        sentences_or_file_path: str | Path | Sentences,
        use_faiss: bool | None = None,
        faiss_fast: bool = False,
        device: str | None = None,
        batch_size: int = 64,
        *,
        index_path: str | Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Embed sentences for `search`, in place of an earlier index.

        A string is the path of a text file, plain or gz, one sentence a line, which is streamed.
        Search is exact and reads the index from disk; with `use_faiss` it is exact in memory, with
        `faiss_fast` approximate in memory, unless `use_faiss` is False.

        The index lies in the folder `index_path`, or without one in a temporary folder. One that is
        there and holds these sentences by this model is used as it is. `progress` gets the number
        of sentences done. Raises `UsageError` for no sentences, a folder with another index or
        model, and faiss that is not installed; `DataError` for a damaged file.
        """
        sentences = _sentences(sentences_or_file_path)
        if _wants_faiss(use_faiss, faiss_fast):
            index_faiss.check_installed()
        if index_path is not None and is_index(Path(index_path)):
            index = self._open(index_path)
            if len(index) != len(sentences) or any(
                old != new for old, new in zip(index, sentences, strict=True)
            ):
                raise UsageError(
                    f"the index in {index_path} holds other sentences: name another folder, or "
                    "open it without sentences"
                )
        else:
            index = self._create(index_path)
            index.append(self._embed_in_batches(sentences, device, batch_size, progress))
        self._use(index, use_faiss, faiss_fast)

    def open_index(
        self, index_path: str | Path, use_faiss: bool | None = None, faiss_fast: bool = False
    ) -> None:
        """Search an index that `build_index` kept in a folder; arguments and errors as there."""
        if _wants_faiss(use_faiss, faiss_fast):
            index_faiss.check_installed()
        self._use(self._open(index_path), use_faiss, faiss_fast)

    def add_to_index(
        self,
        sentences_or_file_path: str | Path | Sentences,
        device: str | None = None,
        batch_size: int = 64,
        *,
        progress: Progress | None = None,
    ) -> None:
        """Embed more sentences into the index, all or none, also where it is kept in a folder."""
        if self.index is None:
            raise UsageError("there is no index to add to: call build_index first")
        sentences = _sentences(sentences_or_file_path)
        self.index.append(self._embed_in_batches(sentences, device, batch_size, progress))

    @overload
    def search(
        self, queries: str, device: str | None = None, threshold: float = 0.6, top_k: int = 5
    ) -> list[Hit]: ...

    @overload
    def search(
        self, queries: list[str], device: str | None = None, threshold: float = 0.6, top_k: int = 5
    ) -> list[list[Hit]]: ...

    def search(
        self,
        queries: str | list[str],
        device: str | None = None,
        threshold: float = 0.6,
        top_k: int = 5,
    ) -> list[Hit] | list[list[Hit]]:
        """Sentences with cosines of at least `threshold`, best first; of several queries a list.

        Sentences of equal cosine stand in the order in which they were indexed.
        """
        if self._searcher is None:
            raise UsageError("there is no index to search: call build_index first")
        check_search(top_k=top_k, threshold=threshold)
        hits = self._searcher.search(self._embed(queries, device), top_k=top_k, threshold=threshold)
        return hits[0] if isinstance(queries, str) else hits

    def _embed(
        self,
        sentences: str | list[str],
        device: str | None,
        batch_size: int = 64,
        max_length: int = _MAX_LENGTH,
        *,
        normalize: bool = True,
        progress: Progress | None = None,
    ) -> Vectors:
        sentences = [sentences] if isinstance(sentences, str) else sentences
        if len(sentences) == 0:
            raise UsageError("there are no sentences to embed: give at least one")
        _check_at_least(1, batch_size=batch_size)
        # Fewer leave no room for a word between [CLS] and [SEP].
        _check_at_least(3, max_length=max_length)
        self._encoder.to(self._device if device is None else _usable(device))
        vectors_nD = self._encoder.encode(
            sentences,
            batch_size=batch_size,
            max_length=min(max_length, self._encoder.model_limit),
            progress=progress,
        )
        unit_nD = unit_vectors(vectors_nD, sentences)
        return unit_nD if normalize else vectors_nD

    def _embed_in_batches(
        self, sentences: Sentences, device: str | None, batch_size: int, progress: Progress | None
    ) -> Iterator[tuple[list[str], Vectors]]:
        """All sentences and their vectors, in order, some at a time."""
        _check_at_least(1, batch_size=batch_size)
        rest, done = iter(sentences), 0
        while part := list(islice(rest, _BATCHES_AT_ONCE * batch_size)):
            show = partial(_advance, progress, done) if progress else None
            yield part, self._embed(part, device, batch_size, progress=show)
            done += len(part)

    def _create(self, path: str | Path | None) -> SentenceIndex:
        folder = Path(tempfile.mkdtemp(prefix="simcse-index-") if path is None else path)
        index = SentenceIndex.create(
            folder,
            model=self._label,
            fingerprint=_fingerprint(self._encoder),
            dimension=self._encoder.dimension,
        )
        if path is None:
            weakref.finalize(index, shutil.rmtree, folder, ignore_errors=True)
        return index

    def _open(self, path: str | Path) -> SentenceIndex:
        fingerprint = _fingerprint(self._encoder)
        return SentenceIndex.open(Path(path), model=self._label, fingerprint=fingerprint)

    @property
    def _label(self) -> str:
        return f"{self._name} with pooling {self._encoder.pooling}"

    def _use(self, index: SentenceIndex, use_faiss: bool | None, faiss_fast: bool) -> None:
        searcher: Searcher = index
        if _wants_faiss(use_faiss, faiss_fast):
            searcher = index_faiss.FaissSearch(
                index,
                num_cells=self._num_cells if faiss_fast else None,
                num_searched_cells=self._num_cells_in_search,
            )
        self.index, self._searcher = index, searcher


def _wants_faiss(use_faiss: bool | None, faiss_fast: bool) -> bool:
    return faiss_fast if use_faiss is None else use_faiss


def _sentences(given: str | Path | Sentences) -> Sentences:
    sentences = SentenceFile(given) if isinstance(given, str | Path) else given
    if len(sentences) == 0:
        raise UsageError("there are no sentences to index: give at least one")
    return sentences


def _advance(progress: Progress, before: int, done: int) -> None:
    progress(before + done)


def _fingerprint(encoder: SentenceEncoder) -> str:
    """sha256 of everything that decides the vectors of an index, in hexadecimal."""
    digest = hashlib.sha256(
        f"{encoder.pooling} {encoder.head_kind} {_MAX_LENGTH} "
        f"{tokenizer_fingerprint(encoder.tokenizer)}".encode()
    )
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _usable(device: str) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"device {device!r} cannot be used here ({reason}): name another, such as cpu"
        ) from None


def _check_at_least(least: int, **settings: int) -> None:
    for name, value in settings.items():
        if value < least:
            raise UsageError(f"{name} is {value}: give at least {least}")
