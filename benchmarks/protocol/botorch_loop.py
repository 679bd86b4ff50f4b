"""BoTorch's closed loop, and TuRBO-1 (Eriksson et al. 2019), with the settings that BoTorch's tutorials and defaults have."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
from botorch.acquisition.objective import GenericMCObjective
from botorch.exceptions.errors import ModelFittingError
from botorch.exceptions.warnings import BotorchWarning
from botorch.fit import fit_gpytorch_mll
from botorch.generation import MaxPosteriorSampling
from botorch.generation.sampling import ConstrainedMaxPosteriorSampling
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from botorch.optim.fit import fit_gpytorch_mll_torch
from gpytorch import settings
from gpytorch.constraints import Interval
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor
from torch.quasirandom import SobolEngine

from sparse_bo.problems.builtin import Problem

from .ask_tell import run_peer
from .problems import Task
from .trace import Trace

__all__ = ["LARGE", "SCBO", "BoTorchLoop", "OutcomesLoop", "Turbo", "fit", "run_botorch"]

LARGE = 1000
"""Budgets above are taken in batches of 50."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what the libraries say of fits and searches that they repeat by themselves."""
    with warnings.catch_warnings():
        for kind in (BotorchWarning, NumericalWarning, RuntimeWarning):
            warnings.simplefilter("ignore", kind)
        yield


def fit(model: SingleTaskGP) -> SingleTaskGP:
    """Fit a model by L-BFGS; where all attempts fail, which would end a tutorial's loop, by 50 steps of Adam, as TuRBO does."""
    likelihood = ExactMarginalLogLikelihood(model.likelihood, model)
    with _quiet():
        try:
            fit_gpytorch_mll(likelihood)
        except ModelFittingError:
            fit_gpytorch_mll_torch(likelihood, step_limit=50)
            likelihood.eval()
    return model


class BoTorchLoop:
    """``SingleTaskGP`` on all data and ``qLogNoisyExpectedImprovement``, 10 points at a time, 50 of a large budget.

    Sobol points first, two per input and no fewer than a batch; then kernel, priors and standardisation of the model, samples
    and pruning of the acquisition function are BoTorch's defaults, which its batches are optimised greedily by, as Ax does,
    with the tutorials' 10 restarts from 512 points. It recommends the evaluated point with the highest posterior mean.
    """

    def __init__(self, dims: int, budget: int, seed: int) -> None:
        self._batch = 50 if budget > LARGE else 10
        self._bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, dims)
        self._first = SobolEngine(dims, scramble=True, seed=seed).draw(max(2 * dims, self._batch), dtype=torch.float64)
        self._X, self._y = torch.empty(0, dims, dtype=torch.float64), torch.empty(0, dtype=torch.float64)
        self._model: SingleTaskGP | None = None

    def ask(self, left: int) -> Tensor:
        """See :class:`protocol.ask_tell.Peer`."""
        if self._model is None:
            return self._first[:left]
        with _quiet():
            improvement = qLogNoisyExpectedImprovement(self._model, self._X, prune_baseline=True)
            X, _ = optimize_acqf(
                improvement, self._bounds, q=min(self._batch, left), num_restarts=10, raw_samples=512, sequential=True
            )
        return X

    def tell(self, X: Tensor, y: Tensor) -> None:
        """See :class:`protocol.ask_tell.Peer`. Fits the model."""
        self._X, self._y = torch.cat([self._X, X]), torch.cat([self._y, y])
        self._model = fit(SingleTaskGP(self._X, self._y.unsqueeze(-1)))

    def recommend(self) -> Tensor | None:
        """See :class:`protocol.ask_tell.Peer`."""
        return None if self._model is None else _highest(self._model, self._X)[1]


