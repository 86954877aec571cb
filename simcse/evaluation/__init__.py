"""Scoring of sentence encoders as the literature does it."""

from simcse.evaluation.loading import LoadedSets, load_sts
from simcse.evaluation.protocol import (
    Embedder,
    EmbeddingTable,
    EvaluationSet,
    Scores,
    distinct_sentences,
    evaluate,
    metric_name,
)
from simcse.evaluation.report import EvaluationReport, average, evaluation_report, render_table
from simcse.evaluation.retrieval import RetrievalSet
from simcse.evaluation.sts import Pairs, STSSet
from simcse.evaluation.suite import STS_SUITE, Split, resolve_tasks

__all__ = [
    "STS_SUITE",
    "Embedder",
    "EmbeddingTable",
    "EvaluationReport",
    "EvaluationSet",
    "LoadedSets",
    "Pairs",
    "RetrievalSet",
    "STSSet",
    "Scores",
    "Split",
    "average",
    "distinct_sentences",
    "evaluate",
    "evaluation_report",
    "load_sts",
    "metric_name",
    "render_table",
    "resolve_tasks",
]
