"""Torch's default dtype and default device change no pick: every tensor is made with a dtype and a device of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from torch import Tensor

from sparse_bo import optimize_batch
from sparse_bo.arms import StopRule, arm_posterior, pick_batch
from sparse_bo.arms.design import Resampling, design
from sparse_bo.dictionary import (
    GreedyVarianceSampler,
    IPASampler,
    IVMSampler,
    KDPPSampler,
    KMeansPlusPlusSampler,
    LeverageSampler,
    RecursiveRLSSampler,
    UniformSampler,
    candidates_of,
    certify,
)
from sparse_bo.kernels import differentiable_cross
from sparse_bo.models import SparseGP
from sparse_bo.policies.comparators.thompson import fourier_features, quadrature_error, quadrature_frequencies, sample_weights
from sparse_bo.widths import BBKBTheory, Confidence, SBPETheory, estimate_rkhs_norm
from tests.acquisition.dense import BOUNDS, Ordinary, build, data
from tests.arms.builders import random_problem
from tests.builders import rbf_kernel

MODEL, OTHER, KERNEL = build(SparseGP), build(Ordinary), rbf_kernel(0.3)
PROBLEM = random_problem(3, a=60, pulls=20)
LOW = PROBLEM.with_prior(sweep_dtype=torch.float32)
IMPROVEMENT = qLogExpectedImprovement(MODEL, best_f=5.0)
OTHER_IMPROVEMENT = qLogExpectedImprovement(OTHER, best_f=5.0)
NOISY = qLogNoisyExpectedImprovement(MODEL, X_baseline=data()[0])
PENDING = torch.tensor([[0.2, 0.3], [0.9, 0.6]], dtype=torch.float64)
QUICK = {"ratio_threshold": 3.0, "max_q": 2, "raw_samples": 32, "num_restarts": 2}
SUM = (torch.tensor([0, 1]), torch.tensor([-1.0, -1.0], dtype=torch.float64), -1.2)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def batch(model: object = MODEL, **more: object) -> list[Tensor]:
    return list(optimize_batch(model, BOUNDS, **QUICK, **more))


def choice(**more: object) -> list[Tensor]:
    return list(optimize_batch(MODEL, choices=PROBLEM.prior.arms, ratio_threshold=9.0, max_q=4, **more))


def picks(problem=PROBLEM, **more: object) -> list[Tensor]:
    posterior = arm_posterior(problem.posterior(), width=2.0, stop_rule=StopRule("global", 4.0))
    made = pick_batch(posterior, width=2.0, stop_rule=StopRule("global", 4.0), max_q=20, **more)
    return [made.indices, posterior.means, posterior.leverages]


def dictionary(sampler: object) -> list[Tensor]:
    posterior, seen = PROBLEM.posterior(), PROBLEM.observations
    leverages, means = posterior.leverages_at(seen.rows), posterior.means_at(seen.rows)
    prior = PROBLEM.prior
    of = candidates_of(seen, leverages, covariance=prior.covariance, regularization=prior.regularization, means=means)
    made = sampler.sample(of, generator=generator())
    return [made.indices, made.probabilities]


def certified() -> list[Tensor]:
    prior = PROBLEM.prior
    found = certify(
        PROBLEM.observations,
        PROBLEM.dictionary,
        covariance=prior.covariance,
        regularization=prior.regularization,
        generator=generator(),
    )
    return [torch.tensor(found, dtype=torch.float64, device="cpu")]


def planned() -> list[Tensor]:
    resampling = Resampling(sampler=lambda done: RecursiveRLSSampler(size=5))
    made = design(PROBLEM.prior, 20, resampling=resampling, generator=generator())
    return [made.indices, made.dictionary.points]


def features() -> list[Tensor]:
    lengthscale = torch.tensor([0.4, 0.7], dtype=torch.float64, device="cpu")
    frequencies, weights = quadrature_frequencies(lengthscale, order=6)
    Z = fourier_features(PROBLEM.prior.arms, frequencies, weights)
    w = sample_weights(Z, Z[:, 0], noise=0.1, normal=torch.ones(Z.shape[-1], dtype=torch.float64, device="cpu"))
    return [Z, w, torch.tensor(quadrature_error(1.0 / lengthscale, order=6), dtype=torch.float64, device="cpu")]


def widths() -> list[Tensor]:
    width = BBKBTheory(rkhs_norm=2.0)
    gains = width.gains(PROBLEM.posterior().leverages)
    confidence = Confidence(
        pulls=9,
        information=float(gains.sum()),
        effective_dimension=3.0,
        regularization=0.1,
        kappa_squared=1.0,
        ratio_threshold=2.0,
    )
    noise = SBPETheory(rkhs_norm=1.0, noise_variance=0.1).noise_within(gains, share=0.1, regularization=0.1)
    X, y = PROBLEM.prior.arms[PROBLEM.pulled], PROBLEM.y
    estimate = estimate_rkhs_norm(X, y, covar_module=KERNEL, regularization=0.1)
    return [gains, noise, torch.tensor([width(confidence), *estimate], dtype=torch.float64, device="cpu")]


def used(function: AcquisitionFunction) -> AcquisitionFunction:
    function(data()[0][:3].unsqueeze(-2))
    return function


FUNCTIONS: dict[str, Callable[[], list[Tensor]]] = {
    "improvement": lambda: batch(acq_function=IMPROVEMENT),
    "improvement of another model": lambda: batch(OTHER, acq_function=OTHER_IMPROVEMENT),
    "noisy improvement": lambda: batch(acq_function=NOISY),
    "noisy improvement, pending": lambda: batch(acq_function=NOISY, X_pending=PENDING),
    "improvement of choices": lambda: choice(acq_function=IMPROVEMENT),
    "noisy improvement of choices": lambda: choice(acq_function=NOISY, X_pending=PENDING),
}
"""With base samples, starts and baselines of BoTorch."""
BUILT: dict[str, Callable[[], AcquisitionFunction]] = {
    "used": lambda: used(qLogExpectedImprovement(MODEL, best_f=torch.tensor(5.0, dtype=torch.float64))),
    "used, of another model": lambda: used(qUpperConfidenceBound(OTHER, beta=2.0)),
    "noisy": lambda: qLogNoisyExpectedImprovement(MODEL, X_baseline=data()[0], prune_baseline=False),
    "noisy, of another model": lambda: qLogNoisyExpectedImprovement(OTHER, X_baseline=data()[0], prune_baseline=False),
    "noisy, without a stored root": lambda: qLogNoisyExpectedImprovement(
        MODEL, X_baseline=data()[0], prune_baseline=False, cache_root=False
    ),
    "noisy, joint": lambda: qLogNoisyExpectedImprovement(MODEL, X_baseline=data()[0], prune_baseline=False, incremental=False),
    "noisy, pending": lambda: qLogNoisyExpectedImprovement(
        MODEL, X_baseline=data()[0], X_pending=PENDING, prune_baseline=False
    ),
    "without logarithm": lambda: qNoisyExpectedImprovement(MODEL, X_baseline=data()[0], prune_baseline=False),
}
"""Functions whose samples are drawn before :func:`optimize_batch` sees them."""
AT_EACH_CHANGE = {("half", "used"), ("double", "noisy")}
WORK: dict[str, Callable[[], list[Tensor]]] = {
    "upper confidence": batch,
    "fixed dictionary": lambda: batch(in_batch="fixed"),
    "constraints": lambda: batch(inequality_constraints=[SUM], fixed_features={0: 0.25}),
    "another model": lambda: batch(OTHER),
    "choices": choice,
    **FUNCTIONS,
    "arms": picks,
    "arms in low precision": lambda: picks(LOW),
    "arms by process": lambda: picks(in_batch="process"),
    "design": planned,
    "certificate": certified,
    "features": features,
    "widths": widths,
    "kernel": lambda: [differentiable_cross(KERNEL, PROBLEM.prior.arms, PROBLEM.prior.arms[:5])],
    **{
        type(sampler).__name__: lambda sampler=sampler: dictionary(sampler)
        for sampler in (
            LeverageSampler(max_size=4),
            RecursiveRLSSampler(size=4),
            UniformSampler(size=4),
            GreedyVarianceSampler(size=4),
            IPASampler(size=4),
            IVMSampler(size=4),
            KDPPSampler(size=4),
            KMeansPlusPlusSampler(size=4),
        )
    },
}


BOTORCHS = ("upper confidence", "fixed dictionary", "constraints", "another model", *FUNCTIONS)
"""BoTorch's searches and models make tensors of their own on the default device, and bring them back."""


