"""S-BPE and BPE: explore by posterior variance in a handful of batches, and eliminate what cannot be optimal after each."""

from __future__ import annotations

from dataclasses import dataclass

from sparse_bo.arms.design import Resampling
from sparse_bo.dictionary import AllSampler, Sampler
from sparse_bo.policies.elimination.policy import EliminationPolicy
from sparse_bo.policies.elimination.regression import check_resampling, rls_resampling
from sparse_bo.widths import BiasConstant


@dataclass(frozen=True, kw_only=True, eq=False)
class SBPE(EliminationPolicy):
    """Sparse batched pure exploration (Vakili et al. 2022, Alg. 1), over arms or a box.

    ``N_i = ⌈√(N N_{i−1})⌉`` evaluations in batch i, each where the sparse posterior variance of this batch's picks is highest
    among the points that can still be optimal; then ``A_{i+1} = {x in A_i : u(x) ≥ max l}``. About log log N batches, every
    one planned before its first result. Settings: :class:`EliminationPolicy`.

    Attributes:
        dictionary: Sampler of the inducing points; ``None``: recursive RLS with ``δ_j = 3δ/(π² B j²)`` after j picks, as in
            Thm 5.2. Its constants are those of a proof: below some thousand distinct picks it keeps them all.
        ratio_threshold: C̃ ≥ 1: resample once the picks since the last time may have shrunk a variance by this factor
            (``1 + Σ leverage``); 1 resamples at every pick, as in the paper.

    Example:
        >>> policy = SBPE(horizon=10_000, covar_module=kernel, regularization=0.2, noise_variance=0.01, rkhs_norm=20.0)
        >>> loop = AskTell(arms, policy)
        >>> loop.run(objective, 10_000)
        >>> loop.state.survivors  # the arms that can still be optimal at confidence 1 − failure_probability
    """

    dictionary: Sampler | None = None
    ratio_threshold: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_resampling(self.dictionary, self.ratio_threshold)

    @property
    def name(self) -> str:
        """``"sbpe"``."""
        return "sbpe"

    @property
    def bias(self) -> BiasConstant:
        """``"paper"``: Thm 3.5."""
        return "paper"

    def resampling(self, batches: int) -> Resampling:
        """Return the user's sampler, or recursive RLS with the paper's confidence after each pick."""
        return rls_resampling(
            self.dictionary, self.ratio_threshold, failure_probability=self.failure_probability, batches=batches
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class BPE(EliminationPolicy):
    """Batched pure exploration with the exact posterior (Li & Scarlett 2022): S-BPE with every pick in the dictionary.

    Its ``"theory"`` bounds have F where Thm 3.5 has 2F at λ_max = 0 (Vakili et al. 2021a, Thm 1). Settings:
    :class:`EliminationPolicy`. O(a n²) per batch of n distinct picks.
    """

    @property
    def name(self) -> str:
        """``"bpe"``."""
        return "bpe"

    @property
    def bias(self) -> BiasConstant:
        """``"tight"``: F, as the posterior is exact."""
        return "tight"

    def resampling(self, batches: int) -> Resampling:
        """Keep everything."""
        return Resampling(sampler=lambda picks: AllSampler())
