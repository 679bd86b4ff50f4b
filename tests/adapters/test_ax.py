"""Ax's client and generation strategies with sparse models, and batch trials that end by the variance ratio."""

import math

import pytest

pytest.importorskip("ax", reason="Ax is not installed: pip install '.[ax]'")

import numpy as np
import pandas as pd
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.core import Arm, Data, Experiment, Metric, Objective, OptimizationConfig, ParameterType, RangeParameter, SearchSpace
from ax.exceptions.core import UserInputError

from sparse_bo import SparseGP
from sparse_bo.adapters import AdaptiveAcquisition, sparse_generation_strategy

# Ax and what it stands on warn about themselves.
pytestmark = pytest.mark.filterwarnings("ignore")


def bowl(parameters):
    return -((parameters["x"] - 0.3) ** 2) - (math.log10(parameters["lr"]) + 2) ** 2 + (parameters["kind"] == "b")


def client():
    made = Client(random_seed=0)
    made.configure_experiment(
        parameters=[
            RangeParameterConfig(name="x", parameter_type="float", bounds=(0.0, 1.0)),
            RangeParameterConfig(name="lr", parameter_type="float", bounds=(1e-4, 1.0), scaling="log"),
            ChoiceParameterConfig(name="kind", parameter_type="str", values=["a", "b"], is_ordered=False),
        ]
    )
    made.configure_optimization(objective="value")
    return made


def test_a_client_runs_on_the_sparse_model():
    made = client()
    made.set_generation_strategy(sparse_generation_strategy(initial_trials=5, model_options={"max_dictionary": 32}))
    for _ in range(9):
        for index, parameters in made.get_next_trials(max_trials=1).items():
            made.complete_trial(trial_index=index, raw_data={"value": bowl(parameters)})
    nodes = [trial.generator_runs[0]._generation_node_name for trial in made._experiment.trials.values()]
    assert nodes == ["Sobol"] * 5 + ["SparseGP"] * 4
    assert isinstance(made._generation_strategy.adapter.generator.surrogate.model, SparseGP)
    assert made.get_best_parameterization()[0]["kind"] == "b"


@pytest.mark.parametrize("adaptive", [False, True])
def test_objectives_thresholds_and_constraints_are_ax_own(adaptive):
    made = Client(random_seed=0)
    sides = [RangeParameterConfig(name=name, parameter_type="float", bounds=(0.0, 1.0)) for name in "xy"]
    made.configure_experiment(parameters=sides)
    made.configure_optimization(objective="-a, b", outcome_constraints=["c <= 0.0", "a <= 1.0", "b >= 1.0"])
    made.set_generation_strategy(sparse_generation_strategy(initial_trials=6, adaptive=adaptive))
    for _ in range(5):
        for index, at in made.get_next_trials(max_trials=2).items():
            x, apart = at["x"], (at["x"] - at["y"]) ** 2
            results = {"a": apart + x * x, "b": 2.0 - apart - (1.0 - x) ** 2, "c": x - 0.8}
            made.complete_trial(trial_index=index, raw_data=results)
    front = made.get_pareto_frontier(use_model_predictions=False)
    assert len(front) >= 3
    assert all(at["x"] <= 0.8 for at, *_ in front)
    model = made._generation_strategy.adapter.generator.surrogate.model
    assert isinstance(model, SparseGP)
    assert model.num_outputs == 3


def experiment(n, noise):
    """An experiment with one completed batch of n arms of a wave."""
    g = np.random.default_rng(0)
    space = SearchSpace([RangeParameter(f"x{i}", ParameterType.FLOAT, 0.0, 1.0) for i in range(2)])
    config = OptimizationConfig(Objective(metric=Metric("y", lower_is_better=False), minimize=False))
    made = Experiment(name="waves", search_space=space, optimization_config=config)
    X = g.random((n, 2))
    trial = made.new_batch_trial()
    trial.add_arms_and_weights([Arm({"x0": float(x[0]), "x1": float(x[1])}, name=f"0_{k}") for k, x in enumerate(X)])
    trial.mark_running(no_runner_required=True)
    y = np.sin(5 * X).sum(axis=1) + noise * g.standard_normal(n)
    names = [f"0_{k}" for k in range(n)]
    columns = {"arm_name": names, "metric_name": "y", "metric_signature": "y", "mean": y, "sem": math.nan, "trial_index": 0}
    made.attach_data(Data(df=pd.DataFrame(columns)))
    trial.mark_completed()
    return made


def batch(ratio, *, adaptive=True, again=False):
    strategy = sparse_generation_strategy(initial_trials=1, adaptive=adaptive, ratio_threshold=ratio)
    made = experiment(40, 0.5)
    ((run,),) = strategy.gen(made, n=6)
    if again:
        made.new_batch_trial(generator_run=run).mark_running(no_runner_required=True)
        ((run,),) = strategy.gen(made, n=6)
    return run


def test_a_batch_trial_ends_by_the_variance_ratio():
    assert len(batch(1.0).arms) == 1
    few = batch(3.0)
    assert 1 < len(few.arms) < 6
    assert len(batch(3.0, again=True).arms) == 1  # what is pending counts
    assert len(batch(1e9).arms) == 6
    assert len(batch(1.0, adaptive=False).arms) == 6
    assert len({tuple(arm.parameters.values()) for arm in few.arms}) == len(few.arms)


def test_what_does_not_fit_is_an_error_of_ax():
    with pytest.raises(UserInputError, match="initial_trials >= 1"):
        sparse_generation_strategy(initial_trials=0)
    with pytest.raises(UserInputError, match="1 gives batches of one"):
        sparse_generation_strategy(adaptive=True, ratio_threshold=0.5)
    assert AdaptiveAcquisition.__mro__[1].__module__.startswith("ax.")
