"""Scores of transfer tasks against SentEval's protocol written out with scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold

from simcse.evaluation import EmbeddingTable, TransferSet, metric_name
from simcse.evaluation.transfer import L2, SETTINGS, ClassifierSettings, Examples

SETTINGS_OF_TESTS = ClassifierSettings(folds=3, tolerance=1e-10, precision=np.float64)
DIMENSION = 6


def _examples(count: int, *, classes: int = 2, columns: int = 1, seed: int = 0) -> Examples:
    """Sentences that say their class, mostly; `_table` knows it by its number."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, size=count)
    said = np.where(random.random((columns, count)) < 0.7, labels, random.integers(0, classes))
    return Examples(
        tuple(tuple(f"{c} {seed} {i}" for i, c in enumerate(column)) for column in said), labels
    )


def _table(*parts: Examples) -> EmbeddingTable:
    """A vector around the class that a sentence says."""
    sentences = [text for part in parts for column in part.columns for text in column]
    vectors = [
        np.random.default_rng(list(text.encode())).normal(size=DIMENSION)
        + np.random.default_rng(int(text[0])).normal(size=DIMENSION)
        for text in sentences
    ]
    return EmbeddingTable(sentences, np.array(vectors, dtype=np.float32))


def _fit(features: np.ndarray, labels: np.ndarray, l2: float) -> LogisticRegression:
    model = LogisticRegression(C=1 / (len(labels) * l2), solver="newton-cholesky", tol=1e-10)
    return model.fit(features.astype(np.float64), labels)


def _folds(labels: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    dealer = StratifiedKFold(n_splits=3, shuffle=True, random_state=1111)
    return list(dealer.split(np.zeros(len(labels)), labels))


def _cross_validated(features: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Best mean accuracy over folds, and the regulariser that has it."""
    accuracy = [
        np.mean(
            [
                _fit(features[train], labels[train], l2).score(features[held], labels[held])
                for train, held in _folds(labels)
            ]
        )
        for l2 in L2
    ]
    best = int(np.argmax(np.round(100 * np.array(accuracy), 2)))
    return 100 * accuracy[best], L2[best]


def test_settings_are_those_of_the_original() -> None:
    assert L2 == (1e-5, 1e-4, 1e-3, 1e-2)
    assert {mode: settings.folds for mode, settings in SETTINGS.items()} == {
        "test": 10,
        "fasttest": 5,
        "dev": 5,
    }


def test_without_parts_each_fold_is_tested_once_by_the_choice_of_inner_folds() -> None:
    examples = _examples(150)
    table = _table(examples)
    task = TransferSet("MR", "test", {"all": examples}, SETTINGS_OF_TESTS)
    features, labels = table[examples.columns[0]], examples.labels_n
    dev, test = [], []
    for train, held in _folds(labels):
        accuracy, l2 = _cross_validated(features[train], labels[train])
        model = _fit(features[train], labels[train], l2)
        dev.append(accuracy)
        test.append(100 * model.score(features[held], labels[held]))
    scores = task.score(table)
    assert scores.numbers == pytest.approx(
        {"examples": 150, "dev_accuracy": np.mean(dev), "accuracy": np.mean(test)}
    )
    assert scores.headline == scores.numbers["accuracy"]
    assert metric_name(task, scores) == "test_mr_accuracy"


def test_six_classes_are_chosen_by_folds_and_tested_on_the_test_part() -> None:
    train, test = _examples(240, classes=6), _examples(60, classes=6, seed=1)
    table = _table(train, test)
    task = TransferSet("TREC", "test", {"train": train, "test": test}, SETTINGS_OF_TESTS)
    features = table[train.columns[0]]
    dev_accuracy, l2 = _cross_validated(features, train.labels_n)
    model = _fit(features, train.labels_n, l2)
    assert task.score(table).numbers == pytest.approx(
        {
            "examples": 300,
            "dev_accuracy": dev_accuracy,
            "accuracy": 100 * model.score(table[test.columns[0]], test.labels_n),
        }
    )


def test_pairs_are_classified_by_difference_and_product_and_have_an_f1() -> None:
    train, test = _examples(150, columns=2), _examples(60, columns=2, seed=1)
    table = _table(train, test)
    task = TransferSet("MRPC", "test", {"train": train, "test": test}, SETTINGS_OF_TESTS)

    def features(part: Examples) -> np.ndarray:
        first, second = (table[column] for column in part.columns)
        return np.concatenate([np.abs(first - second), first * second], axis=1)

    dev_accuracy, l2 = _cross_validated(features(train), train.labels_n)
    predicted = _fit(features(train), train.labels_n, l2).predict(features(test))
    assert task.score(table).numbers == pytest.approx(
        {
            "examples": 210,
            "dev_accuracy": dev_accuracy,
            "accuracy": 100 * np.mean(predicted == test.labels_n),
            "f1": 100 * f1_score(test.labels_n, predicted),
        }
    )


def test_a_dev_part_chooses_without_folds() -> None:
    train, dev, test = (_examples(count, seed=seed) for seed, count in enumerate((120, 40, 50)))
    table = _table(train, dev, test)
    parts = {"train": train, "dev": dev, "test": test}
    task = TransferSet("SST2", "test", parts, SETTINGS_OF_TESTS)
    models = [_fit(table[train.columns[0]], train.labels_n, l2) for l2 in L2]
    accuracy = [model.score(table[dev.columns[0]], dev.labels_n) for model in models]
    best = models[int(np.argmax(accuracy))]
    assert task.score(table).numbers == pytest.approx(
        {
            "examples": 210,
            "dev_accuracy": 100 * max(accuracy),
            "accuracy": 100 * best.score(table[test.columns[0]], test.labels_n),
        }
    )


def test_the_split_dev_shows_what_the_choice_saw_and_reads_no_test_example() -> None:
    train, test = _examples(150), _examples(60, seed=1)
    whole = TransferSet("TREC", "test", {"train": train, "test": test}, SETTINGS_OF_TESTS)
    task = TransferSet("TREC", "dev", {"train": train}, SETTINGS_OF_TESTS)
    assert set(task.sentences()) == set(train.columns[0])
    scores = task.score(_table(train))
    dev_accuracy = whole.score(_table(train, test)).numbers["dev_accuracy"]
    assert scores.numbers == pytest.approx({"examples": 150, "dev_accuracy": dev_accuracy})
    assert scores.headline == scores.numbers["dev_accuracy"]
    assert metric_name(task, scores) == "dev_trec_accuracy"


def test_scores_are_the_same_on_every_run() -> None:
    examples = _examples(150)
    task = TransferSet("MR", "test", {"all": examples}, SETTINGS_OF_TESTS)
    assert task.score(_table(examples)) == task.score(_table(examples))


def test_every_sentence_of_a_task_is_asked_for() -> None:
    train, test = _examples(20, columns=2), _examples(10, columns=2, seed=1)
    task = TransferSet("MRPC", "test", {"train": train, "test": test}, SETTINGS_OF_TESTS)
    columns: Sequence[Sequence[str]] = [*train.columns, *test.columns]
    assert sorted(task.sentences()) == sorted(text for column in columns for text in column)
