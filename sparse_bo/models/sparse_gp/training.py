"""The prior over the training data that a sparse model returns in training mode, with a likelihood that is never ``n x n``.

``ExactMarginalLogLikelihood`` adds the noise to the covariance, rebuilds the distribution from its class, a mean and a
covariance, and asks for ``log_prob``. So all that a likelihood needs is in the covariance operator. A search sees it as a
function of one vector (:class:`ParameterVector`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.optim.closures import get_loss_closure_with_grads
from botorch.optim.closures.core import NdarrayOptimizationClosure
from botorch.optim.core import OptimizationResult, OptimizationStatus
from botorch.optim.utils import get_parameters_and_bounds
from botorch.optim.utils.numpy_utils import get_bounds_as_ndarray
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DiagLinearOperator, LinearOperator
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from sparse_bo.gp.learn import lbfgsb
from sparse_bo.gp.likelihood import gaussian_log_likelihood, log_likelihood_from_sums, stationary_log_likelihood
from sparse_bo.linalg.chunking import broadcast_shapes
from sparse_bo.models.sparse_gp import prior
from sparse_bo.models.sparse_gp.row_sums import dictionary_factor, row_sums, sweep

_LOGGER = logging.getLogger(__name__)

Approximation = Literal["subset", "vfe", "dtc"]
"""The likelihoods that are not the exact one of all points."""
Function = Callable[[Tensor], tuple[float, Tensor]]
"""``p`` numbers to value and gradient (``p``); an infinite value where there is none."""


class TrainingCovariance(LinearOperator):  # type: ignore[misc]  # the base class ships no types
    """The prior covariance of the training targets (plus noise), with the likelihood that replaces the exact one.

    ``"subset"`` is ``k(X, X)``; ``"vfe"`` and ``"dtc"`` are its Nyström approximation over a dictionary.

    Args:
        X: ``batch_shape x n x d``, transformed.
        points: ``batch_shape x m x d``: the dictionary, or the subset that is learned from; transformed.
        kernel: The prior covariance.
        likelihood: The name of the likelihood.
        rows: ``m`` rows of ``X`` that ``points`` are (``"subset"`` only); ``g x s``: of g independent groups.
        noise: ``batch_shape x n`` noise variances added so far.
    """

    def __init__(
        self,
        X: Tensor,
        points: Tensor,
        *,
        kernel: prior.PriorKernel,
        likelihood: Approximation,
        rows: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> None:
        super().__init__(X, points, kernel=kernel, likelihood=likelihood, rows=rows, noise=noise)
        self.X, self.points, self.kernel = X, points, kernel
        self.likelihood, self.rows, self.noise = likelihood, rows, noise

    def log_likelihood(self, targets: Tensor, mean: Tensor) -> Tensor:
        """Return the log-likelihood of ``targets`` under ``mean`` (``batch_shape x n`` each), ``batch_shape``.

        ``"subset"`` gives ``n/m`` times the exact log-likelihood of the m subset points: an estimate of that of all n points,
        so that priors weigh what they would weigh with all the data; of groups, the sum of theirs (a composite likelihood:
        Varin, Reid & Firth 2011). O(m³), O(g s³) for groups, or O(n m² + m³) for ``"vfe"`` and ``"dtc"``.

        Raises:
            UnsupportedError: If no noise has been added: the distribution is then degenerate.
            NotPSDError: If a covariance is not finite or not positive semi-definite.
        """
        if self.noise is None:
            raise UnsupportedError(
                "the training prior of a SparseGP has a density only with observation noise; "
                "use mll(model(*model.train_inputs), model.train_targets)"
            )
        noise = self.noise.expand(broadcast_shapes(self.noise.shape, self.shape[:-1]))
        residuals = targets - mean
        residuals = residuals.expand(broadcast_shapes(residuals.shape, noise.shape))
        try:
            if self.likelihood == "subset":
                return self._of_rows(residuals.double(), noise.double()) * (self.shape[-1] / self.points.shape[-2])
            factor = dictionary_factor(self.kernel, self.points)
            sums = row_sums(self.kernel, factor, self.points, prior.TrainingData(self.X, residuals, noise))
            return log_likelihood_from_sums(sums, bound=self.likelihood == "vfe")
        except ValueError as error:  # what BoTorch's fitting loop knows how to retry
            raise NotPSDError(str(error)) from error

    def _exact(self, points: Tensor, residuals: Tensor, noise: Tensor) -> Tensor:
        """Return the exact log-likelihood of some points under any kernel, by autograd."""
        covariance = prior.kernel_matrix(self.kernel, points, points).double() + torch.diag_embed(noise)
        return gaussian_log_likelihood(covariance, residuals)

    def _of_rows(self, residuals: Tensor, noise: Tensor) -> Tensor:
        """Return the exact log-likelihood of the points, or the sum of their groups', ``batch_shape``. O(m³), O(g s³).

        Without a closed form groups are computed one at a time, and again for the gradient: the memory of one group.
        """
        assert self.rows is not None
        residuals, noise = residuals[..., self.rows], noise[..., self.rows]  # batch_shape x m, or batch_shape x g x s
        points = self.points.reshape(*self.points.shape[:-2], *self.rows.shape, self.points.shape[-1]).double()
        grouped = self.rows.dim() > 1
        parts = None if points.requires_grad else prior.stationary_parts(self.kernel)
        if parts is not None:
            ell, variance = parts.lengthscales.double(), parts.variance.double()
            if grouped:
                ell, variance = ell.unsqueeze(-2), variance.unsqueeze(-1)
            found = stationary_log_likelihood(points, ell, variance, noise, residuals, family=parts.name)
            return found.sum(dim=-1) if grouped else found
        if not grouped:
            return self._exact(points, residuals, noise)
        groups = zip(points.unbind(-3), residuals.unbind(-2), noise.unbind(-2), strict=True)
        module = self.kernel.model if isinstance(self.kernel, prior.ForwardKernel) else self.kernel
        each: list[Tensor] = [Recomputed.apply(self._exact, 3, *group, *module.parameters()) for group in groups]  # type: ignore[no-untyped-call]  # torch ships no types
        return torch.stack(each, dim=-1).sum(dim=-1)

    def __add__(self, other: Any) -> LinearOperator:
        """Add observation noise; everything else as any operator."""
        if not isinstance(other, DiagLinearOperator):
            return super().__add__(other)
        added = other.diagonal(dim1=-2, dim2=-1)
        noise = added if self.noise is None else self.noise + added
        return TrainingCovariance(self.X, self.points, **{**self._kwargs, "noise": noise})

    def _size(self) -> torch.Size:
        shapes = [self.X.shape[:-2], self.points.shape[:-2], self.kernel.batch_shape]
        if self.noise is not None:
            shapes.append(self.noise.shape[:-1])
        n = self.X.shape[-2]
        return broadcast_shapes(*shapes) + torch.Size([n, n])

    def _transpose_nonbatch(self) -> TrainingCovariance:
        return self

    def _features(self, X: Tensor) -> Tensor:
        factor = dictionary_factor(self.kernel, self.points)
        return factor.features(prior.kernel_matrix(self.kernel, self.points, X).double()).to(X)

    def _noiseless(self) -> Tensor:
        """Return the covariance without the noise, ``batch_shape x n x n``, with gradients. O(n² m)."""
        most = 4096
        if self.shape[-1] > most:
            raise UnsupportedError(
                f"expected at most {most} training points for a dense prior covariance, got {self.shape[-1]}; "
                "call model.eval() and use the posterior, or learn through ExactMarginalLogLikelihood"
            )
        if self.likelihood == "subset":
            return prior.kernel_matrix(self.kernel, self.X, self.X)
        features = self._features(self.X)
        return features @ features.mT

    def _diagonal(self) -> Tensor:
        if self.likelihood == "subset":
            diagonal = prior.kernel_diagonal(self.kernel, self.X)
        else:
            parts = [self._features(self.X[..., some, :]).square().sum(dim=-1) for some in sweep(self.points, self.X)]
            diagonal = torch.cat(parts, dim=-1)
        diagonal = diagonal if self.noise is None else diagonal + self.noise
        return diagonal.expand(self.shape[:-1])

    def matmul(self, other: Any) -> Any:
        """Multiply; with a tensor, gradients reach the kernel's parameters (the base class's would not)."""
        return self._matmul(other) if isinstance(other, Tensor) else super().matmul(other)

    def _matmul(self, rhs: Tensor) -> Tensor:
        columns = rhs.unsqueeze(-1) if rhs.dim() == 1 else rhs
        product = self._noiseless() @ columns
        if self.noise is not None:
            product = product + self.noise.unsqueeze(-1) * columns
        return product.squeeze(-1) if rhs.dim() == 1 else product

    def to_dense(self) -> Tensor:
        """Return the covariance as a tensor, ``batch_shape x n x n``, with gradients. O(n² m).

        ``UnsupportedError`` for too many training points, or with noise, as another library's leave-one-out may ask of a model
        in training mode: the result would be neither the exact GP's nor that of the posterior.
        """
        if self.noise is not None:
            raise UnsupportedError(
                "the noisy covariance of the training points of a SparseGP is never made dense; to learn by another likelihood "
                'than ExactMarginalLogLikelihood make the model with fit="exact" and without robust=True, for leave-one-out '
                "predictions use model.leave_one_out()"
            )
        return self._noiseless().expand(self.shape)


class Recomputed(torch.autograd.Function):
    """A function of tensors whose gradient computes it again: the memory of one at a time.

    ``torch.utils.checkpoint`` refuses operators of linear_operator, which unpack their saved tensors twice.
    """

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], arguments: int, *tensors: Tensor) -> Tensor:
        """Return ``function`` of the first tensors, the ``arguments``; the others are parameters that it reads."""
        ctx.function, ctx.parameters = function, tensors[arguments:]
        ctx.save_for_backward(*tensors[:arguments])
        return function(*tensors[:arguments])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradients with respect to arguments and parameters."""
        given = [part.detach().requires_grad_(part.requires_grad) for part in ctx.saved_tensors]
        with torch.enable_grad():
            value = ctx.function(*given)
        needs = ctx.needs_input_grad[2:]
        needed = [part for part, needs_it in zip((*given, *ctx.parameters), needs, strict=True) if needs_it]
        found = iter(torch.autograd.grad(value, needed, gradient, allow_unused=True))
        return None, None, *(next(found) if needs_it else None for needs_it in needs)