class OutcomesLoop:
    """The loop of :class:`BoTorchLoop` with measured constraints or several objectives, in batches of 10 (50 beyond 1,000).

    Args:
        dims: Inputs of the unit cube.
        budget: Evaluations.
        seed: Of the first points.
        objectives: Number of outcomes to maximise; the later ones are constraints, met from 0 on.
        reference: Reference point of several objectives.
    """

    def __init__(self, dims: int, budget: int, seed: int, *, objectives: int, reference: Tensor | None) -> None:
        self._bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, dims)
        self._first = SobolEngine(dims, scramble=True, seed=seed).draw(max(2 * dims, 10), dtype=torch.float64)[:budget]
        self.X, self._Y = torch.empty(0, dims, dtype=torch.float64), torch.empty(0, dtype=torch.float64)
        self._objectives, self._reference, self._batch = objectives, reference, 50 if budget > LARGE else 10
        self._model: SingleTaskGP | None = None

    def ask(self, left: int) -> Tensor:
        """Return the next points."""
        if self._model is None:
            return self._first
        limits = [partial(_violated, column=j) for j in range(self._objectives, self._Y.shape[1])] or None
        with _quiet():
            if self._reference is None:
                improvement = qLogNoisyExpectedImprovement(
                    self._model,
                    self.X,
                    objective=GenericMCObjective(lambda Z, X=None: Z[..., 0]),
                    constraints=limits,
                    prune_baseline=True,
                )
            else:
                improvement = qLogNoisyExpectedHypervolumeImprovement(
                    self._model,
                    self._reference,
                    self.X,
                    objective=IdentityMCMultiOutputObjective(outcomes=list(range(self._objectives))),
                    constraints=limits,
                    prune_baseline=True,
                )
            q = min(self._batch, left)
            X, _ = optimize_acqf(improvement, self._bounds, q, num_restarts=10, raw_samples=512, sequential=True)
        return X

    def tell(self, X: Tensor, Y: Tensor) -> None:
        """Observe ``q x m`` outcomes and fit a model of each."""
        self.X, self._Y = torch.cat([self.X, X]), torch.cat([self._Y, Y])
        self._model = fit(SingleTaskGP(self.X, self._Y))


def _violated(Z: Tensor, column: int) -> Tensor:
    return -Z[..., column]


def run_botorch(task: Task, trace: Trace, seed: int) -> None:
    """Run BoTorch's closed loop until the budget is spent: :class:`BoTorchLoop` on a box, :func:`_over_arms` on arms.

    Raises:
        TimeOver: If its time is over before the budget is.
    """
    if isinstance(task.problem, Problem):
        _over_arms(task.problem.arms, trace, seed)
    else:
        run_peer(BoTorchLoop, task, trace, seed)


def _over_arms(arms: Tensor, trace: Trace, seed: int) -> None:
    """Run the loop of :class:`BoTorchLoop` over ``a x d`` arms: random ones first, then batches by ``optimize_acqf_discrete``.

    It recommends the evaluated arm with the highest posterior mean.
    """
    torch.manual_seed(seed)
    low, high = arms.amin(dim=0), arms.amax(dim=0)
    U, batch = (arms - low) / (high - low), 50 if trace.budget > LARGE else 10
    told, y = torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.float64)
    picks = torch.randperm(len(arms))[: max(2 * arms.shape[1], batch)]
    while trace.left:
        picks = picks[: trace.left]
        told, y = torch.cat([told, picks]), torch.cat([y, trace.evaluate(picks)])
        model = fit(SingleTaskGP(U[told], y.unsqueeze(-1)))
        trace.offers(lambda model=model, told=told: told[_place(model, U[told])])
        if not trace.left:
            return
        with _quiet(), torch.no_grad():
            improvement = qLogNoisyExpectedImprovement(model, U[told], prune_baseline=True)
            X, _ = optimize_acqf_discrete(improvement, min(batch, trace.left), U, max_batch_size=len(U))
        picks = torch.cdist(X, U).argmin(dim=-1)


def _place(model: SingleTaskGP, X: Tensor) -> Tensor:
    """Return which of some points has the highest posterior mean, a scalar."""
    with torch.no_grad(), _quiet():
        return model.posterior(X).mean.squeeze(-1).argmax()


def _highest(model: SingleTaskGP, X: Tensor) -> tuple[float, Tensor]:
    """Return the highest posterior mean over points, in the model's unit, and its point."""
    with torch.no_grad(), _quiet():
        means = model.posterior(X).mean.squeeze(-1)
    return float(means.max()), X[means.argmax()]


def _turbo_model(X: Tensor, y: Tensor, scale: Standardize | None = None) -> SingleTaskGP:
    """Fit a model of ``n`` values, standardised or with a transform that does it, by TuRBO's kernel and limits."""
    likelihood = GaussianLikelihood(noise_constraint=Interval(1e-8, 1e-3))
    kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=X.shape[1], lengthscale_constraint=Interval(0.005, 4.0)))
    model = SingleTaskGP(X, y.unsqueeze(-1), covar_module=kernel, likelihood=likelihood, outcome_transform=scale)
    with settings.max_cholesky_size(float("inf")):
        return fit(model)


