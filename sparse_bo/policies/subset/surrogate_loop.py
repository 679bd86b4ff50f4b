"""The loop of policies with a BoTorch model: fit it to a subset of the observations, propose points, observe.

GP-UCB, GSSBO, RSSBO, Thompson sampling and others are choices of three parts: the subset
(:mod:`~sparse_bo.policies.subset.subsets`), the model and its fit (:mod:`~sparse_bo.policies.subset.surrogate_models`), and the
proposer (:mod:`~sparse_bo.policies.subset.proposers`). The parts work in the unit cube.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from botorch.models.model import Model
from botorch.models.transforms.outcome import Standardize
from gpytorch.models import ExactGP
from torch import Tensor

from sparse_bo.domains import Box
from sparse_bo.gp.nystrom import nystrom_factor
from sparse_bo.models.gradient_subset import prior_residuals
from sparse_bo.models.sparse_gp.state import shapes
from sparse_bo.policies.box_states import design_points, initial_box_state, told
from sparse_bo.policies.failures import Refusal
from sparse_bo.policies.persistence import freeze_fields, on_device, part_of, thaw_fields, under
from sparse_bo.policies.protocol import Frozen, Mechanism, Proposal, Wait
from sparse_bo.policies.states import Stopwatch, with_failures
from sparse_bo.policies.subset.proposers import Acquisition, Fitted, MaximiseAcquisition, Proposer, Restarts
from sparse_bo.policies.subset.subsets import Everything, InBox, Subset, SurrogateState
from sparse_bo.policies.subset.surrogate_models import ConditionOn, Fitter, Learning, MakeModel, ModelFit
from sparse_bo.seeding import seeded
from sparse_bo.validation import check_choice, check_count
from sparse_bo.widths import SubsetErrors, SurrogateConfidence, SurrogateWidth
from sparse_bo.widths.gp_ucb import check_surrogate_width


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
            kernel, :func:`sparse_bo.policies.subset.surrogate_models.matern_gp`.
        learning: Estimate of the default surrogate's hyper-parameters. ``"map"``: BoTorch's priors, no output scale;
        ``"likelihood"``:
            maximum likelihood with an output scale, as in the GSSBO paper.
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
        check_surrogate_width(self.width)
        check_choice("learning", self.learning, ("map", "likelihood"))
        for name in ("acquisition", "surrogate", "fitter"):
            part = getattr(self, name)
            if part is not None and not callable(part):
                raise TypeError(f"expected {name} to be a function or None, got {type(part).__name__}")


def width_of(width: float | SurrogateWidth, model: Model, X: Tensor, y: Tensor, known: Tensor) -> float:
    """Return the number of posterior standard deviations in the upper confidence bound of a fitted model.

    Args:
        width: A number, or a rule.
        model: A fitted model of the unit cube.
        X: ``n x d`` all inputs, in the unit cube.
        y: ``n`` observations.
        known: Rows that the model is conditioned on, ascending.
    """
    if not isinstance(width, SurrogateWidth):
        return width
    return width.standard_deviations(
        SurrogateConfidence(observations=len(y), dims=X.shape[-1], errors=lambda: subset_errors(model, X, y, known))
    )


def subset_errors(model: Model, X: Tensor, y: Tensor, known: Tensor) -> SubsetErrors:
    """Return A_n, B_n and σ_min of GSSBO Thm 5.1 and 5.2, in the model's own units. O(n³).

    ``A_n = ‖k‖ ‖y‖ C_M e`` and ``B_n = ‖k‖ √(C_M e)`` with ``e = ‖K − K̂‖``, the spectral norm instead of the paper's
    bound on it (Eq. 11), ``C_M = ‖(K + σ²I)⁻¹‖ ‖(K̂ + σ²I)⁻¹‖`` and K̂ the Nyström matrix on the known rows. ``‖k‖`` is at most
    ``κ² √n`` at any point, κ² the largest prior variance. σ_min is the smallest posterior standard deviation at the n inputs.
    The theorem compares posteriors under K and K̂ on all observations; GSSBO's own is conditioned on the known rows only.

    Args:
        model: A GP with a Gaussian likelihood.
        X: ``n x d`` all inputs, in the unit cube.
        y: ``n`` observations.
        known: Rows that the model is conditioned on.

    Raises:
        TypeError: If the model has no kernel, mean or Gaussian likelihood, or an outcome transform other than ``Standardize``.
    """
    with torch.no_grad():
        K, residuals, noise = prior_residuals(model, X, y)
        smallest = float(model.posterior(X.unsqueeze(-2)).variance.amin().clamp_min(0.0).sqrt())
        transform = getattr(model, "outcome_transform", None)
        if transform is not None:
            if not isinstance(transform, Standardize):
                raise TypeError(
                    f"expected a model without outcome transform or with Standardize for this width, "
                    f"got {type(transform).__name__}; use a number as width"
                )
            smallest /= float(transform.stdvs.flatten()[0])
        if len(known) == len(y):
            return SubsetErrors(0.0, 0.0, smallest)
        features = nystrom_factor(K[known][:, known]).features(K[known])
        approximate = features @ features.mT
        missed = float(torch.linalg.eigvalsh(K - approximate)[-1].clamp_min(0.0))
        lowest = [float(torch.linalg.eigvalsh(matrix)[0].clamp_min(0.0)) for matrix in (K, approximate)]
        inverses = 1.0 / ((lowest[0] + noise) * (lowest[1] + noise))
        at_a_point = float(K.diagonal().amax()) * math.sqrt(len(y))
        return SubsetErrors(
            at_a_point * float(residuals.norm()) * inverses * missed, at_a_point * math.sqrt(inverses * missed), smallest
        )


@dataclass(frozen=True, eq=False)
class SurrogateLoop(Mechanism[SurrogateState]):
    """Bayesian optimisation of a box with a model that is fitted after every batch.

    Attributes:
        box: The box, in float64.
        initial_design: Points of a scrambled Sobol sequence before the first model.
        batch_size: Points per batch.
        width: Posterior standard deviations in the default acquisition function: a number, or a rule.
        subset: Chooses the observations that the model is fitted to.
        fit: Makes and fits the model.
        proposer: Proposes points.
        own_model: Whether a user's function makes the model, which may then have more state than a GP.
    """

    box: Box
    initial_design: int
    batch_size: int
    width: float | SurrogateWidth
    subset: Subset
    fit: ModelFit
    proposer: Proposer
    own_model: bool = False

    def init(self) -> SurrogateState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        empty = initial_box_state(self.box)
        return SurrogateState(empty.box, empty.X, empty.y, width=None if isinstance(self.width, SurrogateWidth) else self.width)

    def ask(self, state: SurrogateState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return points of the initial design until it is complete, then points of the proposer.

        Draws nothing for a design without failures, else once for BoTorch's seed.
        """
        out = len(pending)
        over = 1 + out - self.batch_size  # results needed before the batch has room for a point
        if state.surrogate is None or state.subset is None or state.width is None:
            missing = self.initial_design - len(state.y)
            if missing <= out:
                return Wait(max(missing, over))
            q = min(max_q, missing - out)
            return Proposal(design_points(q, state, pending=pending, generator=generator))
        if over > 0:
            return Wait(over)
        known = self.fit.known(state.subset, len(state.y))
        fitted = Fitted(state.surrogate, self.box.to_unit(state.X), state.y, known, state.width)
        with seeded(generator, device=self.box.device):
            best = self.proposer(fitted, min(max_q, self.batch_size - out), pending=self.box.to_unit(pending))
        picks = self.box.from_unit(best.detach().clamp(0.0, 1.0))
        refuse = state.refusal()
        return Proposal(picks if refuse is None else self._elsewhere(state, picks, refuse, generator))

    def tell(self, state: SurrogateState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> SurrogateState:
        """Observe, choose the subset, and fit. Draws for the subset, then once for BoTorch's seed."""
        watch = Stopwatch()
        with watch.phase("observe"):
            state = told(state, picks, y)
        if len(state.y) < self.initial_design:
            return replace(state, seconds=watch.seconds)
        with watch.phase("sample"):
            subset = self.subset.rows(state, newest=len(picks), generator=generator)
        with watch.phase("learn"), seeded(generator, device=self.box.device):
            X = self.box.to_unit(state.X)
            model = self.fit.fitted(X, state.y, subset, previous=state.surrogate)
            width = width_of(self.width, model, X, state.y, self.fit.known(subset, len(state.y)))
        after = replace(state, model=InBox(model, self.box), subset=subset, width=width, seconds=watch.seconds)
        return self.subset.timed(after, watch.seconds["sample"] + watch.seconds["learn"])

    def fail(self, state: SurrogateState, picks: Tensor) -> SurrogateState:
        """See :meth:`sparse_bo.policies.Mechanism.fail`."""
        return with_failures(state, picks)

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
        if self.own_model:
            unfitted = _tensors(self._unfitted(state, state.subset))
            if not isinstance(model, ExactGP) or shapes(unfitted) != shapes(state_of_model) or len(model.batch_shape):
                return None
        return frozen | under("model", {name: value.detach() for name, value in state_of_model.items()})

    def thaw(self, frozen: Frozen) -> SurrogateState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. The model gets its parameters and is not fitted."""
        arrays = on_device(frozen, self.box.device)
        state = replace(self.init(), **thaw_fields(SurrogateState, arrays))
        state = replace(state, first_seconds=tuple(state.first_seconds))  # as JSON it was a list
        if state.subset is None:
            return state
        model, parts = self._unfitted(state, state.subset), part_of(arrays, "model")
        with torch.no_grad():
            for name, part in _tensors(model).items():
                if not torch.equal(part, parts[name]):
                    part.copy_(parts[name])
        model.eval()
        return replace(state, model=InBox(model, self.box))

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

    def _unfitted(self, state: SurrogateState, subset: Tensor) -> Model:
        """Return the model of a state before its fit; the global generators are restored."""
        known = self.fit.known(subset, len(state.y))
        with seeded(torch.Generator(), device=self.box.device):
            return self.fit.unfitted(self.box.to_unit(state.X[known]), state.y[known])


def surrogate_loop(
    settings: SurrogateSettings,
    box: Box,
    *,
    make: MakeModel,
    subset: Subset | None = None,
    proposer: Proposer | None = None,
    condition_on: ConditionOn = "subset",
) -> SurrogateLoop:
    """Return the loop of a policy's settings.

    Args:
        settings: Settings of the policy.
        box: The box.
        make: Makes the model.
        subset: Default: :class:`~sparse_bo.policies.subset.subsets.Everything`.
        proposer: Default: :class:`~sparse_bo.policies.subset.proposers.MaximiseAcquisition`.
        condition_on: Observations of the model, see :class:`~sparse_bo.policies.subset.surrogate_models.ModelFit`.
    """
    search = Restarts(settings.num_restarts, settings.raw_samples)
    return SurrogateLoop(
        box=box.double(),
        initial_design=settings.initial_design,
        batch_size=settings.batch_size,
        width=settings.width,
        subset=subset or Everything(),
        fit=ModelFit(make, settings.fitter, settings.warm_start, condition_on),
        proposer=proposer or MaximiseAcquisition(search, settings.acquisition),
        own_model=settings.surrogate is not None,
    )


def _tensors(model: Model) -> dict[str, Any]:
    """Return a model's parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
