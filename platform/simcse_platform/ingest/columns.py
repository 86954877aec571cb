"""The sentences of a window as token ids, one column a view.

R: rows of the window, T: tokens of R sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from simcse.config import ViewsConfig
from simcse.substitution import TokenSubstitution
from simcse.tokenizer import cached_tokenizer, tokenize
from simcse.tokens import RaggedTokens
from simcse.views import FOLLOWING, Synonyms, alter, load_synonyms
from simcse_platform.ingest import manifest, readers
from simcse_platform.ingest.plan import Range, Window
from simcse_platform.ingest.rows import read_rows
from simcse_platform.ingest.source import Corpus

_ALTERED_WORDS = ("word_deletion", "delete_one_word", "crop", "synonyms")


@dataclass(frozen=True, slots=True)
class Ragged:
    """Sentences of one column as in `RaggedTokens`."""

    ids_T: NDArray[np.int32]
    lengths_R: NDArray[np.int32]


def read_columns(
    corpus: Corpus,
    views: ViewsConfig,
    window: Window,
    permutation_R: NDArray[np.int64],
    row_ids_R: NDArray[np.int64],
    *,
    seed: int,
) -> list[Ragged]:
    """The window's sentences in training order: the corpus's columns, and the positive of a view.

    Raises as `read_rows` does.
    """
    suffix = manifest.TOKENS_SUFFIX if corpus.tokenised else ""
    wanted = [name + suffix for name in corpus.columns]
    if corpus.tokenised and views.positive in _ALTERED_WORDS:
        wanted += corpus.columns
    rows = read_rows(corpus, window.ranges, wanted).take(permutation_R)
    read = [rows[name + suffix].combine_chunks() for name in corpus.columns]
    if corpus.tokenised:
        columns = [Ragged(lists.flatten().to_numpy(), _lengths(lists)) for lists in read]
    else:
        columns = [_tokenise(corpus, texts.to_pylist()) for texts in read]
    match views.positive:
        case "same_sentence":
            return columns
        case "masked_language":
            positive = _substitute(corpus, columns[0], views, seed, window.epoch, row_ids_R)
        case "next_sentence" | "next_three_sentences":
            texts = list(_following(corpus, window.ranges, FOLLOWING[views.positive]))
            positive = _tokenise(corpus, [texts[place] for place in permutation_R])
        case _:
            positive = _tokenise(
                corpus,
                alter(
                    rows[corpus.columns[0]].to_pylist(),
                    views,
                    _synonyms(views.synonyms) if views.synonyms else None,
                    seed=seed,
                    epoch=window.epoch,
                    row_ids_R=row_ids_R,
                ),
            )
    return [*columns, positive]


def _following(corpus: Corpus, ranges: Sequence[Range], count: int) -> Iterator[str]:
    """Up to `count` sentences after each row of the ranges, as one text; the row's own after none.

    What follows a document's last sentence belongs to another.
    """
    longer = [
        Range(part.shard, part.start, min(part.stop + count, corpus.rows[part.shard]))
        for part in ranges
    ]
    rows = read_rows(corpus, longer, [corpus.columns[0], manifest.FOLLOWING])
    texts, following = (column.to_pylist() for column in rows.columns)
    first = 0
    for part, extended in zip(ranges, longer, strict=True):
        for place in range(first, first + len(part)):
            after = min(count, following[place])
            yield " ".join(texts[place + 1 : place + 1 + after]) if after else texts[place]
        first += len(extended)


def _substitute(
    corpus: Corpus,
    anchors: Ragged,
    views: ViewsConfig,
    seed: int,
    epoch: int,
    row_ids_R: NDArray[np.int64],
) -> Ragged:
    substituted = _substitution(corpus.tokenizer_model).substitute(
        RaggedTokens(
            torch.from_numpy(anchors.ids_T.astype(np.int64)),
            torch.from_numpy(anchors.lengths_R.astype(np.int64)),
        ),
        rate=views.rate,
        seed=seed,
        epoch=epoch,
        row_ids_n=torch.from_numpy(row_ids_R),
    )
    return Ragged(substituted.ids_T.numpy().astype(np.int32), anchors.lengths_R)


def _tokenise(corpus: Corpus, texts: Sequence[str]) -> Ragged:
    clean = [readers.collapse_spaces(text) for text in texts]
    ids = tokenize(cached_tokenizer(corpus.tokenizer_model), clean, corpus.max_length).ids
    lengths_R = np.fromiter(map(len, ids), np.int32, len(ids))
    ids_T = np.fromiter(chain.from_iterable(ids), np.int32, int(lengths_R.sum()))
    return Ragged(ids_T, lengths_R)


def _lengths(lists: pa.ListArray) -> NDArray[np.int32]:
    lengths: NDArray[np.int32] = pc.list_value_length(lists).to_numpy()
    return lengths


@cache
def _synonyms(source: str) -> Synonyms:
    return load_synonyms(source)


@cache
def _substitution(model: str) -> TokenSubstitution:
    return TokenSubstitution(model)
