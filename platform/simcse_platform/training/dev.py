"""The dev score while training, computed by all ranks together.

N: distinct sentences of all sets, n: those of this rank, D: width.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from simcse import metrics
from simcse.encoder import SentenceEncoder
from simcse.evaluation import (
    EmbeddingTable,
    EvaluationSet,
    distinct_sentences,
    metric_name,
)
from simcse.evaluation.geometry import (
    GeometryNumbers,
    describe,
    graded_pairs,
    positive_alignment,
)
from simcse.gather import gather_rows
from simcse_platform.training.engine import Engine, rank_and_world


class DevScores(NamedTuple):
    """What a dev evaluation finds."""

    headlines: dict[str, float]
    """Each set's headline by metric name."""
    geometry: dict[str, float]
    """Uniformity of all dev sentences by metric name, and the alignment of the positive pairs of
    the first set with grades from 0 to 5, such as STS-B (paper section 7, figure 2): lower is
    better in both."""

    @property
    def mean(self) -> float:
        """The score by which the best model is chosen."""
        return fmean(self.headlines.values())

    @property
    def uniformity(self) -> float:
        return self.geometry["dev_uniformity"]


class DevEvaluation:
    """Scores an engine's encoder on dev sets; sentences are tokenised once, at the start.

    Each rank embeds every W-th sentence, all ranks in the same number of forwards, and rank 0
    scores the vectors of all.
    """

    def __init__(
        self,
        sets: Sequence[EvaluationSet],
        encoder: SentenceEncoder,
        *,
        sentences_per_forward: int = 512,
    ) -> None:
        self._sets = sets
        self._latest: EmbeddingTable | None = None
        self._rank, self._world = rank_and_world()
        self._sentences = distinct_sentences(sets)
        tokens = encoder.tokenize(self._sentences[self._rank :: self._world])
        largest_share = -(-len(self._sentences) // self._world)
        forwards = -(-largest_share // sentences_per_forward)
        index_n = torch.arange(len(tokens))
        self._chunks = [
            tokens.select(index_n[i * sentences_per_forward : (i + 1) * sentences_per_forward])
            for i in range(forwards)
        ]

    def __bool__(self) -> bool:
        return bool(self._sets)

    def score(self, engine: Engine) -> DevScores:
        """Scores of the encoder as it stands. Collective."""
        vectors_nD = torch.cat([engine.embed(chunk).float() for chunk in self._chunks])
        gathered_ND, _ = gather_rows(vectors_nD)
        found = [self._score(gathered_ND.cpu()) if self._rank == 0 else None]
        if self._world > 1:
            dist.broadcast_object_list(found)
        assert found[0] is not None
        return found[0]

    def geometry(self) -> GeometryNumbers | None:
        """How the vectors that were scored last lie, on rank 0; None without graded pairs."""
        pairs = graded_pairs(self._sets)
        return None if pairs is None or self._latest is None else describe(pairs, self._latest)

    def _score(self, gathered_ND: Tensor) -> DevScores:
        shares = [np.arange(rank, len(self._sentences), self._world) for rank in range(self._world)]
        vectors_ND = np.empty(gathered_ND.shape, dtype=np.float32)
        vectors_ND[np.concatenate(shares)] = gathered_ND.numpy()
        self._latest = table = EmbeddingTable(self._sentences, vectors_ND)
        found = [(evaluated, evaluated.score(table)) for evaluated in self._sets]
        geometry = {"dev_uniformity": metrics.uniformity(vectors_ND)}
        pairs = graded_pairs(self._sets)
        if pairs is not None and (alignment := positive_alignment(pairs, table)) is not None:
            geometry["dev_alignment"] = alignment
        return DevScores(
            {metric_name(evaluated, scores): scores.headline for evaluated, scores in found},
            geometry,
        )
