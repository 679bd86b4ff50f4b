"""Bayesian optimisation of a box through BoTorch: fit a surrogate to chosen observations, maximise an acquisition function.

One mechanism, of which GP-UCB, GSSBO, RSSBO and others are choices of parts: which observations the surrogate sees, which
surrogate it is, which acquisition function is maximised. Surrogate and acquisition function live in the unit cube.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound, qUpperConfidenceBound
from botorch.exceptions.errors import ModelFittingError, UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.optim import optimize_acqf
from botorch.posteriors import Posterior
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import ExactGP
from torch import Tensor

from sparse_bo.domains import Box, Domain
from sparse_bo.errors import NumericalWarning
from sparse_bo.models import SparseGP
from sparse_bo.models.parameters import parameters_of, same_parameters, set_parameters, shapes
from sparse_bo.policies.protocol import Delegated, Frozen, Mechanism, Proposal, Wait, box_of
from sparse_bo.policies.states import BoxState, Report, initial_box_state, told
from sparse_bo.policies.timing import Stopwatch
from sparse_bo.seeding import seeded
from sparse_bo.validation import check_count, check_positive

Surrogate = Callable[[Tensor, Tensor], Model]
"""From inputs in the unit cube (``n x d``) and observations (``n x 1``) to a model that is not fitted yet."""
Fit = Callable[[Any], Any]
"""Fits a model in place."""
Acquisition = Callable[[Any, Tensor, Tensor], AcquisitionFunction]
"""From a fitted model, its inputs in the unit cube (``n x d``) and observations (``n``) to an acquisition function there."""


def matern_gp(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """Return BoTorch's exact GP with a Matérn-5/2 kernel, one lengthscale per input, BoTorch's priors, outputs standardised."""
    kernel = get_covar_module_with_dim_scaled_prior(ard_num_dims=X.shape[-1], use_rbf_kernel=False)
    return SingleTaskGP(X, Y, covar_module=kernel)


def sparse_matern_gp(X: Tensor, Y: Tensor, **options: Any) -> SparseGP:
    """Return :class:`sparse_bo.SparseGP` with the kernel of :func:`matern_gp`."""
    kernel = get_covar_module_with_dim_scaled_prior(ard_num_dims=X.shape[-1], use_rbf_kernel=False)
    return SparseGP(X, Y, covar_module=kernel, **options)


def fit_likelihood(model: Any, *, tolerance: float | None = None) -> None:
    """Fit a GP by its exact marginal likelihood and priors (``fit_gpytorch_mll``).

    Args:
        model: With ``likelihood``; fitted in place.
        tolerance: Stop when a step improves the likelihood per observation by less than this share. Default: BoTorch's.
    """
    options = {} if tolerance is None else {"options": {"ftol": tolerance}}
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs=options)


class InBox(Model):  # type: ignore[misc]  # the base class ships no types
    """A model of the unit cube, called with points of a box."""

    def __init__(self, model: Model, box: Box) -> None:
        super().__init__()
        self.model, self.box = model, box

    @property
    def num_outputs(self) -> int:
        """As the model inside."""
        return self.model.num_outputs

    @property
    def batch_shape(self) -> torch.Size:
        """As the model inside."""
        return self.model.batch_shape

    def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> Posterior:
        """Return the posterior at points of the box."""
        return self.model.posterior(self.box.to_unit(X), *args, **kwargs)


WARM_TOLERANCE = 1e-7
"""Of a fit that starts from the last parameters. Noise-free data have long flat valleys: on 102 points of Hartmann-6 a fit
ends within 0.002 of the log likelihood per point that BoTorch's tolerance reaches, in a quarter of the steps."""

KEPT = ("X", "y", "width", "round", "subset", "buffer", "first_seconds")
"""Fields of a state that are frozen as they are."""


