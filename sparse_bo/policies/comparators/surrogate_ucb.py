"""GP-UCB on a box through BoTorch: with an exact GP, a sparse one, or Vecchia's approximation."""

from __future__ import annotations

from dataclasses import dataclass

from sparse_bo.dictionary import FirstSampler, Sampler
from sparse_bo.domains import Domain
from sparse_bo.policies.protocol import box_of
from sparse_bo.policies.subset.proposers import MaximiseAcquisition, Restarts
from sparse_bo.policies.subset.surrogate_loop import SurrogateLoop, SurrogateSettings, surrogate_loop
from sparse_bo.policies.subset.surrogate_models import exact_matern_gp, sparse_or_exact_matern_gp, vecchia_matern_gp
from sparse_bo.validation import check_count


@dataclass(frozen=True, kw_only=True, eq=False)
class BoTorchUCB(SurrogateSettings):
    """GP-UCB on a box (Srinivas et al. 2010) with an exact GP on all observations, O(n³) per round.

    Settings: :class:`SurrogateSettings`. The comparator of GSSBO: by default the standard BoTorch loop, which
    learns the hyper-parameters in every round with BoTorch's settings. Likelihood and acquisition function are evaluated in
    closed form where possible, to the same optimum. Pass ``fit_gpytorch_mll`` as ``fitter`` and a function that returns
    ``UpperConfidenceBound`` as ``acquisition`` for BoTorch's own evaluation.
    """

    warm_start: bool = False

    @property
    def name(self) -> str:
        """``"botorch-ucb"``."""
        return "botorch-ucb"

    def on(self, domain: Domain) -> SurrogateLoop:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        return surrogate_loop(self, box_of(domain, policy=self.name), make=self.surrogate or exact_matern_gp(self.learning))


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseUCB(SurrogateSettings):
    """GP-UCB on a box with :class:`sparse_bo.SparseGP` on a dictionary; Matérn-5/2, O(n m²) per round beside learning.

    With :class:`sparse_bo.dictionary.FirstSampler` it is the GSSBO paper's LR-First m (Williams & Seeger 2000). Settings:
    :class:`SurrogateSettings`.

    Attributes:
        dictionary: A sampler; default: the first 100 observations.
    """

    dictionary: Sampler | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dictionary is not None and not isinstance(self.dictionary, Sampler):
            raise TypeError(f"expected dictionary to be a sampler or None, got {type(self.dictionary).__name__}")

    @property
    def name(self) -> str:
        """``"sparse-ucb"``."""
        return "sparse-ucb"

    def on(self, domain: Domain) -> SurrogateLoop:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        sparse_gp = sparse_or_exact_matern_gp(self.learning, dictionary=self.dictionary or FirstSampler(size=100))
        return surrogate_loop(self, box_of(domain, policy=self.name), make=self.surrogate or sparse_gp)


@dataclass(frozen=True, kw_only=True, eq=False)
class VecchiaUCB(SurrogateSettings):
    """GP-UCB on a box with Vecchia's approximation (VecchiaBO, Jimenez & Katzfuss 2023), see :class:`VecchiaGP`.

    Settings: :class:`SurrogateSettings`.

    Attributes:
        neighbors: m, the number of conditioning observations.
    """

    neighbors: int = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("neighbors", self.neighbors)

    @property
    def name(self) -> str:
        """``"vecchia-ucb"``."""
        return "vecchia-ucb"

    def on(self, domain: Domain) -> SurrogateLoop:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        # the score is discontinuous where the set of nearest observations changes
        search = Restarts(self.num_restarts, self.raw_samples, jumps=True)
        return surrogate_loop(
            self,
            box_of(domain, policy=self.name),
            make=self.surrogate or vecchia_matern_gp(self.learning, neighbors=self.neighbors),
            proposer=MaximiseAcquisition(search, self.acquisition),
        )
