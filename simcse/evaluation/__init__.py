"""Scoring of sentence encoders as the literature does it."""

from simcse.evaluation.loading import LoadedSets, load_sets
from simcse.evaluation.protocol import (
    Embedder,
    EmbeddingTable,
    Evaluation,
    EvaluationSet,
    Scores,
    distinct_sentences,
    evaluate,
    metric_name,
)
from simcse.evaluation.report import (
    EvaluationReport,
    average,
    evaluation_report,
    missing_lines,
    printed_average,
    render_markdown,
    render_tables,
)
from simcse.evaluation.retrieval import RetrievalSet
from simcse.evaluation.sts import Pairs, STSSet
from simcse.evaluation.suite import STS_SUITE, TRANSFER_SUITE, Mode, Split, resolve_tasks
from simcse.evaluation.transfer import TransferSet

__all__ = [
    "STS_SUITE",
    "TRANSFER_SUITE",
    "Embedder",
    "EmbeddingTable",
    "Evaluation",
    "EvaluationReport",
    "EvaluationSet",
    "LoadedSets",
    "Mode",
    "Pairs",
    "RetrievalSet",
    "STSSet",
    "Scores",
    "Split",
    "TransferSet",
    "average",
    "distinct_sentences",
    "evaluate",
    "evaluation_report",
    "load_sets",
    "metric_name",
    "missing_lines",
    "printed_average",
    "render_markdown",
    "render_tables",
    "resolve_tasks",
]