@dataclass
class _Region:
    """A trust region: its side, and how many batches in a row have improved, or have not."""

    patience: int
    side: float = 0.8
    better: int = 0
    worse: int = 0

    WIDEST, NARROWEST, STREAK = 1.6, 0.5**7, 10

    def learn(self, *, improved: bool) -> None:
        """Double or halve the side after a streak."""
        self.better, self.worse = (self.better + 1, 0) if improved else (0, self.worse + 1)
        if self.better == self.STREAK:
            self.side, self.better = min(2.0 * self.side, self.WIDEST), 0
        elif self.worse == self.patience:
            self.side, self.worse = self.side / 2.0, 0

    @property
    def spent(self) -> bool:
        """Whether it is too small to go on with."""
        return self.side < self.NARROWEST


class Turbo:
    """TuRBO-1 with Thompson sampling as in BoTorch's tutorial: 4 points at a time, 50 of a large budget.

    A Matérn-5/2 kernel with a lengthscale per input in [0.005, 4], noise variance at most 10⁻³ of the standardised values'; the
    region begins anew with fresh Sobol points, two per input, once its side is below 2⁻⁷. It recommends, of the best points of
    all regions by their posterior means, the one where that mean is highest.
    """

    def __init__(self, dims: int, budget: int, seed: int) -> None:
        self._batch = 50 if budget > LARGE else 4
        self._dims, self._seed, self._regions = dims, seed, 0
        self._elsewhere: tuple[float, Tensor | None] = (-torch.inf, None)
        self._begin()

    def ask(self, left: int) -> Tensor:
        """See :class:`protocol.ask_tell.Peer`."""
        if self._region is None:
            return self._first[: min(left, len(self._first))]
        if self._region.spent:
            self._elsewhere = max(self._elsewhere, self._found(), key=lambda found: found[0])
            self._begin()
            return self._first[:left]
        return self._sampled(min(self._batch, left))

    def tell(self, X: Tensor, y: Tensor) -> None:
        """See :class:`protocol.ask_tell.Peer`. Fits the model."""
        if self._region is None:
            self._region = _Region(patience=math.ceil(max(4.0, float(self._dims)) / self._batch))
        else:
            best = float(self._y.max())
            self._region.learn(improved=float(y.max()) > best + 1e-3 * abs(best))
        self._X, self._y = torch.cat([self._X, X]), torch.cat([self._y, y])
        if len(self._y) > 1:  # else the budget ends with the first point of a region
            scaled = (self._y - self._y.mean()) / self._y.std()
            self._model = _turbo_model(self._X, scaled)

    def recommend(self) -> Tensor | None:
        """See :class:`protocol.ask_tell.Peer`."""
        return max(self._elsewhere, self._found(), key=lambda found: found[0])[1]

    def _begin(self) -> None:
        self._regions += 1
        seed = 1000 * self._seed + self._regions
        self._first = SobolEngine(self._dims, scramble=True, seed=seed).draw(2 * self._dims, dtype=torch.float64)
        self._X, self._y = torch.empty(0, self._dims, dtype=torch.float64), torch.empty(0, dtype=torch.float64)
        self._region: _Region | None = None
        self._model: SingleTaskGP | None = None

    def _found(self) -> tuple[float, Tensor | None]:
        """Return the highest posterior mean of the present region, in the objective's unit, and its point."""
        if self._model is None:
            return -torch.inf, None
        mean, point = _highest(self._model, self._X)
        return float(self._y.mean() + self._y.std() * mean), point

    def _sampled(self, q: int) -> Tensor:
        """Return the maxima of ``q`` draws of the posterior over candidates in the region around the highest value."""
        assert self._model is not None
        assert self._region is not None
        centre = self._X[self._y.argmax()]
        candidates = self._candidates(centre, min(5000, max(2000, 200 * self._dims)))
        with torch.no_grad(), _quiet(), settings.max_cholesky_size(float("inf")):
            drawn: Tensor = MaxPosteriorSampling(self._model, replacement=False)(candidates, num_samples=q)
        return drawn

    def _candidates(self, centre: Tensor, count: int) -> Tensor:
        """Return points of the region: its sides are proportional to the lengthscales, its side is their geometric mean."""
        assert self._model is not None
        assert self._region is not None
        lengthscales = self._model.covar_module.base_kernel.lengthscale.detach().flatten()
        return _perturbed(centre, 0.5 * self._region.side * (lengthscales.log() - lengthscales.log().mean()).exp(), count)