@dataclass(frozen=True, eq=False)
class SurrogateState(BoxState):
    """What a :class:`SurrogatePolicy` knows between two batches. ``model`` is an :class:`InBox`. A value."""

    model: Model | None = None
    """See :attr:`sparse_bo.policies.states.BoxState.model`."""
    width: float | None = None
    """Posterior standard deviations in the default acquisition function."""
    subset: Tensor | None = None
    """Rows of ``X`` that the model was fitted to, ascending; ``None`` before there is a model."""
    buffer: int | None = None
    """M: how many observations the model may see; ``None`` as long as there is no limit."""
    first_seconds: tuple[float, ...] = ()
    """Seconds of the first updates with a model, of a buffer that goes by the clock."""

    @property
    def surrogate(self) -> Model | None:
        """The model of the unit cube."""
        return None if self.model is None else self.model.model

    def without_results(self) -> SurrogateState:
        """See :meth:`sparse_bo.policies.states.State.without_results`."""
        return replace(self, round=self.round + 1, seconds={})

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.states.State.report`; the dictionary is the subset."""
        report = super().report()
        return report if self.subset is None else replace(report, dictionary_size=len(self.subset))


@dataclass(frozen=True, kw_only=True, eq=False)
class SurrogatePolicy(ABC):
    """The settings that policies through BoTorch share.

    Attributes:
        initial_design: n₀ points of a scrambled Sobol sequence before the first model.
        batch_size: Points per batch; more than one needs an acquisition function that knows pending points.
        width: Posterior standard deviations in the default acquisition function, UCB (BoTorch's ``beta`` is its square).
        acquisition: ``(model, X, y) ->`` a BoTorch acquisition function; inputs and bounds are those of the unit cube.
            Default: ``UpperConfidenceBound``, and ``qUpperConfidenceBound`` where several points are out at a time.
        surrogate: ``(X, Y) ->`` a BoTorch model, ``n x d`` in the unit cube and ``n x 1``. Default: :func:`matern_gp`.
        fit: Fits that model in place. Default: :func:`fit_likelihood`, the exact marginal likelihood.
        warm_start: Start each fit from the parameters of the last model instead of the surrogate's initial ones; the default
            fit then stops at :data:`WARM_TOLERANCE`.
        num_restarts: Of ``optimize_acqf``.
        raw_samples: Of ``optimize_acqf``.
    """

    initial_design: int = 20
    batch_size: int = 1
    width: float = 2.0
    acquisition: Acquisition | None = None
    surrogate: Surrogate | None = None
    fit: Fit | None = None
    warm_start: bool = True
    num_restarts: int = 4
    raw_samples: int = 128

    @property
    @abstractmethod
    def name(self) -> str:
        """Name for reports."""

    def __post_init__(self) -> None:
        for name in ("initial_design", "batch_size", "num_restarts", "raw_samples"):
            check_count(name, getattr(self, name))
        if self.raw_samples < self.num_restarts:
            raise ValueError(f"expected raw_samples >= num_restarts, got {self.raw_samples} and {self.num_restarts}")
        check_positive("width", self.width)
        for name in ("acquisition", "surrogate", "fit"):
            part = getattr(self, name)
            if part is not None and not callable(part):
                raise TypeError(f"expected {name} to be a function or None, got {type(part).__name__}")

    def on(self, domain: Domain) -> Mechanism[Any]:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        self.init(domain)
        return Delegated(self, domain)

    def init(self, domain: Domain) -> SurrogateState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        empty = initial_box_state(box_of(domain, policy=self.name))
        return SurrogateState(empty.box, empty.X, empty.y, width=self.width)

    def ask(self, state: SurrogateState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return points of the initial design until it is complete, then maximisers of the acquisition function.

        Draws once for the scrambling, or once to seed BoTorch.
        """
        out = len(pending)
        if state.surrogate is None:
            missing = self.initial_design - len(state.y)
            if missing <= out:
                return Wait(missing)
            return Proposal(state.box.sobol(min(max_q, missing - out), generator=generator))
        q = min(max_q, self.batch_size - out)
        if q < 1:
            return Wait(1 + out - self.batch_size)
        with seeded(generator):
            best = self._candidates(state, q, pending)
        return Proposal(state.box.from_unit(best.detach().clamp(0.0, 1.0)))

    def tell(self, state: SurrogateState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> SurrogateState:
        """Observe; choose the observations that the model sees; fit it. Draws for the choice, then once to seed BoTorch."""
        watch = Stopwatch()
        with watch.phase("observe"):
            base = told(state, picks, y)
            assert isinstance(base, SurrogateState)
        if len(base.y) < self.initial_design:
            return replace(base, seconds=watch.seconds)
        with watch.phase("sample"):
            subset = self._subset(base, len(picks), generator)
        with watch.phase("learn"), seeded(generator):
            model = self._fitted(base, subset)
        return replace(base, model=InBox(model, base.box), subset=subset, seconds=watch.seconds)

    def freeze(self, state: SurrogateState) -> Frozen | None:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`. O(n d), and the model's parameters and buffers.

        GPs are what data, parameters and buffers make them. A ``surrogate`` of your own may be more (fully Bayesian models
        are, and what is no ``gpytorch.models.ExactGP``): such a run has no snapshots, and a resume fits all rounds again.
        """
        frozen: dict[str, Any] = {name: getattr(state, name) for name in KEPT}
        if state.surrogate is None:
            return frozen
        model, held = state.surrogate, _held(state.surrogate)
        if self.surrogate is not None:
            with seeded(torch.Generator()):
                anew = _held(self._unfitted(state, self._known(state)))
            if not isinstance(model, ExactGP) or shapes(anew) != shapes(held) or len(model.batch_shape):
                return None
        return frozen | {f"model.{name}": value.detach() for name, value in held.items()}

    def thaw(self, domain: Domain, frozen: Frozen) -> SurrogateState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. The model gets its parameters back and is not fitted."""
        empty = self.init(domain)
        arrays: dict[str, Any] = {name: v.to(empty.X.device) if isinstance(v, Tensor) else v for name, v in frozen.items()}
        state = replace(empty, **{name: arrays[name] for name in KEPT})
        state = replace(state, first_seconds=tuple(state.first_seconds))
        if state.subset is None:
            return state
        with seeded(torch.Generator()), torch.no_grad():
            model = self._unfitted(state, self._known(state))
            for name, part in _held(model).items():
                if not torch.equal(part, arrays[f"model.{name}"]):
                    part.copy_(arrays[f"model.{name}"])
        model.eval()
        return replace(state, model=InBox(model, state.box))

    def _subset(self, state: SurrogateState, newest: int, generator: torch.Generator) -> Tensor:
        """Return the rows that the next model sees, ascending; ``state`` has all data and the last model."""
        return torch.arange(len(state.y), device=state.y.device)

    def _known(self, state: SurrogateState) -> Tensor:
        """Return the rows that the model in ``state`` is conditioned on, ascending."""
        assert state.subset is not None
        return state.subset

    def _default_surrogate(self, X: Tensor, Y: Tensor) -> Model:
        """Return the model of ``surrogate=None``."""
        return matern_gp(X, Y)

    def _candidates(self, state: SurrogateState, q: int, pending: Tensor) -> Tensor:
        """Return the next ``q x d`` points in the unit cube; the global generators are seeded."""
        best, _ = optimize_acqf(
            self._acquisition(state, q, pending),
            bounds=state.box.unit_bounds,
            q=q,
            num_restarts=self.num_restarts,
            raw_samples=self.raw_samples,
            sequential=q > 1,
        )
        return best

    def _acquisition(self, state: SurrogateState, q: int, pending: Tensor) -> AcquisitionFunction:
        model = state.surrogate
        alone = q == 1 and not len(pending)
        if self.acquisition is not None:
            known = self._known(state)
            function = self.acquisition(model, state.box.to_unit(state.X[known]), state.y[known])
            if not isinstance(function, AcquisitionFunction):
                raise TypeError(f"expected acquisition to return an AcquisitionFunction, got {type(function).__name__}")
        elif alone:
            function = UpperConfidenceBound(model, beta=self.width**2)
        else:
            function = qUpperConfidenceBound(model, beta=self.width**2)
        if len(pending):
            try:
                function.set_X_pending(state.box.to_unit(pending))
            except UnsupportedError as error:
                raise ValueError(
                    f"{type(function).__name__} knows no pending points; use a Monte-Carlo acquisition function or batch_size=1"
                ) from error
        return function

    def _fitted(self, state: SurrogateState, subset: Tensor) -> Model:
        """Return the next model; ``state`` has all data and the last model."""
        model = self._unfitted(state, subset)
        warm = self.warm_start and state.surrogate is not None and same_parameters(state.surrogate, model)
        if warm:
            set_parameters(model, parameters_of(state.surrogate))
        self._learn(model, warm=warm)
        model.eval()
        return model

    def _unfitted(self, state: SurrogateState, rows: Tensor) -> Model:
        """Return a new model of some observations."""
        make = self.surrogate or self._default_surrogate
        model = make(state.box.to_unit(state.X[rows]), state.y[rows].unsqueeze(-1))
        if not isinstance(model, Model):
            raise TypeError(f"expected surrogate to return a BoTorch model, got {type(model).__name__}")
        return model

    def _learn(self, model: Any, *, warm: bool) -> None:
        """Fit a model in place, or warn that it could not be."""
        try:
            if self.fit is None:
                fit_likelihood(model, tolerance=WARM_TOLERANCE if warm else None)
            else:
                self.fit(model)
        except ModelFittingError as error:
            warnings.warn(
                f"hyper-parameters could not be learned from {len(model.train_targets)} observations ({error}); "
                "the model goes on with those it started from",
                NumericalWarning,
                stacklevel=2,
            )


def _held(model: Model) -> dict[str, Tensor]:
    """Return a model's parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@dataclass(frozen=True, kw_only=True, eq=False)
class BoTorchUCB(SurrogatePolicy):
    """GP-UCB on a box (Srinivas et al. 2010) as a BoTorch user writes it: an exact GP on all observations, O(n³) per round.

    Settings: :class:`SurrogatePolicy`. The comparator of GSSBO: by default the standard loop, which learns the
    hyper-parameters anew every round with BoTorch's own settings.
    """

    warm_start: bool = False

    @property
    def name(self) -> str:
        """``"botorch-ucb"``."""
        return "botorch-ucb"
