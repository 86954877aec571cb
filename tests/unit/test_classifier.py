"""Many logistic regressions at once against scikit-learn's, one after another."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from simcse.errors import ModelError
from simcse.evaluation import classifier
from simcse.evaluation.classifier import fit

L2 = (1e-4, 1e-2)


def _examples(classes: int, *, rows: int = 400, dimension: int = 12) -> tuple[np.ndarray, ...]:
    """Correlated features around a mean far from zero, labels with noise, three choices of rows."""
    random = np.random.default_rng(classes)
    scales = np.exp(-np.arange(dimension) / 4)
    features = random.normal(size=(rows, dimension)) @ random.normal(size=(dimension, dimension))
    features = features * scales + 5
    outputs = (features - 5) @ random.normal(size=(dimension, classes))
    labels = (outputs + random.normal(size=outputs.shape)).argmax(axis=1)
    return features, labels, random.random((rows, 3)) < 0.7


def _reference(features: np.ndarray, labels: np.ndarray, l2: float) -> LogisticRegression:
    model = LogisticRegression(
        C=1 / (len(labels) * l2), solver="newton-cholesky", tol=1e-12, max_iter=1000
    )
    return model.fit(features, labels)


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_models_equal_those_of_scikit_learn(classes: int) -> None:
    features, labels, rows = _examples(classes)
    models = fit(features, labels, rows, l2=L2, tolerance=1e-16)
    for r, l2 in enumerate(L2):
        for f, chosen in enumerate(rows.T):
            want = _reference(features[chosen], labels[chosen], l2)
            np.testing.assert_allclose(
                models.weights_DRFK[:, r, f].T, want.coef_, rtol=1e-4, atol=1e-4
            )
            # Softmax takes a constant added to every bias without notice.
            bias, wanted = models.bias_RFK[r, f].numpy(), want.intercept_
            if classes > 2:
                bias, wanted = bias - bias.mean(), wanted - wanted.mean()
            np.testing.assert_allclose(bias, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("classes", [2, 6])
def test_single_precision_classifies_like_scikit_learn_on_rows_left_out(classes: int) -> None:
    features, labels, rows = _examples(classes)
    models = fit(features.astype(np.float32), labels, rows, l2=L2, tolerance=1e-6)
    predicted = models.predict(features.astype(np.float32))
    for r, l2 in enumerate(L2):
        for f, chosen in enumerate(rows.T):
            want = _reference(features[chosen], labels[chosen], l2).predict(features[~chosen])
            assert np.mean(predicted[~chosen, r, f] == want) > 0.98


def test_classes_that_a_plane_parts_are_fitted_too() -> None:
    features, labels, rows = _examples(2, rows=60, dimension=100)
    l2 = 1e-4
    models = fit(features, labels, rows, l2=[l2], tolerance=1e-9)

    def objective(weights: np.ndarray, bias: float, chosen: np.ndarray) -> float:
        margins = (2 * labels[chosen] - 1) * (features[chosen] @ weights + bias)
        return float(np.logaddexp(0, -margins).mean() + l2 / 2 * weights @ weights)

    for f, chosen in enumerate(rows.T):
        want = _reference(features[chosen], labels[chosen], l2)
        least = objective(want.coef_[0], want.intercept_[0], chosen)
        found = models.weights_DRFK[:, 0, f, 0].numpy(), models.bias_RFK[0, f, 0].item()
        assert least <= objective(*found, chosen) < least + 1e-4


def test_the_same_call_gives_the_same_bits() -> None:
    features, labels, rows = _examples(2)
    first, second = (fit(features, labels, rows, l2=L2, tolerance=1e-6) for _ in range(2))
    assert first.weights_DRFK.equal(second.weights_DRFK)
    assert first.bias_RFK.equal(second.bias_RFK)


def test_a_feature_that_never_changes_has_no_weight() -> None:
    features, labels, rows = _examples(2)
    features[:, 3] = 7.0
    models = fit(features, labels, rows, l2=L2, tolerance=1e-12)
    np.testing.assert_allclose(models.weights_DRFK[3], 0, atol=1e-9)


def test_a_classifier_that_does_not_come_to_its_optimum_is_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, labels, *_ = _examples(2)
    monkeypatch.setattr(classifier, "_MAX_PASSES", 2)
    rows = np.ones((len(labels), 1), dtype=bool)
    with pytest.raises(ModelError, match=r"did not come to its optimum in 2 passes: the vectors'"):
        fit(features, labels, rows, l2=[1e-5], tolerance=1e-12)
