"""The loop of policies with a BoTorch model: fit it to a buffer of the observations, propose points, observe.

GP-UCB, GSSBO, RSSBO, Thompson sampling and others are choices of its parts: the buffer
(:class:`~sparse_bo.policies.subset.subsets.Buffer`), the model (:mod:`~sparse_bo.policies.subset.surrogate_models`), and the
acquisition function. The parts work in the unit cube.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from botorch.acquisition import AcquisitionFunction, qUpperConfidenceBound
from botorch.exceptions.errors import ModelFittingError, UnsupportedError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from gpytorch.models import ExactGP
from torch import Tensor

from sparse_bo.domains import Box, Domain
from sparse_bo.errors import NumericalWarning
from sparse_bo.gp.observations import in_range
from sparse_bo.models import fit_to_rows
from sparse_bo.models.sparse_gp.state import parameters_of, same_parameters, set_parameters, shapes
from sparse_bo.policies.failures import Refusal
from sparse_bo.policies.persistence import freeze_fields, part_of, thaw_fields, under
from sparse_bo.policies.protocol import Frozen, Mechanism, Proposal, Wait, box_of, design_batch
from sparse_bo.policies.states import Stopwatch, design_points
from sparse_bo.policies.subset.subsets import Buffer, InBox, SurrogateState
from sparse_bo.policies.subset.surrogate_models import (
    Fitter,
    Learning,
    MakeModel,
    fit_likelihood,
    in_standard_units,
    subset_errors,
    upper_confidence_bound,
)
from sparse_bo.seeding import seeded
from sparse_bo.validation import check_choice, check_count, check_flag
from sparse_bo.widths import SurrogateConfidence, SurrogateWidth
from sparse_bo.widths.multipliers import check_surrogate_width

Acquisition = Callable[[Any, Tensor, Tensor], AcquisitionFunction]
"""From a fitted model, its inputs in the unit cube (``n x d``) and observations (``n``) to an acquisition function there."""
ConditionOn = Literal["subset", "all"]
"""Observations of the posterior: the subset of the hyper-parameters, or all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SurrogateSettings:
    """Settings of the initial design, the batches, the model and its fit, the acquisition function and its optimiser.

    Attributes:
        initial_design: n₀ points of a scrambled Sobol sequence before the first model.
        batch_size: Points per batch; more than one needs an acquisition function with pending points.
        width: Posterior standard deviations in the default acquisition function, UCB (BoTorch's ``beta`` is its square): a
            number, or a width that grows with the observations: :class:`sparse_bo.widths.SrinivasCompact` (GP-UCB's theorem),
            :class:`sparse_bo.widths.GSSBOTheory` (GSSBO's) or your own :class:`sparse_bo.widths.SurrogateWidth`.
        acquisition: ``(model, X, y) ->`` a BoTorch acquisition function; inputs and bounds are those of the unit cube.
            Default: ``UpperConfidenceBound``, or ``qUpperConfidenceBound`` with pending points.
        surrogate: ``(X, Y) ->`` a BoTorch model, ``n x d`` in the unit cube and ``n x 1``. Default: a GP with a Matérn-5/2
            kernel, :func:`sparse_bo.policies.subset.surrogate_models.exact_gp`.
        learning: Estimate of the default surrogate's hyper-parameters. ``"map"``: BoTorch's priors, no output scale;
            ``"likelihood"``: maximum likelihood with an output scale, as in the GSSBO paper.
        fitter: Fits the model in place. Default: :func:`sparse_bo.policies.subset.surrogate_models.fit_likelihood`, the exact
            marginal likelihood.
        warm_start: Start each fit from the parameters of the last model instead of the surrogate's initial ones; the default
            fit then has a looser tolerance.
        num_restarts: Argument of ``optimize_acqf``.
        raw_samples: Argument of ``optimize_acqf``.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If one is out of range.
    """

    name: ClassVar[str]
    """Name for reports."""

    initial_design: int = 20
    batch_size: int = 1
    width: float | SurrogateWidth = 2.0
    acquisition: Acquisition | None = None
    surrogate: MakeModel | None = None
    learning: Learning = "map"
    fitter: Fitter | None = None
    warm_start: bool = True
    num_restarts: int = 4
    raw_samples: int = 128

    def __post_init__(self) -> None:
        for name in ("initial_design", "batch_size", "num_restarts", "raw_samples"):
            check_count(name, getattr(self, name))
        if self.raw_samples < self.num_restarts:
            raise ValueError(f"expected raw_samples >= num_restarts, got {self.raw_samples} and {self.num_restarts}")
        check_flag("warm_start", self.warm_start)
        check_surrogate_width(self.width)
        check_choice("learning", self.learning, ("map", "likelihood"))
        for name in ("acquisition", "surrogate", "fitter"):
            part = getattr(self, name)
            if part is not None and not callable(part):
                raise TypeError(f"expected {name} to be a function or None, got {type(part).__name__}")

    def loop(self, domain: Domain, make: MakeModel, **parts: Any) -> SurrogateLoop:
        """Return the loop of these settings on a box: ``make`` makes the default model, ``parts`` are other fields."""
        box = box_of(domain, policy=self.name).double()
        return SurrogateLoop(box=box, settings=self, make=self.surrogate or make, **parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class SurrogateLoop(Mechanism[SurrogateState]):
    """Bayesian optimisation of a box with a model that is fitted after every batch.

    Attributes:
        box: The box, in float64.
        settings: Initial design, batches, width, fit, acquisition function and its optimiser.
        make: Makes an unfitted model.
        buffer: Chooses the observations that the model is fitted to.
        condition_on: Observations of the posterior. With ``"all"`` the buffer proposes hyper-parameters and the likelihood of
            all observations accepts them (:func:`sparse_bo.models.fit_to_rows`).
        draws: Thompson sampling: posterior draws as acquisition functions, one for each point, whatever is pending.
        jumps: Whether acquisition functions are discontinuous: warnings of failed line searches are then suppressed.
    """

    box: Box
    settings: SurrogateSettings
    make: MakeModel
    buffer: Buffer = field(default_factory=Buffer)
    condition_on: ConditionOn = "subset"
    draws: Callable[[Any, Tensor, Tensor], Iterator[AcquisitionFunction]] | None = None
    jumps: bool = False

    def init(self) -> SurrogateState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        width = self.settings.width
        return SurrogateState.empty(self.box, width=None if isinstance(width, SurrogateWidth) else width)

    def ask(self, state: SurrogateState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return points of the initial design until it is complete, then maximisers of the acquisition function.

        Draws nothing for a design without failures, else once for BoTorch's seed.

        Raises:
            TypeError: If ``acquisition`` does not return an acquisition function.
            ValueError: If it does not support pending points, and there are some.
        """
        out = len(pending)
        over = 1 + out - self.settings.batch_size  # results needed before the batch has room for a point
        if state.surrogate is None or state.subset is None or state.width is None:
            size = self.settings.initial_design
            q = design_batch(self.design_left(state), state, size=size, room=1 - over, out=out, max_q=max_q)
            return q if isinstance(q, Wait) else Proposal(design_points(q, state, pending=pending, generator=generator))
        if over > 0:
            return Wait(over)
        with seeded(generator, device=self.box.device):
            best = self._proposed(state, min(max_q, 1 - over), pending=self.box.to_unit(pending))
        picks = self.box.from_unit(best.detach().clamp(0.0, 1.0))
        refuse = state.refusal()
        return Proposal(picks if refuse is None else self._elsewhere(state, picks, refuse, generator))

    def design_left(self, state: SurrogateState) -> int:
        """See :meth:`sparse_bo.policies.Mechanism.design_left`."""
        settings = self.settings
        return 0 if state.surrogate is not None else state.design_left(settings.initial_design, batch=settings.batch_size)

    def tell(self, state: SurrogateState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> SurrogateState:
        """Observe, choose the subset, and fit. Draws for the subset, then once for BoTorch's seed."""
        watch = Stopwatch()
        with watch.phase("observe"):
            state = state.with_results(picks, y)
        if self.design_left(state) > 0:
            return replace(state, seconds=watch.seconds)
        with watch.phase("sample"):
            subset = self.buffer.rows(state, newest=len(picks), generator=generator)
        with watch.phase("learn"), seeded(generator, device=self.box.device):
            model = self._fitted(state, subset)
            width = self._width(model, state, subset)
        after = replace(state, model=InBox(model, self.box), subset=subset, width=width, seconds=watch.seconds)
        return self.buffer.timed(after, watch.seconds["sample"] + watch.seconds["learn"])

    def freeze(self, state: SurrogateState) -> Frozen | None:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`. O(n d), and the model's parameters and buffers.

        A GP is determined by data, parameters and buffers. A user's ``surrogate`` may have more state (fully Bayesian models
        do, and models other than ``gpytorch.models.ExactGP``): such a run has no snapshots, and a resume fits all rounds again.
        """
        frozen = freeze_fields(state)
        model = state.surrogate
        if model is None or state.subset is None:
            return frozen
        state_of_model = _tensors(model)
        if self.settings.surrogate is not None:
            unfitted = _tensors(self._unfitted_again(state))
            if not isinstance(model, ExactGP) or shapes(unfitted) != shapes(state_of_model) or len(model.batch_shape):
                return None
        return frozen | under("model", {name: value.detach() for name, value in state_of_model.items()})

    def thaw(self, frozen: Frozen) -> SurrogateState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. The model gets its parameters and is not fitted."""
        state = replace(self.init(), **thaw_fields(SurrogateState, frozen))
        if state.subset is None:
            return state
        model, parts = self._unfitted_again(state), part_of(frozen, "model")
        with torch.no_grad():
            for name, part in _tensors(model).items():
                if not torch.equal(part, parts[name]):
                    part.copy_(parts[name])
        model.eval()
        return replace(state, model=InBox(model, self.box))

    def _known(self, state: SurrogateState, subset: Tensor) -> Tensor:
        """Return the rows that a model fitted to ``subset`` is conditioned on, ascending."""
        return subset if self.condition_on == "subset" else torch.arange(len(state.y), device=subset.device)

    def _unfitted(self, state: SurrogateState, subset: Tensor) -> Any:
        """Return a new model of the rows that it is conditioned on."""
        known = self._known(state, subset)
        model = self.make(self.box.to_unit(state.X[known]), in_range(state.y[known]).unsqueeze(-1))
        if not isinstance(model, Model):
            raise TypeError(f"expected surrogate to return a BoTorch model, got {type(model).__name__}")
        return model

    def _unfitted_again(self, state: SurrogateState) -> Any:
        """Return the model of a state before its fit; the global generators are restored."""
        assert state.subset is not None
        with seeded(torch.Generator(), device=self.box.device):
            return self._unfitted(state, state.subset)

    def _fitted(self, state: SurrogateState, subset: Tensor) -> Any:
        """Return the next model, in evaluation mode; it starts from the last one's parameters, if those have its shapes."""
        model, previous = self._unfitted(state, subset), state.surrogate
        if previous is not None and not same_parameters(previous, model):
            previous = None
        warm = self.settings.warm_start and previous is not None
        if previous is not None and warm:
            set_parameters(model, parameters_of(previous))
        if self.condition_on == "subset" or len(subset) == len(state.y):
            self._learn(model, warm=warm)
            model.eval()
        else:
            fit_to_rows(model, subset, fitter=partial(self._learn, warm=warm), previous=previous)
        return model

    def _learn(self, model: Any, *, warm: bool) -> None:
        """Fit a model in place; warn if the fit fails."""
        try:
            if self.settings.fitter is None:
                fit_likelihood(model, tolerance=1e-7 if warm else None)  # decision 170
            else:
                self.settings.fitter(model)
        except ModelFittingError as error:
            warnings.warn(
                f"hyper-parameters could not be learned from {len(model.train_targets)} observations ({error}); "
                "the model keeps its initial ones",
                NumericalWarning,
                stacklevel=2,
            )

    def _width(self, model: Any, state: SurrogateState, subset: Tensor) -> float:
        """Return the number of posterior standard deviations in the default acquisition function."""
        width, X, y = self.settings.width, self.box.to_unit(state.X), in_range(state.y)
        if not isinstance(width, SurrogateWidth):
            return width
        known = self._known(state, subset)
        return width.standard_deviations(
            SurrogateConfidence(observations=len(y), dims=X.shape[-1], errors=lambda: subset_errors(model, X, y, known))
        )

    def _proposed(self, state: SurrogateState, q: int, *, pending: Tensor) -> Tensor:
        """Return ``q x d`` points of the unit cube, to rounding, given pending ones; BoTorch draws from its generators."""
        model, X, y = state.surrogate, self.box.to_unit(state.X), in_range(state.y)
        if self.draws is not None:
            draws = self.draws(model, X, y)
            return torch.cat([self._maximised(next(draws), q=1) for _ in range(q)])
        assert model is not None
        assert state.width is not None
        assert state.subset is not None
        if self.settings.acquisition is not None:
            known = self._known(state, state.subset)
            function = self.settings.acquisition(model, X[known], y[known])
            if not isinstance(function, AcquisitionFunction):
                raise TypeError(f"expected acquisition to return an AcquisitionFunction, got {type(function).__name__}")
        elif q == 1 and not len(pending):
            function = upper_confidence_bound(model, width=state.width)
        else:
            function = qUpperConfidenceBound(model, beta=state.width**2, posterior_transform=in_standard_units(model))
        if len(pending):
            try:
                function.set_X_pending(pending)
            except UnsupportedError as error:
                raise ValueError(
                    f"expected an acquisition function with pending points, got {type(function).__name__}; "
                    "use a Monte-Carlo one, or batch_size=1"
                ) from error
        return self._maximised(function, q=q)

    def _maximised(self, function: AcquisitionFunction, *, q: int) -> Tensor:
        """Return ``q x d`` maximisers in the unit cube, chosen one after the other."""
        bounds = torch.stack([torch.zeros_like(self.box.lower), torch.ones_like(self.box.lower)])
        starts = {"num_restarts": self.settings.num_restarts, "raw_samples": self.settings.raw_samples}
        with warnings.catch_warnings():
            if self.jumps:
                warnings.filterwarnings("ignore", message="Optimization failed", category=RuntimeWarning)
                warnings.filterwarnings("ignore", category=OptimizationWarning)
            return optimize_acqf(function, bounds=bounds, q=q, sequential=q > 1, **starts)[0]

    def _elsewhere(self, state: SurrogateState, picks: Tensor, refuse: Refusal, generator: torch.Generator) -> Tensor:
        """Return the picks (``q x d``) with refused ones replaced by other points of high upper confidence bounds.

        The other points are quasi-random ones and points around the best observation. Draws only if a pick is refused; if
        every other point is refused too, the picks stay.
        """
        wrong = refuse(picks).nonzero().squeeze(-1)
        if not len(wrong) or state.model is None:
            return picks
        X = self.box.sobol(512, generator=generator)
        noise = torch.randn(X.shape, generator=generator, device="cpu", dtype=torch.float64).to(X)
        sides = self.box.upper - self.box.lower
        scales = torch.logspace(-3, -0.5, 512, dtype=X.dtype, device=X.device).unsqueeze(-1)
        near = (state.X[state.y.argmax()] + scales * sides * noise).clamp(self.box.lower, self.box.upper)
        X = torch.cat([X, near])
        X = X[~refuse(X)]
        if not len(X):
            return picks
        with torch.no_grad():
            posterior = state.model.posterior(X.unsqueeze(-2))
            scores = (posterior.mean + (state.width or 0.0) * posterior.variance.sqrt()).flatten()
        best = scores.argsort(descending=True, stable=True)[: len(wrong)]
        picks = picks.clone()
        picks[wrong[: len(best)]] = X[best]
        return picks


def _tensors(model: Model) -> dict[str, Any]:
    """Return a model's parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
