"""The classes that users make: SparseGP, and the same over a dictionary for categories, fidelities and tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

import torch
from botorch.models import MixedSingleTaskGP, MultiTaskGP, SingleTaskGP, SingleTaskMultiFidelityGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from gpytorch.priors import Prior
from torch import Tensor
from torch.nn import Module

import sparse_bo.dictionary as samplers
from sparse_bo.errors import install_hint
from sparse_bo.models.sparse_gp.base import SparseModel, SparseSettings
from sparse_bo.models.sparse_gp.dictionary_rule import DictionaryOption
from sparse_bo.models.sparse_gp.growth import check_evaluated
from sparse_bo.models.sparse_gp.learning import Fit
from sparse_bo.models.sparse_gp.state import check_training_data


class SparseOptions(TypedDict, total=False):
    """The keyword arguments of every sparse model; see :class:`sparse_bo.SparseGP`."""

    dictionary: DictionaryOption
    max_dictionary: int | None
    fit: Fit | None
    seed: int
    robust: bool
    settings: SparseSettings | None


class OptionsOfGrowth(SparseOptions, total=False):
    """The same, and ``previous``, which shards of data do not have."""

    previous: SparseModel | None


class SparseGP(SparseModel, SingleTaskGP):  # type: ignore[misc]  # the base class ships no types
    """A Gaussian process over a dictionary of m points: ``SingleTaskGP`` at O(n m²) instead of O(n³), for m below n.

    The posterior is the DTC one (Quiñonero-Candela & Rasmussen 2005, section 5): ``mean = μ₀ + k_Dᵀα`` with *joint* covariance
    ``k − k_DᵀRRᵀk_D``. With every input in the dictionary it is the exact GP's. A posterior costs O(q m²), independent of n.
    Constructor, state dict, transforms, noise, batches, several outputs and ``ExactMarginalLogLikelihood`` are those of
    :class:`~botorch.models.SingleTaskGP`. The state dict has outlying rows, but not the dictionary, which is no parameter.

    *Conditioning* (``condition_on_observations``, ``fantasize``, look-ahead acquisition functions) is that of the posterior
    process, exact, at a cost independent of n. For new *data*, make a new model, with ``previous=`` the old one.

    *Caches* follow data and parameters: after any change the next posterior is computed anew, and the default dictionary is
    chosen anew with the parameters of that moment.

    ``subset_output`` keeps posterior and dictionary of the outputs that are left.

    *A subclass* with its own ``forward`` (deep kernels, other means) learns and predicts from it.

    Differences to ``SingleTaskGP``:

    - Gradients of multi-step look-ahead and of qNIPV include the change of a fantasy's covariance cache (they agree with
      finite differences); GPyTorch detaches this cache. After ``condition_on_observations(..., noise=...)`` the mean uses the
      given noise.
    - ``posterior(X, output_indices=[1, 0])`` returns each output in its own units, and one output alone too.
    - The joint posterior of more than 4,096 points is lazy. Means and variances are exact. Samples and cached roots (qLogNEI,
      qLogNEHVI) are exact on variances, at 1,024 pivots and inside blocks of 256 neighbours; between blocks they correlate as
      the pivots explain (:mod:`sparse_bo.models.sparse_gp.joint_root`). Log densities, solutions and determinants are those
      of the same distribution. KL divergences and precision matrices, which need a dense root, raise ``UnsupportedError``.
    - BoTorch's pruning of a baseline draws joint samples of all its rows. Pass ``X_baseline=prune_baseline(model, train_X)``
      (:func:`sparse_bo.models.prune_baseline`), which samples only the rows that can be best (figures: docs/drop_in.md).
    - ``ModelListGP`` makes the joint covariance of more than 4,096 points dense to sample from it, with a ``MemoryWarning``,
      and raises ``UnsupportedError`` beyond 10,000; means and variances need none. Use
      :class:`sparse_bo.models.SparseModelListGP`, or one model of several outputs.
    - ``botorch.cross_validation.loo_cv`` raises ``UnsupportedError`` if the model is sparse: use :meth:`leave_one_out`.
    - qLogNEHVI with its default ``prune_baseline=False`` copies base samples inside BoTorch, ``samples x candidates x rows x
      outputs`` numbers at a time: with many rows, prune, or set ``init_batch_limit`` and ``batch_limit``.
    - ``draw_matheron_paths`` uses BoTorch's 1,024 random features, as ``SingleTaskGP`` does. With the Gaussian kernel
      most standard deviations are less than 10 % off (up to a fifth for ARD kernels in d = 20), with Matérn kernels up to a
      factor of 2. ``posterior(X).rsample`` is exact up to 4,096 points.
    - Analytic ``NoisyExpectedImprovement`` builds exact GPs on ``X_observed``, as for any model: use ``qLogNEI``.
    - Predictive entropy search inverts the covariance of all training inputs, O(n³): use ``qMES`` or JES.

    Args:
        train_X: ``batch_shape x n x d`` training inputs.
        train_Y: ``batch_shape x n x k`` observations of k outputs.
        train_Yvar: ``batch_shape x n x k`` known noise variances; ``None``: noise is learned.
        likelihood: As in ``SingleTaskGP``, as are the modules and transforms after it.
        covar_module: Default: the RBF kernel with BoTorch's priors.
        mean_module: Default: a constant.
        outcome_transform: Default: ``Standardize``.
        input_transform: Default: none.
        dictionary: A sampler (:mod:`sparse_bo.dictionary`), a ``Dictionary``, a tensor of distinct row indices, or an
            ``m x d`` tensor of points in the units of ``train_X``; shared by batch and outputs. Default: all inputs up to
            ``max_dictionary``. Beyond, that many by leverage-score sampling with the current kernel, or fewer, once the mean
            unexplained variance is below ``need · m/n`` noise variances (``repr`` shows it), with ``need`` 0.5
            (:class:`~sparse_bo.models.sparse_gp.leverage_sampling.DictionarySettings`).
        max_dictionary: Cap of a sampled dictionary; up to so many inputs the default is the exact GP. Indices and points are
            not capped. Default: 4,096 up to n = 4,096, 2,896 at n = 20,000, 3,627 at 10⁵
            (:meth:`~sparse_bo.models.sparse_gp.leverage_sampling.DictionarySettings.cap`).
        fit: The likelihood that ``ExactMarginalLogLikelihood`` maximises. ``"exact"``: O(n³) per step. ``"subset"``: that of
            1,040 random points, scaled up; of many data the last steps are on neighbourhoods in the data
            (:mod:`sparse_bo.models.sparse_gp.refinement`). ``"vfe"`` (Titsias 2009) or ``"dtc"``: over at most 512 points.
            Default: ``"exact"`` up to 1,040 points, then ``"subset"``.
        seed: Seed (default 0) of the choices of dictionary and subset; torch's own generator is not used.
        robust: Whether (default: not) a fit leaves out rows far off the predictions from the others (``outlying_rows``). A row
            that is far off in one output is left out in all, in learning and posterior. Among few rows an outlier may stay:
            it determines the spread of all rows (docs/decisions/046). With ``False`` a fit (not ``previous=`` alone)
            warns of such rows: one in a hundred, 20 standard deviations off, makes prediction errors thirty times larger.
        previous: A model of the same class, of the first rows of these data, with the same kernel and transforms. Its
            hyper-parameters and the units that they were learned in, as the spread of ``Standardize``, are copied, its
            dictionary and factor extended, O(m² k + n) for k new rows: in the exact case it is ``previous`` conditioned on
            these. New rows that the dictionary leaves unexplained join it, and the posterior is computed anew, O(n m²). The
            dictionary is chosen anew when the data have grown by half; a given one stays. After another fit, which
            standardises anew, the posterior is made anew. With ``robust=True`` new rows far off its predictions are left out.
        settings: Sizes and tolerances of dictionary, learning and joint posterior.

    Raises:
        TypeError: If ``dictionary``, ``max_dictionary``, ``seed``, ``previous`` or ``settings`` are of a wrong kind.
        ValueError: If ``dictionary`` is empty, repeated, out of range or of the wrong width, or an option is not allowed; if
            kernel, mean, likelihood or a transform of ``previous`` differ; if data have no columns, no rows beside an outcome
            transform, or entries too large to be squared.
        InputDataError: If an entry of the data is NaN or infinite, or they do not begin with those of ``previous``.

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
        **options: Unpack[OptionsOfGrowth],
    ) -> None:
        check_training_data(outcome_transform is not None, train_Yvar, train_X=train_X, train_Y=train_Y)
        super().__init__(
            train_X, train_Y, train_Yvar, likelihood, covar_module, mean_module, outcome_transform, input_transform
        )
        self._configure(train_X, train_Yvar, **options)


