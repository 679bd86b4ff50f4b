"""scikit-learn needs no adapter: the recipe, run as it is told in README."""

import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install '.[benchmarks]'")

from sklearn.datasets import make_moons
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC

from sparse_bo import Choice, Float, maximize


def test_a_search_over_an_estimator_is_a_space_and_cross_validation():
    X, y = make_moons(80, noise=0.25, random_state=0)
    model = SVC()

    def score(parameters):
        return cross_val_score(model.set_params(**parameters), X, y, cv=3).mean()

    space = {"C": Float(1e-3, 1e3, log=True), "gamma": Float(1e-4, 1e2, log=True), "kernel": Choice("rbf", "linear")}
    result = maximize(score, space=space, budget=20)
    best = model.set_params(**result.best_parameters).fit(X, y)
    assert best.score(X, y) > 0.9
    assert score(result.best_parameters) > cross_val_score(SVC(C=1e-3), X, y, cv=3).mean() + 0.2