class SCBO:
    """SCBO (Eriksson & Poloczek 2021) as in BoTorch's tutorial: :class:`Turbo` for one objective with measured constraints.

    A model of every outcome, a region with equal sides around the best feasible point (before there is one, around that with
    the least total violation), 4 points at a time (50 beyond 1,000 evaluations) by constrained posterior samples over 2,000
    candidates. As :class:`Turbo` it begins anew with two Sobol points per input once the region's side is below 2⁻⁷, where the
    tutorial ends.
    """

    CANDIDATES = 2000

    def __init__(self, dims: int, budget: int, seed: int) -> None:
        self._batch, self._dims, self._seed, self._regions = 50 if budget > LARGE else 4, dims, seed, 0
        self._begin()

    def ask(self, left: int) -> Tensor:
        """Return the next points of the unit cube."""
        if self._region is not None and self._region.spent:
            self._begin()
        if self._region is None:
            return self._first[:left]
        model, *limits = (_turbo_model(self._X, column, Standardize(m=1)) for column in self._Y.unbind(dim=1))
        centre = self._X[_first_by(self._Y)]
        candidates = _perturbed(centre, torch.full_like(centre, 0.5 * self._region.side), self.CANDIDATES)
        with torch.no_grad(), _quiet(), settings.max_cholesky_size(float("inf")):
            sampling = ConstrainedMaxPosteriorSampling(model, ModelListGP(*limits), replacement=False)
            drawn: Tensor = sampling(candidates, num_samples=min(self._batch, left))
        return drawn

    def tell(self, X: Tensor, Y: Tensor) -> None:
        """Observe ``q x m`` outcomes: one to be maximised, then violations, feasible up to 0."""
        if self._region is None:
            self._region = _Region(patience=math.ceil(max(4.0, float(self._dims)) / self._batch))
        else:
            before, after = self._Y[_first_by(self._Y)], Y[_first_by(Y)]
            if _total_violation(before) > 0.0:
                improved = _total_violation(after) < _total_violation(before)
            else:
                improved = _total_violation(after) == 0.0 and float(after[0]) > float(before[0] + 1e-3 * before[0].abs())
            self._region.learn(improved=improved)
        self._X, self._Y = torch.cat([self._X, X]), torch.cat([self._Y, Y])

    def _begin(self) -> None:
        self._regions += 1
        seed = 1000 * self._seed + self._regions
        self._first = SobolEngine(self._dims, scramble=True, seed=seed).draw(2 * self._dims, dtype=torch.float64)
        self._X, self._Y = torch.empty(0, self._dims, dtype=torch.float64), torch.empty(0, dtype=torch.float64)
        self._region: _Region | None = None


def _total_violation(y: Tensor) -> float:
    """Return the sum of the violations of one point's outcomes (``m``)."""
    return float(y[1:].clamp_min(0.0).sum())


def _first_by(Y: Tensor) -> int:
    """Return the row with the least total violation, of several feasible ones the one with the highest objective."""
    rows = [(_total_violation(y), -float(y[0])) for y in Y]
    return rows.index(min(rows))


def _perturbed(centre: Tensor, half: Tensor, count: int) -> Tensor:
    """Return points within ``half`` (``d``) of a centre that differ from it in about 20 inputs at most, ``count x d``."""
    d = len(centre)
    low, high = (centre - half).clamp(0.0, 1.0), (centre + half).clamp(0.0, 1.0)
    inside = low + (high - low) * SobolEngine(d, scramble=True).draw(count, dtype=torch.float64)
    moved = torch.rand(count, d, dtype=torch.float64) <= min(20.0 / d, 1.0)
    one = torch.randint(d, (count, 1))
    still = ~moved.any(dim=1, keepdim=True)
    moved |= still & (torch.arange(d) == one)
    return torch.where(moved, inside, centre)
