"""Ax with sparse models, unmodified: fits, candidates, leave-one-out in closed form, and experiments that load again.

Slow tests have 10,000 observations, or search over choices: ``pytest -m slow tests/models/test_ax.py``.
"""

import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("ax", reason="Ax is not installed: pip install '.[ax]'")

import pandas as pd
from ax.adapter import cross_validation
from ax.adapter.registry import Generators
from ax.core import Arm, Data, Experiment, Metric, Objective, OptimizationConfig, ParameterType, RangeParameter, SearchSpace
from ax.core.objective import MultiObjective
from ax.core.optimization_config import MultiObjectiveOptimizationConfig
from ax.core.parameter import ChoiceParameter
from ax.generators.torch.botorch_modular.surrogate import ModelConfig, SurrogateSpec
from ax.storage.json_store.load import load_experiment
from ax.storage.json_store.registry import CORE_DECODER_REGISTRY
from ax.storage.json_store.save import save_experiment
from botorch.models import SingleTaskGP

from sparse_bo import SparseGP, SparseMixedGP, SparseMultiFidelityGP, SparseMultiTaskGP, dictionary, register_with_ax
from sparse_bo.dictionary import Dictionary, LeverageSampler, UniformSampler

D = 3
QUICK = {"optimizer_kwargs": {"num_restarts": 2, "raw_samples": 16}}
"""Options of a short search for candidates."""
pytestmark = [
    # Ax and what it stands on warn about themselves, and BoTorch about data that Ax does not standardise as BoTorch would.
    pytest.mark.filterwarnings("ignore"),
]


def experiment(n, *, objectives=1, choices=0, seed=0):
    """An experiment with one completed batch of n arms: sums of waves in [0, 1]^D, and a choice parameter if asked for."""
    g = np.random.default_rng(seed)
    parameters = [RangeParameter(f"x{i}", ParameterType.FLOAT, 0.0, 1.0) for i in range(D)]
    if choices:
        parameters.append(ChoiceParameter("c", ParameterType.STRING, [f"v{k}" for k in range(choices)], is_ordered=False))
    metrics = [Metric(name, lower_is_better=False) for name in "ab"[:objectives]]
    parts = [Objective(metric=metric, minimize=False) for metric in metrics]
    config = OptimizationConfig(parts[0]) if objectives == 1 else MultiObjectiveOptimizationConfig(MultiObjective(parts))
    made = Experiment(name="waves", search_space=SearchSpace(parameters), optimization_config=config)
    X, c = g.random((n, D)), g.integers(max(choices, 1), size=n)
    names = [f"0_{k}" for k in range(n)]
    values = [{f"x{i}": float(x[i]) for i in range(D)} | ({"c": f"v{k}"} if choices else {}) for x, k in zip(X, c, strict=True)]
    trial = made.new_batch_trial()
    trial.add_arms_and_weights([Arm(value, name=name) for value, name in zip(values, names, strict=True)])
    trial.mark_running(no_runner_required=True)
    frames = []
    for j, metric in enumerate(metrics):
        y = np.sin((3 + j) * X).sum(axis=1) + 0.3 * c + 0.05 * g.standard_normal(n)
        columns = {"arm_name": names, "metric_name": metric.name, "metric_signature": metric.name, "mean": y, "sem": np.nan}
        frames.append(pd.DataFrame({**columns, "trial_index": 0}))
    made.attach_data(Data(df=pd.concat(frames)))
    trial.mark_completed()
    return made


def adapter(made, model=SparseGP, *, generator=Generators.BOTORCH_MODULAR, **options):
    """Return one of Ax's modular generators on the experiment, fitted; options are the model's."""
    config = ModelConfig(botorch_model_class=model, model_options=options)
    spec = SurrogateSpec(model_configs=[config])
    return generator(experiment=made, data=made.lookup_data(), surrogate_spec=spec)


def model_of(ax_adapter):
    return ax_adapter.generator.surrogate.model


@pytest.mark.sampled(1)
@pytest.mark.parametrize("objectives", [1, 2])
def test_ax_fits_a_sparse_model_and_generates_candidates(objectives):
    fitted = adapter(experiment(60, objectives=objectives), max_dictionary=20)
    assert isinstance(model_of(fitted), SparseGP)
    assert model_of(fitted).num_outputs == objectives
    run = fitted.gen(2, model_gen_options=QUICK)
    assert len(run.arms) == 2
    assert all(0.0 <= value <= 1.0 for arm in run.arms for value in arm.parameters.values())
    assert model_of(fitted).dictionary.m <= 20


