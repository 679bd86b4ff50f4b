"""GP-UCB on a box with other surrogates: sparse GPs on any dictionary, and Vecchia's approximation."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from botorch.exceptions.warnings import OptimizationWarning
from botorch.models.model import Model
from torch import Tensor

from sparse_bo.dictionary import FirstSampler, Sampler
from sparse_bo.models.vecchia import VecchiaGP
from sparse_bo.policies.botorch.surrogate import SurrogatePolicy, SurrogateState, sparse_matern_gp
from sparse_bo.validation import check_count


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseUCB(SurrogatePolicy):
    """GP-UCB on a box with :class:`sparse_bo.SparseGP` on a dictionary; Matérn-5/2, O(n m²) per round beside learning.

    With :class:`sparse_bo.dictionary.FirstSampler` it is the GSSBO paper's LR-First m (Williams & Seeger 2000). Settings:
    :class:`SurrogatePolicy`.

    Attributes:
        dictionary: A sampler; default: the first 100 observations.
    """

    dictionary: Sampler | None = None
    warm_start: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dictionary is not None and not isinstance(self.dictionary, Sampler):
            raise TypeError(f"expected dictionary to be a sampler or None, got {type(self.dictionary).__name__}")

    @property
    def name(self) -> str:
        """``"sparse-ucb"``."""
        return "sparse-ucb"

    def _default_surrogate(self, X: Tensor, Y: Tensor) -> Model:
        return sparse_matern_gp(X, Y, dictionary=self.dictionary or FirstSampler(size=100))


@dataclass(frozen=True, kw_only=True, eq=False)
class VecchiaUCB(SurrogatePolicy):
    """GP-UCB on a box with Vecchia's approximation (VecchiaBO, Jimenez & Katzfuss 2023), see :class:`VecchiaGP`.

    Settings: :class:`SurrogatePolicy`.

    Attributes:
        neighbors: m, observations that a conditional sees.
    """

    neighbors: int = 30
    warm_start: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("neighbors", self.neighbors)

    @property
    def name(self) -> str:
        """``"vecchia-ucb"``."""
        return "vecchia-ucb"

    def _default_surrogate(self, X: Tensor, Y: Tensor) -> Model:
        return VecchiaGP(X, Y, neighbors=self.neighbors)

    def _candidates(self, state: SurrogateState, q: int, pending: Tensor) -> Tensor:
        with warnings.catch_warnings():
            # The score jumps where the set of nearest observations changes, and a line search may end there.
            warnings.filterwarnings("ignore", message="Optimization failed", category=RuntimeWarning)
            warnings.filterwarnings("ignore", category=OptimizationWarning)
            return super()._candidates(state, q, pending)
