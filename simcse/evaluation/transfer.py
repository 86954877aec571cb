"""Transfer tasks: how well a linear classifier on frozen vectors does (SentEval's protocol).

n: examples, t: test examples, D: features, R: regularisers, F: models for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import Literal, NamedTuple, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score  # type: ignore[import-untyped]
from sklearn.model_selection import StratifiedKFold  # type: ignore[import-untyped]

from simcse.evaluation.classifier import Features, Labels, fit
from simcse.evaluation.protocol import EmbeddingTable, Scores
from simcse.evaluation.significance import ItemMean
from simcse.evaluation.suite import Mode, Split

L2 = (1e-5, 1e-4, 1e-3, 1e-2)
"""Regularisers to choose from, as in SentEval."""
SEED = 1111
"""Of the shuffle before folds are dealt, as in SentEval."""

Part = Literal["all", "train", "dev", "test"]
Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class ClassifierSettings:
    folds: int
    tolerance: float
    """Nats that the objective must promise to fall by for a classifier to go on."""
    precision: type[np.float32] | type[np.float64]


# Single precision cannot promise less than about 1e-8; in double the numbers are the same on every
# machine.
_FAST = ClassifierSettings(folds=5, tolerance=1e-4, precision=np.float32)
SETTINGS: Mapping[Mode, ClassifierSettings] = {
    "test": ClassifierSettings(folds=10, tolerance=1e-8, precision=np.float64),
    "fasttest": _FAST,
    "dev": _FAST,
}
"""Folds as in the original, whose fast modes also train less."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Labelled sentences, or labelled pairs of them."""

    columns: Sequence[Sequence[str]]
    """The sentences; of pairs, the first ones and the second ones."""
    labels_n: Labels

    def features(self, vectors: EmbeddingTable) -> NDArray[np.float32]:
        """`[n, D]`: the vector of a sentence, or |u - v| and u * v of a pair."""
        if len(self.columns) == 1:
            return vectors[self.columns[0]]
        first_nD, second_nD = (vectors[column] for column in self.columns)
        return np.hstack([np.abs(first_nD - second_nD), first_nD * second_nD])


class TransferNumbers(TypedDict):
    """Per cent."""

    examples: int
    dev_accuracy: float
    """Of the regularisers chosen, where they are chosen."""
    accuracy: NotRequired[float]
    """On test examples; not in the split "dev"."""
    f1: NotRequired[float]
    """On test pairs."""


@dataclass(frozen=True, slots=True)
class TransferSet:
    """One transfer task.

    Examples in one part, "all", are cut into folds, each of which is the test set once. Training
    examples without a part "dev" are cut into folds to choose the regulariser on.
    """

    name: str
    split: Split
    parts: Mapping[Part, Examples]
    """The part "test" is left out in the split "dev"."""
    settings: ClassifierSettings

    def sentences(self) -> Sequence[str]:
        return [text for part in self.parts.values() for column in part.columns for text in column]

    def score(self, vectors: EmbeddingTable) -> Scores:
        """Accuracy: on test examples or, in the split "dev", where the regulariser is chosen."""
        features_nD: Features = np.concatenate(
            [part.features(vectors) for part in self.parts.values()], dtype=self.settings.precision
        )
        labels_n = np.concatenate([part.labels_n for part in self.parts.values()])
        trials = self._trials(labels_n)
        outcomes = _run(trials, features_nD, labels_n, tolerance=self.settings.tolerance)
        dev_accuracy = float(np.mean([outcome.dev_accuracy for outcome in outcomes]))
        numbers = TransferNumbers(examples=len(labels_n), dev_accuracy=dev_accuracy)
        if self.split == "dev":
            return Scores(headline=dev_accuracy, measure="accuracy", numbers=numbers)
        gold = [labels_n[trial.test_t] for trial in trials]
        found = [outcome.predicted_t for outcome in outcomes]
        right = [100.0 * (g == f) for g, f in zip(gold, found, strict=True)]
        accuracy = float(np.mean([right_t.mean() for right_t in right]))
        numbers["accuracy"] = accuracy
        if "test" in self.parts and len(self.parts["test"].columns) == 2:
            numbers["f1"] = 100 * float(f1_score(gold[0], found[0]))
        # Each fold counts the same, though some have an example more.
        tested = sum(len(right_t) for right_t in right) / len(right)
        sample = ItemMean(np.concatenate([right_t * (tested / len(right_t)) for right_t in right]))
        return Scores(headline=accuracy, measure="accuracy", numbers=numbers, sample=sample)

    def _trials(self, labels_n: Labels) -> list[_Trial]:
        ends = accumulate((len(part.labels_n) for part in self.parts.values()), initial=0)
        rows = {
            part: np.arange(*edges) for part, edges in zip(self.parts, pairwise(ends), strict=True)
        }
        if "all" in rows:
            tests = self._folds(rows["all"], labels_n)
            trains = [np.setdiff1d(rows["all"], test_t) for test_t in tests]
            return [
                _Trial(train_n, self._folds(train_n, labels_n), test_t)
                for train_n, test_t in zip(trains, tests, strict=True)
            ]
        train_n = rows["train"]
        held_out = [rows["dev"]] if "dev" in rows else self._folds(train_n, labels_n)
        return [_Trial(train_n, held_out, rows.get("test", np.arange(0)))]

    def _folds(self, rows_n: Rows, labels_n: Labels) -> list[Rows]:
        """The folds that SentEval makes of these rows."""
        dealer = StratifiedKFold(self.settings.folds, shuffle=True, random_state=SEED)
        return [rows_n[held_out] for _, held_out in dealer.split(rows_n, labels_n[rows_n])]


class _Trial(NamedTuple):
    """One choice of a regulariser, and the test of the model that comes of it."""

    train_n: Rows
    held_out: Sequence[Rows]
    """Rows to compare regularisers on, each of them by a model of all other training rows."""
    test_t: Rows

    def seen(self) -> list[Rows]:
        """Rows that each model is fitted to; the last, which is tested, has all training rows."""
        return [*(np.setdiff1d(self.train_n, rows) for rows in self.held_out), self.train_n]


class _Outcome(NamedTuple):
    dev_accuracy: float
    """Of the regulariser chosen, per cent."""
    predicted_t: Labels
    """Classes of the test rows."""


def _run(
    trials: Sequence[_Trial], features_nD: Features, labels_n: Labels, *, tolerance: float
) -> list[_Outcome]:
    """Outcomes of trials, whose models are all fitted at once."""
    seen = [rows for trial in trials for rows in trial.seen()]
    seen_nF = np.stack([np.isin(np.arange(len(labels_n)), rows) for rows in seen], axis=1)
    fitted = fit(features_nD, labels_n, seen_nF, l2=L2, tolerance=tolerance)
    models = iter(np.moveaxis(fitted.predict(features_nD), 2, 0))
    outcomes: list[_Outcome] = []
    for trial in trials:
        *candidates, tested_nR = islice(models, len(trial.held_out) + 1)
        accuracy_R = 100 * np.mean(
            [
                (classes_nR[rows] == labels_n[rows, None]).mean(axis=0)
                for classes_nR, rows in zip(candidates, trial.held_out, strict=True)
            ],
            axis=0,
        )
        # The original compares two decimals and takes the first of equals.
        best = int(accuracy_R.round(2).argmax())
        outcomes.append(_Outcome(float(accuracy_R[best]), tested_nR[trial.test_t, best]))
    return outcomes
