"""Problems, policies, kernels and samplers by name, and what their presets are."""

import pytest
import torch

from sparse_bo import BBKB, dictionary, policies, problems
from sparse_bo.arms.sweep import PRECISIONS
from sparse_bo.cli import shared_options as options
from sparse_bo.cli.presets import POLICIES, SAMPLERS, make_kernel, make_policy, make_sampler, policy_of
from sparse_bo.dictionary import UniformSampler
from sparse_bo.kernels import TanimotoKernel
from sparse_bo.policies import Policy, RandomSearch


def test_presets_give_the_published_settings_on_the_data_sets():
    policy = make_policy("bbkb", {}, problem="cadata", budget=10_000)
    assert isinstance(policy, BBKB)
    assert (policy.regularization, policy.noise_variance, policy.rkhs_norm, policy.width) == (0.2, 0.01, 20.0, "authors")
    assert policy.failure_probability == 1e-4
    assert policy.covar_module.lengthscale.item() == pytest.approx(5.0**0.5)


def test_dictionaries_by_name():
    policy = make_policy("bkb", {"dictionary": "uniform", "dictionary_size": 7}, problem="cadata", budget=10)
    assert policy.dictionary == UniformSampler(size=7)
    assert make_policy("bkb", {"dictionary": "leverage"}, problem="cadata", budget=10).dictionary is None
    assert make_sampler("recursive-rls", None).size is None
    for name in SAMPLERS[1:]:
        assert make_sampler(name, 7).size == 7


def test_a_learned_kernel_switches_the_preset_off():
    policy = make_policy("bbkb", {"kernel": "learned"}, problem="cadata", budget=10_000)
    assert policy.covar_module is None
    assert policy.regularization is None
    assert policy.width == "calibrated"
    assert isinstance(make_policy("random", {}, problem="cadata", budget=10), RandomSearch)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "nu"), [("matern12", 0.5), ("matern32", 1.5), ("matern52", 2.5)])
def test_kernels_by_name(name, nu):
    kernel = make_kernel(name, lengthscale=0.7, outputscale=2.0)
    assert kernel.base_kernel.nu == nu
    assert kernel.base_kernel.lengthscale.item() == pytest.approx(0.7)
    assert kernel.outputscale.item() == pytest.approx(2.0)


def test_fingerprints_have_a_kernel_by_name():
    kernel = make_kernel("tanimoto", lengthscale=None, outputscale=2.0)
    assert type(kernel.base_kernel) is TanimotoKernel
    assert kernel.outputscale.item() == pytest.approx(2.0)
    assert type(make_kernel("tanimoto", lengthscale=None, outputscale=None)) is TanimotoKernel


def test_what_can_be_chosen_by_name_is_what_there_is():
    public = [getattr(policies, name) for name in policies.__all__]
    concrete = {kind for kind in public if isinstance(kind, type) and hasattr(kind, "on") and kind is not Policy}
    assert set(POLICIES.values()) == concrete
    assert list(POLICIES) == sorted(POLICIES)
    assert tuple(problems.SYNTHETIC) == options.SYNTHETIC
    assert tuple(PRECISIONS) == options.PRECISIONS
    assert all(hasattr(dictionary, sampler) for sampler in options.SIZED_SAMPLERS.values())


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_called_what_it_calls_itself(name):
    assert make_policy(name, {}, problem="hartmann6", budget=100).name == name


def test_elimination_under_a_kernel_of_ones_own_learns_the_noise():
    policy = make_policy("sbpe", {"kernel": "rbf", "lengthscale": 0.25}, problem="own", budget=200, preset="learned")
    assert (policy.regularization, policy.rkhs_norm) == (None, None)
    assert policy.width == 3.0


def test_plates_of_the_default_stay_plates_in_its_second_stage():
    given = {"batch_size": "96", "repeats": "no"}
    how = {"domain": {"arms": torch.rand(20_000, 4)}, "name": "own", "goal": "best", "budget": 1_500, "preset": "learned"}
    policy = policy_of(None, given, **how).policy
    assert (policy.first.batch_size, policy.first.repeats) == (policy.then.batch_size, policy.then.repeats) == (96, False)
    assert policy.then.width == policy_of(None, {}, **how).policy.then.width
