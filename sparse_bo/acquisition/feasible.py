"""The feasible set of picks: a box with fixed features and constraints, in BoTorch's formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from botorch.exceptions.errors import InfeasibilityError
from botorch.generation import gen
from botorch.optim.parameter_constraints import evaluate_feasibility
from botorch.utils.sampling import get_polytope_samples
from torch import Tensor

from sparse_bo.domains.base import Box
from sparse_bo.seeding import generators_kept
from sparse_bo.validation import check_finite, check_number

LinearConstraint = tuple[Tensor, Tensor, float]
"""``(indices, coefficients, rhs)``: ``Σ_i coefficients[i] · x[indices[i]] ≥ rhs`` (or ``= rhs``)."""
Refusal = Callable[[Tensor], Tensor]
"""From ``n x d`` points to ``n`` booleans: which are not picked as long as other samples are left."""
NonlinearConstraint = tuple[Callable[[Tensor], Tensor], bool]
"""``(callable, True)``: ``callable(x) ≥ 0`` for a point ``x`` (``d``)."""

BURN_IN, THINNING = 1_000, 8  # Of the hit-and-run chain that samples a polytope: its samples are only starts of searches

BOX_SEARCH: Mapping[str, Any] = {"maxiter": 200, "ftol": 1e-7, "factr": None, "pgtol": 1e-5}
"""Of L-BFGS-B on scores scaled to order one: half the steps of SciPy's defaults, for a loss of 10⁻⁷ of the scores' range."""
CONSTRAINED_SEARCH: Mapping[str, Any] = {"maxiter": 200, "ftol": 1e-9}
"""Of SLSQP."""


@dataclass(frozen=True, eq=False)
class Feasible:
    """The points that may be picked."""

    box: Box
    inequality: Sequence[LinearConstraint] = ()
    equality: Sequence[LinearConstraint] = ()
    nonlinear: Sequence[NonlinearConstraint] = ()
    fixed: Mapping[int, float] | None = None
    refuse: Refusal | None = None

    def settle(self, X: Tensor) -> Tensor:
        """Return points (``b x d``) with the fixed features set."""
        if not self.fixed:
            return X
        X = X.clone()
        for column, value in self.fixed.items():
            X[:, column] = value
        return X

    def contains(self, X: Tensor) -> Tensor:
        """Return which of ``b x d`` points satisfy the constraints, up to BoTorch's tolerance, and are not refused."""
        satisfied: Tensor = evaluate_feasibility(self.box.to_unit(X).unsqueeze(-2), **self._in_botorch)
        return satisfied if self.refuse is None else satisfied & ~self.refuse(X)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Return at most ``n`` feasible points: scrambled Sobol points, or a hit-and-run chain under linear constraints.

        Draws one integer. Nonlinear constraints reject points afterwards.

        Raises:
            ValueError: If there is no feasible point, or no sample satisfies the nonlinear constraints.
        """
        if not self.inequality and not self.equality:
            X = self.settle(self.box.sobol(n, generator=generator))
        else:
            X = self._polytope(n, generator)
        kept = X[self.contains(X)]
        if not len(kept) and self.refuse is not None:
            kept = X[replace(self, refuse=None).contains(X)]
        if not len(kept):
            raise ValueError(
                f"expected constraints that some point of the bounds satisfies, but none of {len(X)} samples does; "
                "check the nonlinear constraints (callable(x) >= 0), relax them, or raise raw_samples"
            )
        return kept

    def _polytope(self, n: int, generator: torch.Generator) -> Tensor:
        # On the CPU: a chain of small steps, and the same draws for every device.
        box, seed = self.box, int(torch.randint(2**31 - 1, (1,), generator=generator, device="cpu"))
        bounds = box.to_unit(box.bounds).cpu()
        inequality, equality = ([(i.cpu(), c.cpu(), rhs) for i, c, rhs in kind] for kind in self._linear)
        at, unit = bounds.new_ones(1), self.to_unit(self.settle(box.bounds[:1])).cpu()
        fixed = [(torch.tensor([column], device="cpu"), at, float(unit[0, column])) for column in self.fixed or {}]
        try:
            with generators_kept(box.device):
                U = get_polytope_samples(
                    n,
                    bounds=bounds,
                    inequality_constraints=inequality or None,
                    equality_constraints=[*equality, *fixed] or None,
                    seed=seed,
                    n_burnin=BURN_IN,
                    n_thinning=THINNING,
                )
        except InfeasibilityError as error:
            raise ValueError(
                "expected constraints that some point of the bounds satisfies, but the linear constraints and the fixed "
                "features leave none; check their signs (sum of coefficients * x >= rhs) and relax them"
            ) from error
        return self.settle(box.from_unit(U.to(box.bounds)))

    def ascend(self, score: Callable[[Tensor], Tensor], starts: Tensor, options: Mapping[str, Any]) -> Tensor:
        """Return the feasible ends of searches uphill from ``b x d`` feasible starts: L-BFGS-B, or SLSQP under constraints.

        ``score`` returns the scores (``b``) of points with gradients; ``options`` are added to :data:`BOX_SEARCH` or
        :data:`CONSTRAINED_SEARCH`. The searches run in coordinates of the unit cube, so that the scales of inputs do not
        matter.
        """
        if self.fixed and len(self.fixed) == self.box.dims:
            return starts  # there is one point
        constrained = self.inequality or self.equality or self.nonlinear
        chosen = {**CONSTRAINED_SEARCH, **options} if constrained else _understood({**BOX_SEARCH, **options})
        lower, upper = self.to_unit(self.settle(self.box.bounds))
        ends = [
            gen.gen_candidates_scipy(
                part,
                lambda U: score(self.box.from_unit(U.squeeze(-2))),
                lower_bounds=lower,
                upper_bounds=upper,
                options=chosen,
                **self._in_botorch,
            )[0]
            for part in torch.split(self.to_unit(starts).unsqueeze(-2), 1 if self.nonlinear else len(starts))
        ]
        U = torch.cat(ends).squeeze(-2).detach()
        X = self.settle(self.box.from_unit(U).clamp(self.box.lower, self.box.upper))
        return X[self.contains(X) & X.isfinite().all(dim=-1)]

    def to_unit(self, X: Tensor) -> Tensor:
        """Return points (``… x d``) in coordinates of the unit cube."""
        return self.box.to_unit(X).clamp(0.0, 1.0)

    @cached_property
    def _linear(self) -> tuple[list[LinearConstraint], list[LinearConstraint]]:
        """Inequalities and equalities of points of the unit cube, their largest coefficient 1: tolerances are absolute."""
        return [self._in_unit(c) for c in self.inequality], [self._in_unit(c) for c in self.equality]

    @property
    def _in_botorch(self) -> dict[str, Any]:
        inequality, equality = self._linear
        return {
            "inequality_constraints": inequality or None,
            "equality_constraints": equality or None,
            "nonlinear_inequality_constraints": [self._of_unit(c) for c in self.nonlinear] or None,
        }

    def _in_unit(self, constraint: LinearConstraint) -> LinearConstraint:
        indices, coefficients, rhs = constraint
        lower, upper = self.box.lower[indices], self.box.upper[indices]
        scaled = coefficients * (upper - lower)
        size = float(scaled.abs().max()) or 1.0
        return indices, scaled / size, (rhs - float((coefficients * lower).sum())) / size

    def _of_unit(self, constraint: NonlinearConstraint) -> NonlinearConstraint:
        function, single = constraint
        return (lambda u: function(self.box.from_unit(u))), single


def _understood(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of L-BFGS-B by the names that BoTorch's search has for them beside the SciPy that is installed.

    Its batched search, for the versions of SciPy that BoTorch was tested with, takes those of the Fortran routine; otherwise it
    calls ``scipy.optimize.minimize``, which warns of names that it does not know.
    """
    if hasattr(gen, "fmin_l_bfgs_b_batched"):
        return dict(options)
    kept = {name: value for name, value in options.items() if (name, value) != ("factr", None)}
    return {"gtol" if name == "pgtol" else name: value for name, value in kept.items()}