class SparseMixedGP(SparseModel, MixedSingleTaskGP):  # type: ignore[misc]  # the base class ships no types
    """``MixedSingleTaskGP`` at O(n m²): categorical and continuous columns, over a dictionary of m points.

    Posterior, conditioning, leave-one-out and caches are those of :class:`sparse_bo.SparseGP`. The kernel is
    BoTorch's, ``k₁ + k_cat + k₂ · k_cat``; a category never seen is as far from every other as these are from each other.

    The arguments are those of ``MixedSingleTaskGP``, ``cat_dims`` the categorical columns of ``train_X``. Keyword arguments
    ``dictionary``, ``max_dictionary``, ``fit``, ``seed``, ``robust``, ``settings`` and ``previous`` are those of
    :class:`sparse_bo.SparseGP`.

    Raises:
        TypeError: As :class:`sparse_bo.SparseGP` does.
        ValueError: As :class:`sparse_bo.SparseGP` and ``MixedSingleTaskGP`` do: no categorical column, or one out of range.

    Example:
        >>> model = SparseMixedGP(train_X, train_Y, cat_dims=[-1])
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        cat_dims: list[int],
        train_Yvar: Tensor | None = None,
        cont_kernel_factory: Callable[[torch.Size, int, list[int]], Kernel] | None = None,
        likelihood: Likelihood | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        **options: Unpack[OptionsOfGrowth],
    ) -> None:
        check_training_data(outcome_transform is not None, train_Yvar, train_X=train_X, train_Y=train_Y)
        super().__init__(
            train_X, train_Y, cat_dims, train_Yvar, cont_kernel_factory, likelihood, outcome_transform, input_transform
        )
        self._configure(train_X, train_Yvar, **options)


class SparseMultiFidelityGP(SparseModel, SingleTaskMultiFidelityGP):  # type: ignore[misc]  # the base ships no types
    """``SingleTaskMultiFidelityGP`` at O(n m²): fidelity columns, over a dictionary of m points.

    Posterior, conditioning, leave-one-out and caches are those of :class:`sparse_bo.SparseGP`. The kernel is
    BoTorch's: linearly truncated, or downsampling and exponential decay.

    The arguments are those of ``SingleTaskMultiFidelityGP``, ``train_X`` has the fidelity columns. Keyword arguments
    ``dictionary``, ``max_dictionary``, ``fit``, ``seed``, ``robust``, ``settings`` and ``previous`` are those of
    :class:`sparse_bo.SparseGP`.

    Raises:
        TypeError: As :class:`sparse_bo.SparseGP` does.
        ValueError: As :class:`sparse_bo.SparseGP` does, and for a kernel beside the truncated one.
        UnsupportedError: As ``SingleTaskMultiFidelityGP`` does, without a fidelity column.

    Example:
        >>> model = SparseMultiFidelityGP(train_X, train_Y, data_fidelities=[3])
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        iteration_fidelity: int | None = None,
        data_fidelities: Sequence[int] | None = None,
        linear_truncated: bool = True,
        nu: float = 2.5,
        covar_module: Module | None = None,
        likelihood: Likelihood | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        **options: Unpack[OptionsOfGrowth],
    ) -> None:
        check_training_data(outcome_transform is not None, train_Yvar, train_X=train_X, train_Y=train_Y)
        fidelities = (iteration_fidelity, data_fidelities, linear_truncated, nu)
        rest = (covar_module, likelihood, outcome_transform, input_transform)
        super().__init__(train_X, train_Y, train_Yvar, *fidelities, *rest)
        self._configure(train_X, train_Yvar, **options)


