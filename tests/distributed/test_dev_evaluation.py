"""The dev score is the same at any worker count and under any engine.

n: sentences, D: width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from simcse.evaluation import (
    EmbeddingTable,
    Pairs,
    Scores,
    STSSet,
    distinct_sentences,
    evaluate,
)
from simcse.metrics import uniformity
from simcse_platform.config import TrainRun
from simcse_platform.training.dev import DevEvaluation
from simcse_platform.training.engine import Engine
from simcse_platform.training.zero import ZeroEngine
from support.ranks import run_on_ranks
from support.training import ddp_engine, make_task

SENTENCES = (
    "a dog runs in the sun and a cat sleeps in the house near the river",
    "the man eats food",
    "red car",
    "birds sleep on a river while it rains",
    "rain",
    "the people of the world play games and music in the first days of the year",
    "the woman reads a book",
)


@dataclass(frozen=True)
class EveryNumber:
    """A set whose score moves with every number of every vector, and with their order."""

    texts: tuple[str, ...]
    name: str = "Numbers"
    split: str = "dev"

    def sentences(self) -> Sequence[str]:
        return self.texts

    def score(self, vectors: EmbeddingTable) -> Scores:
        vectors_nD = vectors[self.texts].astype(np.float64)
        weights_nD = np.random.default_rng(0).standard_normal(vectors_nD.shape)
        return Scores(float((vectors_nD * weights_nD).sum()), "dot", {})


def sets(sentences: int) -> list[EveryNumber | STSSet]:
    pairs = Pairs(SENTENCES[:-1], SENTENCES[1:], np.array([1.0, 5.0, 2.0, 0.0, 3.0, 4.0]))
    numbers = EveryNumber(SENTENCES[:sentences])
    return (
        [numbers] if sentences < len(SENTENCES) else [numbers, STSSet("S", "dev", {"all": pairs})]
    )


def settings(folder: Path, stage: int) -> TrainRun:
    return TrainRun.model_validate(
        {
            "encoder": {"model": str(folder), "dropout": 0.3, "length_buckets": 2},
            "scale": {"zero_stage": stage, "persistence_threshold": 0},
        }
    )


def build(run: TrainRun) -> Engine:
    engine = ddp_engine(task := make_task(run), run)
    if not run.scale.zero_stage:
        return engine
    return ZeroEngine(task, engine._optimizer, run.scale, max_gradient_norm=1.0)


def check_scores(rank: int, world: int, folder: Path) -> None:
    for stage in (0, 3):
        run = settings(folder, stage)
        encoder = make_task(run).encoder
        engine = build(run)
        # With seven sentences or four the shares are uneven, with two some ranks have none.
        for sentences in (7, 4, 2):
            want = evaluate(encoder, sets(sentences)).scores
            for per_forward in (512, 2, 1):
                dev = DevEvaluation(
                    sets(sentences), engine.task.encoder, sentences_per_forward=per_forward
                )
                found = dev.score(engine)
                scores = found.headlines
                case = (stage, sentences, per_forward)
                assert scores["dev_numbers_dot"] == pytest.approx(
                    want["Numbers"].headline, abs=1e-5
                ), case
                if sentences == len(SENTENCES):
                    assert scores["dev_s_spearman"] == pytest.approx(want["S"].headline), case
                assert found.mean == pytest.approx(np.mean(list(scores.values()))), case
                vectors_ND = encoder.encode(distinct_sentences(sets(sentences)))
                assert found.geometry["dev_uniformity"] == pytest.approx(
                    uniformity(vectors_ND), abs=1e-5
                ), case


@pytest.mark.parametrize("world", [1, 2, 3])
def test_scores_are_those_of_one_process_that_embeds_everything(
    world: int, tiny_encoder: Path, tmp_path: Path
) -> None:
    run_on_ranks(check_scores, world, tmp_path, tiny_encoder)


def test_without_sets_there_is_nothing_to_score(tiny_encoder: Path) -> None:
    encoder = make_task(settings(tiny_encoder, 0)).encoder
    assert not DevEvaluation([], encoder)
    assert DevEvaluation(sets(7), encoder)
