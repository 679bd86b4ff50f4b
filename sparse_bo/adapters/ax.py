"""Ax with sparse models: a generation strategy for its client, and batches whose size the variance ratio decides.

    client.set_generation_strategy(sparse_generation_strategy())

Experiments go on where Ax's default slows down: a fit costs O(n m²) with m dictionary points in place of O(n³). Parameters,
constraints, storage and cross-validation are Ax's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sparse_bo.errors import install_hint

try:
    from ax.adapter.registry import Generators
    from ax.exceptions.core import UserInputError
    from ax.generation_strategy.generation_node import GenerationNode
    from ax.generation_strategy.generation_strategy import GenerationStrategy
    from ax.generation_strategy.generator_spec import GeneratorSpec
    from ax.generation_strategy.transition_criterion import MinTrials
    from ax.generators.torch.botorch_modular.acquisition import Acquisition
    from ax.generators.torch.botorch_modular.surrogate import ModelConfig, SurrogateSpec
    from ax.storage.botorch_modular_registry import register_acquisition
except ModuleNotFoundError as error:
    if error.name is None or error.name.split(".")[0] != "ax":
        raise
    raise ImportError(f"sparse_bo.adapters.ax needs Ax; install it with: {install_hint('ax')}") from error

from sparse_bo.models.sparse_gp.sparse_gp import SparseGP, register_with_ax
from sparse_bo.validation import check_count, check_number

RATIO = "ratio_threshold"
"""The option of an acquisition that holds C̃."""


class AdaptiveAcquisition(Acquisition):  # type: ignore[misc]  # Ax need not be installed
    """Ax's acquisition, whose batches end when the variance ratio says that results are needed: ``n`` is the most.

    Candidates are chosen one after another, each with those before it pending, until ``1 + Σ σ²(x)/λ`` exceeds the option
    ``ratio_threshold`` (default 2), with σ² the posterior variance when the batch starts and λ that of the noise, summed over
    pending trials, too: the rule of :func:`sparse_bo.optimize_batch`. With several outcomes, the first that exceeds it ends the
    batch.

    Ax's interface admits this in batch trials (``generation_strategy.gen(experiment, n=64)``); ``Client.get_next_trials`` asks
    for one arm at a time, so that a batch of the client has the size that was asked for. Ax logs a warning of a batch with
    fewer arms than asked for.
    """

    def optimize(self, n: int, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        """See Ax's; returns at least 1 and at most ``n`` candidates."""
        if options.get("candidate_set") is not None or options.get("sampling_strategy") is not None:
            return super().optimize(n, *arguments, **options)
        threshold, pending = float(self.options.get(RATIO, 2.0)), getattr(self, "X_pending", None)
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        total: Tensor | float = 0.0 if pending is None else sum(self._leverages(x) for x in pending.split(1))
        try:
            while len(found) < n:
                if found:
                    self._condition_on_prev_candidates(torch.cat([x for x, _, _ in found]), pending)
                found.append(super().optimize(1, *arguments, **options))
                total = total + self._leverages(found[-1][0])
                if bool(torch.as_tensor(1.0 + total, device="cpu").max() > threshold):
                    break
        finally:
            self.X_pending = pending
            self._instantiate_acquisition()
        candidates, values, weights = (torch.cat([part[i].reshape(1, -1) for part in found]) for i in range(3))
        return candidates, values.squeeze(-1), weights.squeeze(-1)

    def _leverages(self, x: Tensor) -> Tensor:
        """Return σ²(x)/λ of every outcome, as the model has it without the batch."""
        with torch.no_grad():
            variance = self.surrogate.model.posterior(x).variance
            noisy = self.surrogate.model.posterior(x, observation_noise=True).variance
        return (variance / (noisy - variance).clamp_min(torch.finfo(x.dtype).eps)).flatten().cpu()


def sparse_generation_strategy(
    *,
    initial_trials: int = 10,
    adaptive: bool = False,
    ratio_threshold: float = 2.0,
    model_options: Mapping[str, Any] | None = None,
) -> GenerationStrategy:
    """Return a strategy for Ax: quasi-random trials, then Ax's Bayesian optimisation on :class:`sparse_bo.SparseGP`.

    Model, samplers and acquisition are registered with Ax's storage, so that what uses them can be saved. A process that loads
    it calls this first; without ``adaptive``, :func:`sparse_bo.register_with_ax` will do.

    Args:
        initial_trials: Trials with data that there must be first; missing ones are Sobol points.
        adaptive: Whether batch trials end by the variance ratio (:class:`AdaptiveAcquisition`).
        ratio_threshold: C̃ ≥ 1 of ``adaptive``.
        model_options: Arguments of :class:`sparse_bo.SparseGP`, such as ``{"max_dictionary": 512}``.

    Raises:
        ImportError: If Ax is not installed.
        UserInputError: If a number is out of range.
    """
    try:
        check_count("initial_trials", initial_trials)
        if check_number("ratio_threshold", ratio_threshold) < 1.0:
            raise ValueError(f"expected ratio_threshold >= 1, got {ratio_threshold}; 1 gives batches of one")
        if model_options is not None:
            if not isinstance(model_options, Mapping):
                raise TypeError(f"expected model_options as a dictionary, got {type(model_options).__name__}")
            few = torch.linspace(0.0, 1.0, 4, dtype=torch.float64, device="cpu").unsqueeze(-1)
            SparseGP(few, few, **model_options)  # checks names and values before any trial
    except (TypeError, ValueError) as error:
        raise UserInputError(str(error)) from error
    register_with_ax()
    register_acquisition(AdaptiveAcquisition)
    config = ModelConfig(botorch_model_class=SparseGP, model_options=dict(model_options or {}))
    arguments: dict[str, Any] = {"surrogate_spec": SurrogateSpec(model_configs=[config])}
    if adaptive:
        arguments |= {"acquisition_class": AdaptiveAcquisition, "acquisition_options": {RATIO: float(ratio_threshold)}}
    enough = MinTrials(initial_trials, transition_to="SparseGP", use_all_trials_in_exp=True, count_only_trials_with_data=True)
    first = GeneratorSpec(generator_enum=Generators.SOBOL)
    then = GeneratorSpec(generator_enum=Generators.BOTORCH_MODULAR, generator_kwargs=arguments)
    sobol = GenerationNode(name="Sobol", generator_specs=[first], transition_criteria=[enough], should_deduplicate=True)
    sparse = GenerationNode(name="SparseGP", generator_specs=[then], should_deduplicate=True)
    return GenerationStrategy(name="Sobol+SparseGP", nodes=[sobol, sparse])