class SparseMultiTaskGP(SparseModel, MultiTaskGP):  # type: ignore[misc]  # the base class ships no types
    """``MultiTaskGP`` at O(n m²): the rows of all tasks share one dictionary of m rows, each of its own task.

    Posterior, conditioning, leave-one-out and caches are those of :class:`sparse_bo.SparseGP`; leave-one-out predicts each row
    at its own task, ``n x 1 x 1`` however many output tasks there are. The kernel is BoTorch's intrinsic coregionalisation
    model. The posterior takes points with or without task column.

    The arguments are those of ``MultiTaskGP``. Keyword arguments ``dictionary`` (its points have the task column),
    ``max_dictionary``, ``fit``, ``seed``, ``robust``, ``settings`` and ``previous`` are those of :class:`sparse_bo.SparseGP`.

    Raises:
        TypeError: As :class:`sparse_bo.SparseGP` does.
        ValueError: As :class:`sparse_bo.SparseGP` and ``MultiTaskGP`` do: a task column out of range, a batch of data sets.
        RuntimeError: As ``MultiTaskGP`` does, for output tasks without data.

    Example:
        >>> model = SparseMultiTaskGP(train_X, train_Y, task_feature=-1)
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    """

    has_module_prior = False  # BoTorch's forward maps task values to indices, and takes each task's mean
    posterior = MultiTaskGP.posterior

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        task_feature: int,
        train_Yvar: Tensor | None = None,
        mean_module: Module | None = None,
        covar_module: Module | None = None,
        likelihood: Likelihood | None = None,
        task_covar_prior: Prior | _DefaultType | None = DEFAULT,
        output_tasks: list[int] | None = None,
        rank: int | None = None,
        all_tasks: list[int] | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        validate_task_values: bool = True,
        **options: Unpack[OptionsOfGrowth],
    ) -> None:
        check_training_data(outcome_transform is not None, train_Yvar, train_X=train_X, train_Y=train_Y)
        modules = (mean_module, covar_module, likelihood)
        tasks = (task_covar_prior, output_tasks, rank, all_tasks)
        rest = (outcome_transform, input_transform, validate_task_values)
        super().__init__(train_X, train_Y, task_feature, train_Yvar, *modules, *tasks, *rest)
        self._configure(train_X, train_Yvar, **options)

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> Any:
        """Condition the posterior process on new observations, as ``MultiTaskGP`` does."""
        check_evaluated(self)
        return GPyTorchModel.condition_on_observations(self, X, Y, noise=noise, **kwargs)


