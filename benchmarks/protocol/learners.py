"""Tasks for tuners: learners of scikit-learn on data of its own or of the package, mixed spaces of settings, and losses.

Half of them choose and half report: ``suites.py``. Beside them tasks with several learners, whose settings are conditional.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from sparse_bo import Choice, Float, Int
from sparse_bo.problems import abalone, cadata

__all__ = ["BOOSTED", "CONDITIONAL", "TASKS", "AnyOf", "Settings", "Space", "Task", "is_there"]

Settings = dict[str, Any]
Space = Mapping[str, Float | Int | Choice]
WORST = 10.0
"""Losses are at most this: of settings that diverge, too."""


@dataclass(frozen=True)
class Task:
    """A learner on data: the mean loss over three folds, the same for the same settings.

    Args:
        data: ``"abalone"`` or ``"cadata"`` of the package, or a data set of scikit-learn that ``load_<name>`` loads.
        space: Of the settings.
        learner: Makes a learner of scikit-learn from settings.
        loss: A name of :data:`LOSSES`.
    """

    data: str
    space: Space
    learner: Callable[[Settings], Any]
    loss: str

    def __call__(self, settings: Settings) -> float:
        """Return the loss of settings, in [0, ``WORST``].

        Raises:
            ImportError: Without scikit-learn.
        """
        from sklearn.model_selection import KFold

        X, y = _data(self.data)
        losses = []
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # of settings that do not converge
            for train, test in KFold(3, shuffle=True, random_state=0).split(X):
                try:
                    model = self.learner(settings).fit(X[train], y[train])
                except ValueError as error:
                    if "finite" in str(error):  # the weights of a network that diverges
                        return WORST
                    raise
                losses.append(LOSSES[self.loss](model, X[test], y[test]))
        mean = float(np.mean(losses))
        return min(mean, WORST) if np.isfinite(mean) else WORST


@dataclass(frozen=True)
class AnyOf:
    """One of several learners on the same data: the settings of each are there where it is chosen.

    Of support vectors, the degree is there with the polynomial kernel alone, and a kernel's offset with the two that have one.

    Args:
        tasks: By the name of the learner.
    """

    tasks: Mapping[str, Task]

    @property
    def space(self) -> Space:
        """The learner, and then the settings of each, as ``"learner.setting"``."""
        space: dict[str, Float | Int | Choice] = {"learner": Choice(*self.tasks)}
        for learner, task in self.tasks.items():
            for name, p in task.space.items():
                when = {"learner": learner}
                if task.space is SVM and name in KERNELS_WITH:
                    when = {f"{learner}.kernel": KERNELS_WITH[name]}
                with_condition = Choice(*p.values, when=when) if isinstance(p, Choice) else replace(p, when=when)
                space[f"{learner}.{name}"] = with_condition
        return space

    def __call__(self, settings: Settings) -> float:
        """Return the loss of settings: see :class:`Task`."""
        learner = settings["learner"]
        return self.tasks[learner]({name.split(".")[1]: v for name, v in settings.items() if name.startswith(f"{learner}.")})


def is_there(p: Float | Int | Choice, settings: Settings) -> bool:
    """Return whether a parameter's condition holds, given those before it."""
    return p.when is None or all(name in settings and settings[name] in values for name, values in p.when.items())


def _squares(model: Any, X: np.ndarray, y: np.ndarray) -> float:
    """Return the mean squared error in units of the variance: 1 is that of a constant."""
    return float(np.mean((model.predict(X) - y) ** 2) / np.var(y))


def _log_loss(model: Any, X: np.ndarray, y: np.ndarray) -> float:
    from sklearn.metrics import log_loss

    return float(log_loss(y, model.predict_proba(X), labels=model.classes_))


def _errors(model: Any, X: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean(model.predict(X) != y))


LOSSES = {"squares": _squares, "log": _log_loss, "errors": _errors}
"""Of a learner on a fold: mean squared error over variance, negative log-likelihood, or share of errors."""