@pytest.mark.sampled(1)
@pytest.mark.parametrize("objectives", [1, 2])
def test_cross_validation_is_closed_form_and_agrees_with_the_exact_model(objectives):
    made = experiment(25, objectives=objectives)
    exact, sparse = adapter(made, SingleTaskGP), adapter(made, SparseGP)
    model_of(sparse).load_state_dict(model_of(exact).state_dict())
    theirs, ours = (cross_validation.cross_validate(one, folds=-1) for one in (exact, sparse))
    assert len(ours) == 25
    for one, two in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.predicted.means, two.predicted.means, atol=1e-6)
        np.testing.assert_allclose(one.predicted.covariance, two.predicted.covariance, atol=1e-6)


def test_leave_one_out_of_a_sparse_posterior_predicts():
    """Ax's own cross-validation refits fold by fold: BoTorch's ``loo_cv`` refuses a sparse model."""
    results = model_of(adapter(experiment(300), max_dictionary=80)).leave_one_out()
    errors = (results.posterior.mean - results.observed_Y) * 0.5  # Ax standardises values of a standard deviation of 0.5
    assert float(errors.square().mean().sqrt()) < 0.15  # the noise is 0.05


@pytest.mark.slow
def test_choice_parameters_reach_the_mixed_model():
    fitted = adapter(experiment(90, choices=3), SparseMixedGP, generator=Generators.BO_MIXED, max_dictionary=40)
    assert isinstance(model_of(fitted), SparseMixedGP)
    assert len(fitted.gen(1).arms) == 1


SAVED = {
    "none": {},
    "a sampler": {"dictionary": LeverageSampler(oversampling=3.0), "max_dictionary": 15},
    "another sampler": {"dictionary": UniformSampler(size=10), "seed": 3, "fit": "subset"},
    "points": {"dictionary": Dictionary(torch.rand(5, D, dtype=torch.float64), torch.ones(5))},
    "rows": {"dictionary": torch.arange(0, 20, 3)},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SAVED)
def test_a_saved_experiment_loads_with_its_model_and_sampler(name, tmp_path):
    register_with_ax()
    made, options = experiment(20), SAVED[name]
    made.new_trial(generator_run=adapter(made, **options).gen(1, model_gen_options=QUICK))
    path = str(tmp_path / "experiment.json")
    save_experiment(made, path)
    loaded = load_experiment(path)
    (run,) = loaded.trials[1].generator_runs
    (config,) = run._generator_kwargs["surrogate_spec"].model_configs
    assert config.botorch_model_class is SparseGP
    assert set(config.model_options) == set(options)
    for key, value in options.items():
        again = config.model_options[key]
        if isinstance(value, Dictionary):
            assert torch.equal(again.points, value.points)
            assert again.indices is None
        elif isinstance(value, torch.Tensor):
            assert torch.equal(again, value)
        else:
            assert again == value
    again = adapter(loaded, config.botorch_model_class, **config.model_options)
    assert len(again.gen(1, model_gen_options=QUICK).arms) == 1


def test_every_model_and_sampler_is_registered_and_twice_is_once():
    register_with_ax()
    register_with_ax()
    from ax.storage import botorch_modular_registry as registry

    for model in (SparseGP, SparseMixedGP, SparseMultiFidelityGP, SparseMultiTaskGP):
        assert registry.MODEL_REGISTRY[model] == model.__name__
        assert registry.REVERSE_MODEL_REGISTRY[model.__name__] is model
    samplers = {name for name in dictionary.__all__ if name.endswith("Sampler")} - {"Sampler"} | {"Dictionary"}
    assert len(samplers) >= 11
    assert all(CORE_DECODER_REGISTRY[name] is getattr(dictionary, name) for name in samplers)


def test_a_name_that_is_taken_is_refused(monkeypatch):
    monkeypatch.setitem(CORE_DECODER_REGISTRY, "UniformSampler", SingleTaskGP)
    with pytest.raises(ValueError, match="UniformSampler"):
        register_with_ax()


@pytest.mark.slow  # at each change tests/test_package.py imports every name where Ax is missing
def test_importing_the_package_does_not_import_ax():
    code = "import sparse_bo, sys; sparse_bo.SparseGP, sparse_bo.register_with_ax; print('ax' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.slow
@pytest.mark.parametrize("objectives", [1, 2])
def test_ten_thousand_observations_unmodified(objectives, tmp_path):
    """Everything at its default; more than 4,096 baseline points are sampled from the sparse posterior."""
    register_with_ax()
    made = experiment(10_000, objectives=objectives)
    fitted = adapter(made)
    run = fitted.gen(2)
    assert len(run.arms) == 2
    left_out = model_of(fitted).leave_one_out().posterior.mean
    assert left_out.shape == ((10_000, 1, 1) if objectives == 1 else (10_000, 1, 2))
    made.new_trial(generator_run=fitted.gen(1))
    save_experiment(made, str(tmp_path / "experiment.json"))
    assert load_experiment(str(tmp_path / "experiment.json")).trials[1].arm is not None