class TrainingPrior(MultivariateNormal):  # type: ignore[misc]  # the base class ships no types
    """The distribution that training mode returns; its covariance has the likelihood of the model's ``fit``."""

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-likelihood (or its bound) of targets ``value`` (``batch_shape x n``), ``batch_shape``.

        ``UnsupportedError`` if the distribution was sliced or scaled; others as the covariance's.
        """
        covariance = self.lazy_covariance_matrix
        if not hasattr(covariance, "log_likelihood"):
            raise UnsupportedError(
                "log_prob of a SparseGP's training prior works on the whole training set; "
                "use fit='exact' for slices or combinations of it"
            )
        return covariance.log_likelihood(value, self.mean)


class ParameterVector:
    """A likelihood as a function of one vector of p numbers: logarithms of those with a positive lower bound.

    Attributes:
        bounds: Least and greatest numbers, ``p`` each.
    """

    def __init__(self, mll: Any, parameters: dict[str, Tensor], bounds: Any) -> None:
        self.learner = mll.model.learner
        self.closure = NdarrayOptimizationClosure(get_loss_closure_with_grads(mll, parameters=parameters), parameters)
        limits = get_bounds_as_ndarray(parameters, bounds)
        size = sum(parameter.numel() for parameter in parameters.values())
        low, high = (torch.full((size,), at, dtype=torch.float64, device="cpu") for at in (-math.inf, math.inf))
        if limits is not None:
            low, high = torch.from_numpy(limits).unbind(-1)
        self.positive = low > 0.0
        self.bounds = torch.where(self.positive, low.log(), low), torch.where(self.positive, high.log(), high)

    @classmethod
    def of(cls, mll: Any, most: float = math.inf) -> ParameterVector | None:
        """Return the search over all free parameters, if there are some, and at most ``most``."""
        named, bounds = get_parameters_and_bounds(mll)
        parameters = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
        size = sum(parameter.numel() for parameter in parameters.values())
        return cls(mll, parameters, bounds) if 0 < size <= most else None

    @property
    def point(self) -> Tensor:
        """The parameters' values, ``p``, float64."""
        state = torch.from_numpy(self.closure.state)
        return torch.where(self.positive, state.clamp_min(1e-300).log(), state)

    def __call__(self, x: Tensor) -> tuple[float, Tensor]:
        """Return minus the likelihood per point at ``x``, and its gradient."""
        state = torch.where(self.positive, x.exp(), x)
        try:
            value, gradient = self.closure(state.numpy())
        except NotPSDError:
            value = math.inf
        if not math.isfinite(value):
            return math.inf, torch.zeros_like(x)
        found = torch.from_numpy(gradient.copy())
        return float(value), torch.where(self.positive, state * found, found)

    def move(self, x: Tensor) -> None:
        """Set the parameters to ``p`` numbers."""
        self.closure.state = torch.where(self.positive, x.exp(), x).numpy()

    def minimum(self, options: dict[str, Any]) -> tuple[Tensor, float, int]:
        """Return the minimiser that SciPy's L-BFGS-B finds from the parameters' values, its value, and the number of steps."""

        def function(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self(torch.from_numpy(x))
            return value, gradient.numpy()

        limits = list(zip(*(bound.tolist() for bound in self.bounds), strict=True))
        found = lbfgsb(function, self.point.numpy(), limits=limits, **options)
        return torch.from_numpy(found.x), float(found.fun), int(found.nit)

    def refined(self, before: Tensor, now: Tensor, *, gain: float, steps: int) -> OptimizationResult:
        """Go on from the optimum of some rows, and its curvature, to that of others; ``gain`` nats are worth no step."""
        least, learner = self.learner.settings.least_information / len(before), self.learner
        with learner.learning_from(before):
            x = self.point
            hessian = positive(curvature(self, x, self(x)[1]), least=least)
        low, high = self.bounds
        start, tolerance = torch.minimum(torch.maximum(x, low), high), gain / now.numel()
        try:
            with learner.learning_from(now):
                found = descend(self, start, bounds=self.bounds, hessian=hessian, tolerance=tolerance, max_steps=steps)
        except ValueError as error:  # no value at the start
            raise NotPSDError(str(error)) from error
        self.move(found.x)
        _LOGGER.debug("learned from all points in %d evaluations", found.evaluations)
        status = OptimizationStatus.SUCCESS if found.converged else OptimizationStatus.STOPPED
        return OptimizationResult(fval=found.value, step=found.evaluations, status=status)


# Minimisation of few numbers within bounds, where every value costs a factorisation and the curvature is known from fewer data,
# so that the first steps are already Newton's. Notation: g gradient, B approximation of the Hessian, p numbers.


class Descent(NamedTuple):
    """Where a minimisation ended."""

    x: Tensor
    """``p``."""
    value: float
    evaluations: int
    converged: bool
    """Whether it ended because at most the tolerance was to be gained."""


def curvature(function: Function, x: Tensor, gradient: Tensor, *, step: float = 1e-4) -> Tensor:
    """Return the Hessian at ``x`` by forward differences of the gradient over ``step``, ``p x p``. p evaluations."""
    rows = []
    for index in range(len(x)):
        moved = x.clone()
        moved[index] += step
        rows.append((function(moved)[1] - gradient) / step)
    hessian = torch.stack(rows)
    return 0.5 * (hessian + hessian.mT)


def positive(hessian: Tensor, *, least: float) -> Tensor:
    """Return the matrix with the absolute values of its eigenvalues, at least ``least``: every step then descends. O(p³)."""
    values, vectors = torch.linalg.eigh(hessian)
    return (vectors * values.abs().clamp_min(least)) @ vectors.mT


def descend(
    function: Function, start: Tensor, *, bounds: tuple[Tensor, Tensor], hessian: Tensor, tolerance: float, max_steps: int
) -> Descent:
    """Minimise within bounds by damped BFGS steps from a known Hessian (Powell 1978 keeps it positive definite).

    It ends where the gain that the quadratic model promises is at most ``tolerance``, without another evaluation.

    Args:
        function: The function.
        start: ``p``, within the bounds; ``ValueError`` if the function has no value there.
        bounds: Lowest and highest numbers, ``p`` each, infinite ones allowed.
        hessian: ``p x p``, symmetric positive definite: the curvature at the start, about.
        tolerance: Gain that does not matter, in units of the value.
        max_steps: At most so many steps.
    """
    low, high = bounds
    x, B = start.clone(), hessian
    value, g = function(x)
    evaluations = 1
    if not math.isfinite(value):
        raise ValueError("expected a start where the function has a value")
    for _ in range(max_steps):
        free = ~(((x <= low) & (g > 0)) | ((x >= high) & (g < 0)))
        step = torch.zeros_like(g)
        if bool(free.any()):
            step[free] = -torch.linalg.solve(B[free][:, free], g[free])
        if -0.5 * float(g @ step) <= tolerance:
            return Descent(x, value, evaluations, True)
        # No number changes by more in one step.
        step = step * min(1.0, 1.0 / float(step.abs().amax()))
        # Shorter steps that are tried where a step does not descend.
        for _ in range(8):
            moved = torch.minimum(torch.maximum(x + step, low), high)
            moved_value, moved_g = function(moved)
            evaluations += 1
            if moved_value <= value + 1e-4 * float(g @ (moved - x)):
                break
            step = 0.5 * step
        else:
            return Descent(x, value, evaluations, False)
        B = _updated(B, moved - x, moved_g - g)
        x, value, g = moved, moved_value, moved_g
    return Descent(x, value, evaluations, False)


def _updated(B: Tensor, s: Tensor, y: Tensor) -> Tensor:
    """Return the damped BFGS update for a step ``s`` over which the gradient changed by ``y``."""
    Bs = B @ s
    sBs, sy = float(s @ Bs), float(s @ y)
    if sBs <= 0.0:  # no step was left inside the bounds
        return B
    if sy < 0.2 * sBs:
        share = 0.8 * sBs / (sBs - sy)
        y = share * y + (1.0 - share) * Bs
        sy = float(s @ y)
    return B - torch.outer(Bs, Bs) / sBs + torch.outer(y, y) / sy
