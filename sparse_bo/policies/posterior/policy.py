"""Policies over arms that look at the sparse posterior in their own way: BKB's model, another choice of arms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.core.chunking import DEFAULT_MEMORY_BYTES
from sparse_bo.dictionary import Sampler
from sparse_bo.domains import Arms, Domain
from sparse_bo.policies.protocol import Delegated, Frozen, Mechanism, Proposal, Wait, arms_of
from sparse_bo.policies.states import BanditState
from sparse_bo.policies.ucb.bkb import BKB
from sparse_bo.validation import check_count


@dataclass(frozen=True, kw_only=True, eq=False)
class PosteriorPolicy(ABC):
    """The settings that these policies share: those of :class:`sparse_bo.BKB`'s model, and the size of a batch.

    Attributes:
        covar_module: Any GPyTorch kernel, as it is; ``None``: learned, see :class:`sparse_bo.policies.ucb.policy.UCBPolicy`.
        prior_mean: μ₀ (y). ``None``: 0 with a given kernel, learned with a learned one.
        regularization: λ > 0 (y²). ``None``: the noise variance, learned.
        oversampling: q̄ > 0 of the leverage dictionary.
        dictionary: Another sampler in place of leverage sampling; :class:`sparse_bo.dictionary.AllSampler`: the exact GP.
        batch_size: Arms per batch; each is drawn on its own.
        initial_design: Distinct random arms first; ``None``: 1 if nothing is learned, else ``max(10, 2d)``.
        sweep_dtype: ``torch.float64``, or ``torch.float32`` for the large product of a sweep.
        memory_bytes: Budget of a sweep's temporary blocks, and again of the kernel columns kept between sweeps.
    """

    covar_module: Kernel | None = None
    prior_mean: float | None = None
    regularization: float | None = None
    oversampling: float = 2.0
    dictionary: Sampler | None = None
    batch_size: int = 1
    initial_design: int | None = None
    sweep_dtype: torch.dtype = torch.float64
    memory_bytes: int = DEFAULT_MEMORY_BYTES

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        _ = self.model.parts  # checks what it shares with this policy

    @property
    @abstractmethod
    def name(self) -> str:
        """Name for reports."""

    @abstractmethod
    def _picks(self, state: BanditState, q: int, *, out: int, generator: torch.Generator) -> Tensor:
        """Return ``q`` arms; the state has a posterior, and ``out`` evaluations have no result yet."""

    @property
    def model(self) -> BKB:
        """The policy whose initial design, dictionary and posterior this one uses."""
        return BKB(
            covar_module=self.covar_module,
            prior_mean=self.prior_mean,
            regularization=self.regularization,
            oversampling=self.oversampling,
            dictionary=self.dictionary,
            width=0.0,
            initial_design=self.initial_design,
            sweep_dtype=self.sweep_dtype,
            memory_bytes=self.memory_bytes,
        )

    def on(self, domain: Domain) -> Mechanism[Any]:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        self.init(domain)
        return Delegated(self, domain)

    def init(self, domain: Domain) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        state = self.model.init(Arms(arms_of(domain, policy=self.name)))
        assert isinstance(state, BanditState)
        return state

    def ask(self, state: BanditState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return random arms until the initial design is complete, then at most ``batch_size`` arms of this policy's choice."""
        if state.posterior is None:
            return self.model.ask(state, max_q=max_q, pending=pending, generator=generator)
        return Proposal(self._picks(state, min(self.batch_size, max_q), out=len(pending), generator=generator))

    def tell(self, state: BanditState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> BanditState:
        """Observe, learn if it is time, resparsify, refit and sweep, as BKB does."""
        told = self.model.tell(state, picks, y, generator=generator)
        assert isinstance(told, BanditState)
        return told

    def freeze(self, state: BanditState) -> Frozen:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`."""
        return self.model.freeze(state)

    def thaw(self, domain: Domain, frozen: Frozen) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`."""
        state = self.model.thaw(Arms(arms_of(domain, policy=self.name)), frozen)
        assert isinstance(state, BanditState)
        return state
