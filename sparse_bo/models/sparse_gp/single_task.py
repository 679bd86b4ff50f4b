"""SparseGP: stands where BoTorch's ``SingleTaskGP`` stands, at a cost that grows linearly with the data."""

from __future__ import annotations

from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Tensor
from torch.nn import Module

from sparse_bo.models.sparse_gp.model import DictionaryPosterior
from sparse_bo.models.sparse_gp.options import Chosen, Fit, check_tensors, checked_options


class SparseGP(DictionaryPosterior, SingleTaskGP):  # type: ignore[misc]  # the base class ships no types
    """A Gaussian process over a dictionary of m points: ``SingleTaskGP`` at O(n m²) instead of O(n³).

    The posterior is the DTC one (algorithms §1): ``mean = μ₀ + k_Dᵀα`` and the *joint* covariance ``k − k_DᵀRRᵀk_D``, which
    with every input in the dictionary are the exact GP's. A posterior call costs O(q m²), whatever n is. Constructor, state
    dict, transforms, noise, batches, several outputs and fitting through ``ExactMarginalLogLikelihood`` are those of
    :class:`~botorch.models.SingleTaskGP`; the dictionary is no parameter and not in the state dict.

    *Conditioning* (``condition_on_observations``, ``fantasize``, every look-ahead acquisition function) conditions the
    posterior process exactly, at a cost independent of n. For new *data*, build a new
    model (with ``previous=`` the old one) or call ``set_train_data``.

    *Caches* follow data and parameters: whatever changes them, the next posterior is computed anew, the default dictionary
    chosen anew with the parameters of that moment (select, fit, reselect).

    *Leave-one-out* is closed form, O(n m²): :meth:`leave_one_out`, and BoTorch's ``loo_cv``. *A subclass* with its own
    ``forward`` (deep kernels, means of its own) learns and predicts from it. ``repr`` says n, m, and how accurate the posterior
    is known to be; :attr:`dictionary` shows the points, :meth:`certify` bounds what they cost.

    *Where* ``SingleTaskGP`` *itself differs*, even with every input in the dictionary: GPyTorch detaches the covariance
    cache of a fantasy, so gradients of multi-step look-ahead and of qNIPV lack a part (here they are those of finite
    differences); and it computes the mean after ``condition_on_observations(..., noise=...)`` with the learned noise in
    place of the given one (here it is the dense formula's), which is what joint entropy search does.

    What BoTorch would do densely behind the model's back:

    - The joint posterior of more than 4,096 points is lazy. Mean and variance are exact, O(q m r) in blocks; samples, with and
      without base samples, and cached roots (qLogNEI, qLogNEHVI: any baseline, pruned or not) are exact on variances, at 1,024
      pivots among the points and inside blocks of 256 neighbours; between blocks they correlate as the pivots explain
      (:mod:`sparse_bo.models.sparse_gp.factor`). ``distribution.log_prob`` and ``entropy`` are those of that law. Any kernel
      and outcome transform, any number of outputs.
    - qLogNEHVI with its default ``prune_baseline=False`` copies base samples inside BoTorch, ``samples x candidates x rows x
      outputs`` numbers at a time: with 20,000 rows set ``init_batch_limit`` and ``batch_limit``, or prune.
    - A ``ModelListGP`` builds the joint covariance of more than 4,096 points densely, with a ``MemoryWarning``, up to 10,000;
      beyond, its means and variances are there, but joint samples raise ``UnsupportedError``; one ``SparseGP`` of several
      outputs has them.
    - ``draw_matheron_paths`` uses BoTorch's 1,024 random features in place of the kernel: standard deviations are a few
      per cent off (up to a fifth for ARD kernels in d = 20); kernels without features raise. ``posterior(X).rsample`` has none.
    - Analytic ``NoisyExpectedImprovement`` builds exact GPs on ``X_observed``, as it does for any model; use ``qLogNEI``.
    - Predictive entropy search inverts the covariance of all training inputs by construction: O(n³); use ``qMES`` or JES.
    - ``fit="exact"`` is the exact likelihood, O(n³) per step.

    Args:
        train_X: ``batch_shape x n x d`` training inputs.
        train_Y: ``batch_shape x n x m`` observations of m outputs.
        train_Yvar: ``batch_shape x n x m`` known noise variances; ``None``: noise is learned.
        likelihood: As in ``SingleTaskGP``.
        covar_module: As in ``SingleTaskGP``.
        mean_module: As in ``SingleTaskGP``.
        outcome_transform: As in ``SingleTaskGP``.
        input_transform: As in ``SingleTaskGP``.
        dictionary: A sampler (:mod:`sparse_bo.dictionary`), a ``Dictionary``, a tensor of distinct row indices, or an
            ``m x d`` tensor of points in the units of ``train_X``; shared by batch and outputs. Default: all inputs up to
            ``max_dictionary``; beyond, that many by leverage-score sampling with the current kernel, or fewer, if what these
            leave of the variance is on average at most half of what n observations may leave of it, ``m/n`` noise variances
            (:data:`~sparse_bo.models.sparse_gp.leverage_sampling.NEED`; ``repr`` says how much they leave).
        max_dictionary: Cap of a sampled dictionary; up to so many inputs the default is the exact GP. Indices and points
            are taken as they are. Default: what :func:`~sparse_bo.models.sparse_gp.leverage_sampling.planned_size` allows,
            2,896 at n = 20,000, 3,627 at 10⁵.
        fit: What ``ExactMarginalLogLikelihood`` maximises: ``"exact"`` likelihood; ``"subset"``: that of
            :data:`SUBSET_POINTS` random points, scaled up; ``"vfe"`` (Titsias 2009) or ``"dtc"`` over at most
            :data:`LEARNING_DICTIONARY` points. Default: ``"exact"`` up to :data:`SUBSET_POINTS`, then ``"subset"``.
            ``fit_gpytorch_mll`` searches coarse to fine (:mod:`sparse_bo.models.sparse_gp.fitting`), and of many data takes the
            last steps of ``"subset"`` on neighbourhoods in the data (:mod:`sparse_bo.models.sparse_gp.neighbourhoods`).
        seed: Of the choices of dictionary and subset; torch's own generator is never touched by them.
        previous: A ``SparseGP`` of the first rows of these data, with the same kernel and transforms: its hyper-parameters are
            taken over, its dictionary and factor extended, at O(m² k + n) for k new rows. The dictionary is chosen anew when
            the data have grown by half; one that was given to ``previous`` stays. After another fit the posterior is made anew.

    Raises:
        TypeError: If ``dictionary``, ``max_dictionary``, ``seed`` or ``previous`` are of a wrong kind.
        ValueError: If ``dictionary`` is empty, repeated, out of range or of the wrong width, or an option is not allowed; if
            kernel, mean, likelihood or a transform of ``previous`` are others.
        InputDataError: If the data do not begin with those of ``previous``.

    Example:
        >>> model = SparseGP(train_X, train_Y)
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> optimize_acqf(qLogExpectedImprovement(model, best_f), bounds, q=8, num_restarts=10, raw_samples=512)
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Module | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        *,
        dictionary: Chosen = None,
        max_dictionary: int | None = None,
        fit: Fit | None = None,
        seed: int = 0,
        previous: SparseGP | None = None,
    ) -> None:
        check_tensors(train_X=train_X, train_Y=train_Y)
        options = checked_options(dictionary, max_dictionary, fit, seed)
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            likelihood=likelihood,
            covar_module=covar_module,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        self._choose(train_X, options)
        if previous is not None:
            if dictionary is not None:
                raise ValueError("previous brings its own dictionary: leave dictionary out, or previous")
            self._follow(previous)