def check_feasible(
    bounds: Tensor,
    inequality: Sequence[LinearConstraint] | None = None,
    equality: Sequence[LinearConstraint] | None = None,
    nonlinear: Sequence[NonlinearConstraint] | None = None,
    fixed: Mapping[int, float] | None = None,
    refuse: Refusal | None = None,
) -> Feasible:
    """Check bounds, fixed features and the form of constraints.

    Raises:
        TypeError: If something has the wrong kind.
        ValueError: If bounds are not those of a box, a column does not exist, a fixed value lies outside the bounds, or a
            constraint ties several points of the batch together.
    """
    box = Box(bounds)
    for i, constraint in enumerate(nonlinear or ()):
        if not isinstance(constraint, tuple) or len(constraint) != 2 or not callable(constraint[0]):
            raise TypeError(f"expected nonlinear_inequality_constraints[{i}] to be (callable, True), got {constraint!r}")
        if constraint[1] is not True:
            raise ValueError(
                f"nonlinear_inequality_constraints[{i}] ties several points together, but picks are made one after another; "
                "pass (callable of one point, True)"
            )
    above, equal = (
        [_check_linear(f"{name}_constraints[{i}]", c, box) for i, c in enumerate(given or ())]
        for name, given in (("inequality", inequality), ("equality", equality))
    )
    return Feasible(box, above, equal, list(nonlinear or ()), _check_fixed(fixed, box), refuse)


def _check_linear(name: str, constraint: LinearConstraint, box: Box) -> LinearConstraint:
    if not isinstance(constraint, tuple) or len(constraint) != 3:
        raise TypeError(f"expected {name} to be a tuple (indices, coefficients, rhs), got {constraint!r}")
    indices, coefficients, rhs = constraint
    if not isinstance(indices, Tensor) or not isinstance(coefficients, Tensor) or indices.is_floating_point():
        raise TypeError(f"expected {name} to hold a tensor of column indices and a tensor of coefficients")
    if indices.dim() != 1:
        raise ValueError(
            f"{name} ties several points together (indices of shape {tuple(indices.shape)}), but picks are made one after "
            "another; indices must have one dimension"
        )
    if len(indices) != len(coefficients) or not len(indices):
        raise ValueError(f"expected as many indices as coefficients in {name}, got {len(indices)} and {len(coefficients)}")
    if int(indices.min()) < 0 or int(indices.max()) >= box.dims:
        raise ValueError(f"expected indices of {name} in [0, {box.dims}), got {indices.tolist()}")
    check_finite(f"coefficients of {name}", coefficients)
    return indices, coefficients.to(box.bounds), check_number(f"right-hand side of {name}", rhs)


def _check_fixed(fixed: Mapping[int, float] | None, box: Box) -> dict[int, float] | None:
    if not fixed:
        return None
    checked = {}
    for column, value in fixed.items():
        if isinstance(column, bool) or not isinstance(column, int):
            raise TypeError(f"expected fixed_features to map column numbers to values, got the key {column!r}")
        if not 0 <= column < box.dims:
            raise ValueError(f"expected columns of fixed_features in [0, {box.dims}), got {column}")
        number = check_number(f"fixed_features[{column}]", value)
        low, high = float(box.lower[column]), float(box.upper[column])
        if not low <= number <= high:
            raise ValueError(f"expected fixed_features[{column}] within its bounds [{low}, {high}], got {number}")
        checked[column] = number
    return checked
