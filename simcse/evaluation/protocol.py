"""What everything scored has in common: sentences in, their vectors back, numbers out.

n: sentences, D: width.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simcse.errors import ModelError
from simcse.evaluation.significance import Sample
from simcse.evaluation.suite import SHORT_NAMES

Progress = Callable[[int], None]
"""Is told the number of sentences done so far."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Numbers of one evaluation set; correlations, ranks and accuracies x 100."""

    headline: float
    """The number that models are compared by, unrounded."""
    measure: str
    """What the headline is: "spearman", "mrr", "accuracy"."""
    numbers: Mapping[str, object]
    """All numbers of the set, ready for JSON."""
    sample: Sample | None = field(default=None, compare=False, repr=False)
    """Its items, which tell a difference from chance; None where there is nothing to win."""


class EmbeddingTable:
    """Vectors of distinct sentences, looked up by sentence.

    Raises `ModelError` when a vector holds NaN or infinity.
    """

    def __init__(self, sentences: Sequence[str], vectors_nD: NDArray[np.float32]) -> None:
        bad_n = ~np.isfinite(vectors_nD).all(axis=1)
        if bad_n.any():
            raise ModelError(
                f"the vectors of {int(bad_n.sum())} of {len(sentences)} sentences are not finite, "
                f"the first for {sentences[int(bad_n.argmax())]!r}: the encoder's "
                "weights may have diverged: go back to an earlier checkpoint, or mend the embedder"
            )
        self._row = {sentence: row for row, sentence in enumerate(sentences)}
        self._vectors_nD = vectors_nD

    @property
    def sentences(self) -> Sequence[str]:
        """All of them, in the order in which they were given."""
        return [*self._row]

    def __getitem__(self, sentences: Sequence[str]) -> NDArray[np.float32]:
        return self._vectors_nD[[self._row[sentence] for sentence in sentences]]


class EvaluationSet(Protocol):
    """A set that an encoder is scored on; reading it needs no encoder."""

    @property
    def name(self) -> str: ...

    @property
    def split(self) -> str:
        """The part scored: "dev", "test"."""

    def sentences(self) -> Sequence[str]:
        """Every sentence that `score` will look up, repeats included."""

    def score(self, vectors: EmbeddingTable) -> Scores: ...


class Embedder(Protocol):
    def encode(
        self, sentences: Sequence[str], *, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Vectors `[n, D]` in the order of the sentences."""


def distinct_sentences(sets: Iterable[EvaluationSet]) -> list[str]:
    """Each sentence of all sets once, shortest first, in the same order on every machine."""
    distinct = {sentence for evaluated in sets for sentence in evaluated.sentences()}
    return sorted(distinct, key=lambda sentence: (len(sentence), sentence))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores by the name of the set, and what they took."""

    scores: Mapping[str, Scores]
    seconds: Mapping[str, float]
    """For "embedding" all sentences, and by set for its score from their vectors."""
    vectors: EmbeddingTable | None = field(default=None, compare=False, repr=False)
    """Of every sentence of the sets, for whatever else is to be said of them; None without any."""


def evaluate(
    embedder: Embedder, sets: Sequence[EvaluationSet], *, progress: Progress | None = None
) -> Evaluation:
    """Scores of sets; a sentence is embedded once, whatever sets it is in."""
    sentences = distinct_sentences(sets)
    started = time.perf_counter()
    table = EmbeddingTable(sentences, embedder.encode(sentences, progress=progress))
    seconds = {"embedding": time.perf_counter() - started}
    scores: dict[str, Scores] = {}
    for evaluated in sets:
        started = time.perf_counter()
        scores[evaluated.name] = evaluated.score(table)
        seconds[evaluated.name] = time.perf_counter() - started
    return Evaluation(scores, seconds, table)


def metric_name(evaluated: EvaluationSet, scores: Scores) -> str:
    """Name of the headline for a tracker: split, set, measure, as in `dev_stsb_spearman`."""
    # A user's file may be called anything; trackers take letters, digits and underscores.
    name = SHORT_NAMES.get(evaluated.name, re.sub(r"\W+", "_", evaluated.name.lower()))
    return f"{evaluated.split}_{name}_{scores.measure}"