@contextmanager
def default(dtype: torch.dtype | None = None, device: str | None = None) -> Iterator[None]:
    before = torch.get_default_dtype()
    try:
        if dtype is not None:
            torch.set_default_dtype(dtype)
        with torch.device(device) if device is not None else torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=["double", "half"])
def test_the_default_dtype_changes_nothing(name: str, dtype: torch.dtype) -> None:
    with default(torch.float32):
        expected = WORK[name]()
    with default(dtype):
        got = WORK[name]()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(got, expected, strict=True))
    assert all(tensor.dtype in (torch.float64, torch.int64) for tensor in got)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.NumericsWarning")  # BoTorch prefers the logarithm
@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        pytest.param(dtype, name, id=f"{kind}-{name}", marks=[] if (kind, name) in AT_EACH_CHANGE else pytest.mark.slow)
        for kind, dtype in (("double", torch.float64), ("half", torch.float16))
        for name in BUILT
    ],
)
def test_nor_does_the_one_under_which_a_function_was_built(name: str, dtype: torch.dtype) -> None:
    found, samples = [], []
    for built, later in ((torch.float32, torch.float32), (dtype, torch.float32), (dtype, dtype)):
        with default(built), torch.random.fork_rng():
            torch.manual_seed(0)
            function = BUILT[name]()
        with default(later):
            found.append(batch(function.model, acq_function=function))
        if function.sampler is not None:  # else the function has drawn none
            samples.append(function.sampler.base_samples)
    first, *others = found
    assert all(torch.equal(ours, theirs) for other in others for ours, theirs in zip(other, first, strict=True))
    assert not samples or not torch.equal(samples[0], samples[1])  # the function itself is left as it was


@pytest.mark.parametrize("name", [name for name in WORK if name not in BOTORCHS])
def test_no_tensor_is_made_on_the_default_device(name: str) -> None:
    """On the meta device a tensor has no values: any use of one raises."""
    expected = WORK[name]()
    with default(device="meta"):
        got = WORK[name]()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(got, expected, strict=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_global_generator_neither_matters_nor_moves(name: str) -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        found.append(FUNCTIONS[name]())
        assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))