def register_with_ax() -> None:
    """Let Ax save and load experiments whose models are sparse, and whose ``model_options`` hold a dictionary or a sampler.

    Call it once in every process that saves or loads one, before it does: Ax writes a sampler that it does not know without
    complaint, and cannot read it again. Calling it again changes nothing.

    Raises:
        ImportError: If Ax is not installed.
        ValueError: If Ax knows another class by the name of a sampler.

    Example:
        >>> sparse_bo.register_with_ax()
        >>> config = ModelConfig(botorch_model_class=SparseGP, model_options={"dictionary": LeverageSampler()})
    """
    try:
        from ax.storage.botorch_modular_registry import register_model
        from ax.storage.json_store.registry import CORE_DECODER_REGISTRY as known
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "ax":
            raise
        raise ImportError(f"register_with_ax needs Ax; install it with: {install_hint('ax')}") from error
    # Ax encodes dictionaries and samplers by their fields.
    names = [name for name in samplers.__all__ if name == "Dictionary" or (name.endswith("Sampler") and name != "Sampler")]
    values = [getattr(samplers, name) for name in names]
    taken = [kind.__name__ for kind in values if known.get(kind.__name__, kind) is not kind]
    if taken:
        raise ValueError(f"Ax has other classes by the names of {', '.join(taken)}; what it saved could not be told apart")
    for model in (SparseGP, SparseMixedGP, SparseMultiFidelityGP, SparseMultiTaskGP):
        register_model(model)
    known.update({kind.__name__: kind for kind in values})
