"""SparseGP with a sampler: what the sampler is shown, in whose units, for batches and repeats; and that all samplers work."""

import pytest
import torch
from botorch.models.transforms import Normalize
from gpytorch.mlls import ExactMarginalLogLikelihood

from sparse_bo.dictionary import (
    FirstSampler,
    GreedyVarianceSampler,
    IncrementalLeverageSampler,
    IPASampler,
    IVMSampler,
    KDPPSampler,
    KMeansPlusPlusSampler,
    LeverageSampler,
    RecursiveRLSSampler,
    UniformSampler,
    residual_bound,
)
from sparse_bo.dictionary.base import whitened_gram
from sparse_bo.errors import SamplerError
from tests.models.sparse_problems import CONFIGURATIONS, D, N, data, make_sparse, noise_of, pair, points

SAMPLERS = [
    LeverageSampler(),
    UniformSampler(size=6),
    FirstSampler(size=6),
    RecursiveRLSSampler(size=6),
    RecursiveRLSSampler(),
    GreedyVarianceSampler(size=6),
    IPASampler(size=6),
    IVMSampler(size=6),
    KMeansPlusPlusSampler(size=6),
    KDPPSampler(size=6),
]

pytestmark = pytest.mark.filterwarnings(
    # Some data here are deliberately not standardised ("raw outcomes"), as users' data may be.
    "ignore:Data .outcome observations. is not standardized:botorch.exceptions.InputDataWarning"
)


class Spy:
    def sample(self, candidates, *, generator):
        self.seen = candidates
        return UniformSampler(size=4).sample(candidates, generator=generator)


def shown(model_data, **options):
    spy = Spy()
    model = make_sparse(**model_data, dictionary=spy, **options).eval()
    model.posterior(points(1))
    return model, spy.seen


def test_a_sampler_sees_the_users_units_in_training_too():
    spy = Spy()
    model = make_sparse(**data(), dictionary=spy, fit="vfe", input_transform=Normalize(D)).train()
    model(*model.train_inputs)
    assert torch.equal(spy.seen.X, data()["train_X"])


@pytest.mark.sampled
@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_every_sampler_gives_a_posterior(configuration, sampler):
    model = pair(configuration, dictionary=sampler)[1]
    one_output = model.train_targets.dim() == 1
    if isinstance(sampler, IPASampler) and not one_output:
        with pytest.raises(SamplerError, match="several outputs or a batch has no one mean"):
            model.posterior(points(3))
        return
    posterior = model.posterior(points(3))
    assert bool(torch.isfinite(posterior.mean).all())
    assert bool((posterior.variance > 0).all())
    cache = model.prediction_strategy
    if getattr(sampler, "size", None) is not None:
        assert len(cache.chosen.rows) == 6


def test_a_sampler_of_bandits_is_refused_as_what_it_is():
    with pytest.raises(SamplerError, match="LeverageSampler elsewhere"):  # and not as a matrix that is not positive definite
        pair("plain", dictionary=IncrementalLeverageSampler())[1].posterior(points(3))


def test_inputs_are_the_users_and_the_kernel_takes_transformed_ones():
    raw = data()
    raw["train_X"] = 100.0 * raw["train_X"] - 7.0
    model, seen = shown(raw, input_transform=Normalize(D))
    assert torch.equal(seen.X, raw["train_X"])
    X = model.train_inputs[0]
    assert float(X.max()) == pytest.approx(1.0)
    K = model.covar_module(X, X).to_dense().detach()
    torch.testing.assert_close(seen.covariance.cross(seen.inputs, seen.inputs), K)
    torch.testing.assert_close(seen.covariance.diagonal(seen.inputs), K.diagonal())


def test_means_and_leverages_are_those_of_the_posterior():
    """A pilot of all points is the exact GP's posterior."""
    model, seen = shown(data())
    exact = make_sparse(**data())
    exact.load_state_dict(model.state_dict())
    exact.eval()
    mvn = exact(model.train_inputs[0])
    torch.testing.assert_close(seen.means, mvn.mean.detach(), rtol=0, atol=1e-8)
    expected = (mvn.variance / exact.likelihood.noise).detach()
    torch.testing.assert_close(seen.leverages * seen.regularization / noise_of(model), expected, rtol=0, atol=1e-6)


def test_known_noise_is_shown_and_repeats_are_worth_their_harmonic_mean():
    X = torch.cat([points(5), points(5)[:2]])
    noise = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.3, 0.2], dtype=torch.float64).unsqueeze(-1)
    y = torch.sin(X.sum(dim=-1, keepdim=True))
    _, seen = shown({"train_X": X, "train_Y": y, "train_Yvar": noise}, outcome_transform=None)
    assert seen.counts.tolist() == [2.0, 2.0, 1.0, 1.0, 1.0]
    harmonic = torch.tensor([0.15, 0.2, 0.3, 0.4, 0.5], dtype=torch.float64)
    torch.testing.assert_close(seen.regularization, harmonic)
    assert torch.equal(seen.X, X[:5])


@pytest.mark.parametrize("configuration", ["batch, known noise", "two outputs, known noise", "batch of two outputs"])
def test_a_batch_is_averaged_and_bounds_each_member(configuration):
    """λ_max of each member's N^{-1/2}(K − Q)N^{-1/2} is at most the number of members times the average's."""
    model, seen = shown(CONFIGURATIONS[configuration]())
    X = model.train_inputs[0]
    noise = model.noise_at(X, model.train_targets.shape).detach()
    K = model.covar_module(X, X).to_dense().detach()
    members = K.reshape(-1, N, N).shape[0]
    levels = noise.mean(dim=-1)
    average = (K / levels[..., None, None]).reshape(-1, N, N).mean(dim=0)
    torch.testing.assert_close(seen.covariance.cross(seen.inputs, seen.inputs), average)
    torch.testing.assert_close(seen.regularization, (noise / levels.unsqueeze(-1)).reshape(-1, N).mean(dim=0))
    rows = torch.tensor([0, 4, 9, 20])

    def left(A):
        return A - A[:, rows] @ torch.linalg.inv(A[rows][:, rows]) @ A[rows]

    whole = left(average)
    for member, level in zip(K.reshape(-1, N, N), levels.reshape(-1), strict=True):
        assert float(torch.linalg.eigvalsh(members * whole - left(member / level))[0]) > -1e-8


def test_the_residual_of_a_models_dictionary_can_be_bounded(generator):
    _, seen = shown({**data(), "input_transform": Normalize(D)})
    dictionary = GreedyVarianceSampler(size=8).sample(seen, generator=generator)
    bound = residual_bound(seen, dictionary, generator=generator)
    gram = whitened_gram(seen, needed_by="test")
    every = torch.arange(N)
    A, rows = gram.block(every, every), dictionary.indices
    exact = float(torch.linalg.eigvalsh(A - A[:, rows] @ torch.linalg.inv(A[rows][:, rows]) @ A[rows])[-1])
    assert bound.lower <= exact * (1 + 1e-9)
    assert exact <= bound.upper * (1 + 1e-9)


def test_a_dictionary_beyond_the_cap_is_cut():
    model = make_sparse(**data(), dictionary=GreedyVarianceSampler(size=20), max_dictionary=5)
    model.eval()
    model.posterior(points(1))
    assert len(model.prediction_strategy.chosen.rows) == 5


def test_learning_on_a_samplers_dictionary_works():
    model = make_sparse(**data(), dictionary=IPASampler(size=10), fit="vfe")
    model.train()
    loss = ExactMarginalLogLikelihood(model.likelihood, model)(model(*model.train_inputs), model.train_targets)
    assert bool(torch.isfinite(loss))