@cache
def _data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets, in an order drawn once."""
    from sklearn import datasets

    if name in ("abalone", "cadata"):
        table = {"abalone": abalone, "cadata": cadata}[name]()
        X, y = table.arms.numpy(), table.values.numpy()
    else:
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))[:500]
    return X[order], y[order]


def _scaled(name: str, learner: Any, *before: Any) -> Any:
    """Return a learner after scaling of the inputs by name, and other steps."""
    from sklearn import preprocessing
    from sklearn.pipeline import make_pipeline

    scalers = {
        "standard": preprocessing.StandardScaler, "minmax": preprocessing.MinMaxScaler, "robust": preprocessing.RobustScaler,
    }  # fmt: skip
    return make_pipeline(*([scalers[name]()] if name in scalers else []), *before, learner)


SCALERS = Choice("none", "standard", "minmax", "robust")


def _trees(kind: str) -> Callable[[Settings], Any]:
    def made(p: Settings) -> Any:
        from sklearn import ensemble

        return getattr(ensemble, kind)(**p, random_state=0)

    return made


FOREST: Space = {
    "n_estimators": Int(5, 50, log=True),
    "max_depth": Int(1, 20),
    "max_features": Float(0.05, 1.0),
    "min_samples_leaf": Int(1, 30, log=True),
    "bootstrap": Choice(True, False),
}


def _svm(kind: str) -> Callable[[Settings], Any]:
    def made(p: Settings) -> Any:
        from sklearn import svm

        p = dict(p)
        scaler = p.pop("scaler")
        return _scaled(scaler, getattr(svm, kind)(**p, max_iter=20_000))

    return made


KERNELS_WITH = {"degree": ("poly",), "coef0": ("poly", "sigmoid")}
"""Kernels of support vectors that have a setting."""
SVM: Space = {
    "C": Float(1e-3, 1e3, log=True),
    "gamma": Float(1e-5, 10.0, log=True),
    "kernel": Choice("rbf", "poly", "sigmoid", "linear"),
    "degree": Int(2, 5),
    "coef0": Float(0.0, 2.0),
    "scaler": SCALERS,
}


def _network(kind: str) -> Callable[[Settings], Any]:
    def made(p: Settings) -> Any:
        from sklearn import neural_network

        p = dict(p)
        scaler, width, layers = p.pop("scaler"), p.pop("width"), p.pop("layers")
        sizes = [width] * layers
        return _scaled(scaler, getattr(neural_network, kind)(hidden_layer_sizes=sizes, **p, max_iter=60, random_state=0))

    return made


NETWORK: Space = {
    "width": Int(2, 48, log=True),
    "layers": Int(1, 3),
    "activation": Choice("relu", "tanh", "logistic"),
    "solver": Choice("adam", "sgd", "lbfgs"),
    "alpha": Float(1e-6, 10.0, log=True),
    "learning_rate_init": Float(1e-4, 0.3, log=True),
    "scaler": SCALERS,
}


BOOSTING: Space = {
    "learning_rate": Float(1e-3, 1.0, log=True),
    "n_estimators": Int(5, 80, log=True),
    "max_depth": Int(1, 8),
    "subsample": Float(0.2, 1.0),
    "max_features": Float(0.1, 1.0),
    "min_samples_leaf": Int(1, 40, log=True),
}


def _neighbours(kind: str) -> Callable[[Settings], Any]:
    def made(p: Settings) -> Any:
        from sklearn import decomposition, neighbors

        p = dict(p)
        pca = decomposition.PCA(p.pop("components"), whiten=p.pop("whiten"), random_state=0)
        return _scaled(p.pop("scaler"), getattr(neighbors, kind)(**p), pca)

    return made


def _near(components: int) -> Space:
    return {
        "n_neighbors": Int(1, 60, log=True),
        "weights": Choice("uniform", "distance"),
        "metric": Choice("euclidean", "manhattan", "chebyshev", "cosine"),
        "components": Int(1, components),
        "whiten": Choice(False, True),
        "scaler": SCALERS,
    }


def _linear(p: Settings) -> Any:
    from sklearn.linear_model import SGDClassifier

    p = dict(p)
    return _scaled(p.pop("scaler"), SGDClassifier(**p, random_state=0))


def _ridge(p: Settings) -> Any:
    from sklearn.kernel_ridge import KernelRidge

    p = dict(p)
    return _scaled(p.pop("scaler"), KernelRidge(**p))


def _polynomial(p: Settings) -> Any:
    from sklearn.linear_model import ElasticNet
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    p = dict(p)
    features = PolynomialFeatures(p.pop("powers"), interaction_only=p.pop("interaction_only"), include_bias=False)
    return _scaled(p.pop("scaler"), ElasticNet(**p, random_state=0), features, StandardScaler())


def _features(p: Settings) -> Any:
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import LogisticRegression

    p = dict(p)
    scaler, C, weight = p.pop("scaler"), p.pop("C"), p.pop("class_weight")
    last = LogisticRegression(C=C, class_weight=None if weight == "none" else weight, max_iter=60)
    return _scaled(scaler, last, Nystroem(**p, random_state=0))


KERNEL: Space = {
    "kernel": Choice("rbf", "laplacian", "polynomial", "sigmoid"),
    "gamma": Float(1e-4, 10.0, log=True),
    "degree": Int(1, 5),
    "coef0": Float(0.0, 2.0),
    "scaler": SCALERS,
}

TASKS: dict[str, Task] = {
    "support vectors, digits": Task("digits", SVM, _svm("SVC"), "errors"),
    "support vectors, diabetes": Task(
        "diabetes", {**SVM, "epsilon": Float(1e-2, 100.0, log=True)}, _svm("SVR"), "squares"
    ),
    "random forest, breast cancer": Task(
        "breast_cancer", {**FOREST, "criterion": Choice("gini", "entropy")}, _trees("RandomForestClassifier"), "log"
    ),
    "extra trees, abalone": Task(
        "abalone", {**FOREST, "criterion": Choice("squared_error", "poisson")}, _trees("ExtraTreesRegressor"), "squares"
    ),
    "network, wine": Task("wine", NETWORK, _network("MLPClassifier"), "log"),
    "network, cadata": Task("cadata", NETWORK, _network("MLPRegressor"), "squares"),
    "boosting, diabetes": Task(
        "diabetes", {**BOOSTING, "loss": Choice("squared_error", "huber", "absolute_error")},
        _trees("GradientBoostingRegressor"), "squares",
    ),
    "boosting, wine": Task(
        "wine", {**BOOSTING, "criterion": Choice("friedman_mse", "squared_error")},
        _trees("GradientBoostingClassifier"), "log",
    ),
    "neighbours, cadata": Task("cadata", _near(8), _neighbours("KNeighborsRegressor"), "squares"),
    "neighbours, digits": Task("digits", _near(40), _neighbours("KNeighborsClassifier"), "errors"),
    "linear by gradients, breast cancer": Task(
        "breast_cancer",
        {
            "loss": Choice("log_loss", "modified_huber"), "penalty": Choice("l2", "l1", "elasticnet"),
            "alpha": Float(1e-7, 1.0, log=True), "l1_ratio": Float(0.0, 1.0), "eta0": Float(1e-5, 1.0, log=True),
            "learning_rate": Choice("constant", "optimal", "invscaling", "adaptive"), "power_t": Float(0.1, 1.0),
            "scaler": SCALERS,
        },
        _linear, "log",
    ),
    "linear by gradients, digits": Task(
        "digits",
        {
            "loss": Choice("log_loss", "modified_huber"), "penalty": Choice("l2", "l1", "elasticnet"),
            "alpha": Float(1e-7, 1.0, log=True), "l1_ratio": Float(0.0, 1.0), "eta0": Float(1e-5, 1.0, log=True),
            "learning_rate": Choice("constant", "optimal", "invscaling", "adaptive"), "average": Choice(False, True),
            "scaler": SCALERS,
        },
        _linear, "errors",
    ),
    "kernel ridge, abalone": Task("abalone", {**KERNEL, "alpha": Float(1e-5, 100.0, log=True)}, _ridge, "squares"),
    "kernel ridge, cadata": Task("cadata", {**KERNEL, "alpha": Float(1e-5, 100.0, log=True)}, _ridge, "squares"),
    "polynomial, diabetes": Task(
        "diabetes",
        {
            "powers": Int(1, 3), "interaction_only": Choice(False, True), "alpha": Float(1e-3, 100.0, log=True),
            "l1_ratio": Float(0.0, 1.0), "selection": Choice("cyclic", "random"), "scaler": SCALERS,
        },
        _polynomial, "squares",
    ),
    "kernel features, digits": Task(
        "digits",
        {
            **{name: KERNEL[name] for name in ("kernel", "gamma", "degree", "coef0", "scaler")},
            "n_components": Int(5, 150, log=True), "C": Float(1e-3, 1e3, log=True),
            "class_weight": Choice("none", "balanced"),
        },
        _features, "log",
    ),
}  # fmt: skip

CONDITIONAL: dict[str, AnyOf] = {
    "breast cancer": AnyOf({
        "forest": TASKS["random forest, breast cancer"], "linear": TASKS["linear by gradients, breast cancer"],
        "features": Task("breast_cancer", TASKS["kernel features, digits"].space, _features, "log"),
    }),
    "wine": AnyOf({
        "network": TASKS["network, wine"], "boosting": TASKS["boosting, wine"],
        "forest": Task("wine", TASKS["random forest, breast cancer"].space, _trees("RandomForestClassifier"), "log"),
    }),
    "digits": AnyOf({
        "svm": TASKS["support vectors, digits"], "neighbours": TASKS["neighbours, digits"],
        "linear": TASKS["linear by gradients, digits"],
    }),
    "diabetes": AnyOf({
        "svm": Task("diabetes", SVM, _svm("SVR"), "squares"), "boosting": TASKS["boosting, diabetes"],
        "polynomial": TASKS["polynomial, diabetes"],
    }),
    "abalone": AnyOf({
        "trees": TASKS["extra trees, abalone"], "ridge": TASKS["kernel ridge, abalone"],
        "svm": Task("abalone", SVM, _svm("SVR"), "squares"),
    }),
    "cadata": AnyOf({
        "network": TASKS["network, cadata"], "ridge": TASKS["kernel ridge, cadata"],
        "svm": Task("cadata", SVM, _svm("SVR"), "squares"), "neighbours": TASKS["neighbours, cadata"],
    }),
}  # fmt: skip
"""Which learner, and its settings."""

BOOSTERS: Space = {
    "boosting": Choice("plain", "dart", "goss"),
    "learning_rate": Float(0.01, 0.5, log=True),
    "n_estimators": Int(20, 200, log=True),
    "num_leaves": Int(2, 128, log=True),
    "min_child_samples": Int(1, 60, log=True),
    "colsample_bytree": Float(0.1, 1.0),
    "reg_alpha": Float(1e-8, 10.0, log=True),
    "reg_lambda": Float(1e-8, 10.0, log=True),
    "subsample": Float(0.3, 1.0, when={"boosting": ["plain", "dart"]}),
    "subsample_freq": Int(1, 7, when={"boosting": ["plain", "dart"]}),
    "drop_rate": Float(0.01, 0.5, when={"boosting": "dart"}),
    "skip_drop": Float(0.0, 1.0, when={"boosting": "dart"}),
    "top_rate": Float(0.1, 0.5, when={"boosting": "goss"}),
    "other_rate": Float(0.05, 0.4, when={"boosting": "goss"}),
}


def _boosted(kind: str) -> Callable[[Settings], Any]:
    def made(p: Settings) -> Any:
        import lightgbm

        p = dict(p)
        boosting = p.pop("boosting")
        how = {"data_sample_strategy": "goss"} if boosting == "goss" else {}
        booster = "dart" if boosting == "dart" else "gbdt"
        return getattr(lightgbm, kind)(**p, **how, boosting_type=booster, random_state=0, n_jobs=1, verbosity=-1)

    return made


BOOSTED: dict[str, Task] = {
    "LightGBM, breast cancer": Task("breast_cancer", BOOSTERS, _boosted("LGBMClassifier"), "log"),
    "LightGBM, abalone": Task("abalone", BOOSTERS, _boosted("LGBMRegressor"), "squares"),
}
"""Three ways of boosting with settings of their own."""
