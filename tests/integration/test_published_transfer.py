"""Transfer tasks of a public encoder against the original's numbers and scikit-learn's classifier.

The file of reference numbers is in the data folder, with the code that they come from.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from simcse.encoder import SentenceEncoder
from simcse.evaluation import EmbeddingTable, Mode, TransferSet, distinct_sentences, load_sets
from simcse.evaluation.transfer import L2

# The smallest: the others give the same classifiers nothing but minutes of embedding.
TASKS = ("CR",)
AGAINST_ORIGINAL = 1.0
AGAINST_SCIKIT_LEARN = 0.5

Tasks = Mapping[str, TransferSet]


def _tasks(data: Path, mode: Mode) -> Tasks:
    loaded = load_sets(TASKS, data=data, mode=mode)
    return {task.name: task for task in loaded.sets if isinstance(task, TransferSet)}


@pytest.fixture(scope="module")
def tasks(data_dir: Path) -> Tasks:
    return _tasks(data_dir, "test")


@pytest.fixture(scope="module")
def table(tasks: Tasks, minilm: Path) -> EmbeddingTable:
    sentences = distinct_sentences(tasks.values())
    threads = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    vectors = SentenceEncoder.load(minilm, pooling="avg").encode(sentences)
    torch.set_num_threads(threads)
    return EmbeddingTable(sentences, vectors)


@pytest.mark.parametrize("name", TASKS)
def test_accuracy_is_that_of_the_original(
    tasks: Tasks, table: EmbeddingTable, data_dir: Path, name: str
) -> None:
    reference: dict[str, Any] = json.loads(
        (data_dir / "validation" / "original-transfer.json").read_text()
    )
    want = reference["test"][name]
    numbers = tasks[name].score(table).numbers
    assert numbers["accuracy"] == pytest.approx(want["accuracy"], abs=AGAINST_ORIGINAL)


def test_accuracy_is_that_of_scikit_learn_over_the_same_folds(
    data_dir: Path, table: EmbeddingTable
) -> None:
    """In the fast mode, which has an eighth of the models and the coarser tolerance."""
    task = _tasks(data_dir, "fasttest")["CR"]
    features, labels = table[task.parts["all"].columns[0]], task.parts["all"].labels_n

    def deal(rows: np.ndarray) -> list[np.ndarray]:
        dealer = StratifiedKFold(n_splits=5, shuffle=True, random_state=1111)
        return [rows[held] for _, held in dealer.split(rows, labels[rows])]

    def accuracy(train: np.ndarray, held: np.ndarray, l2: float) -> float:
        model = LogisticRegression(C=1 / (len(train) * l2), solver="newton-cholesky")
        model.fit(features[train], labels[train])
        return 100 * float(model.score(features[held], labels[held]))

    tested = []
    for test in deal(np.arange(len(labels))):
        train = np.setdiff1d(np.arange(len(labels)), test)
        dev = [
            np.mean([accuracy(np.setdiff1d(train, held), held, l2) for held in deal(train)])
            for l2 in L2
        ]
        tested.append(accuracy(train, test, L2[int(np.argmax(np.round(dev, 2)))]))
    got = task.score(table).headline
    assert got == pytest.approx(np.mean(tested), abs=AGAINST_SCIKIT_LEARN)
