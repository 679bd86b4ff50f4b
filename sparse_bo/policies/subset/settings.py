"""Settings of policies with a BoTorch model."""

from __future__ import annotations

from dataclasses import dataclass

from sparse_bo.policies.subset.fitting import Fitter
from sparse_bo.policies.subset.proposers import Acquisition
from sparse_bo.policies.subset.surrogate_models import Learning, MakeModel
from sparse_bo.validation import check_choice, check_count
from sparse_bo.widths import SurrogateWidth
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
        fitter: Fits the model in place. Default: :func:`sparse_bo.policies.subset.fitting.fit_likelihood`, the exact
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
