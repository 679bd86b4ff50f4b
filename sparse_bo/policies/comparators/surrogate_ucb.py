"""GP-UCB on a box through BoTorch: with an exact GP, a sparse one, or Vecchia's approximation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from sparse_bo.dictionary import FirstSampler, Sampler
from sparse_bo.domains import Domain
from sparse_bo.policies.settings import check_sampler
from sparse_bo.policies.subset.surrogate_loop import SurrogateLoop, SurrogateSettings
from sparse_bo.policies.subset.surrogate_models import exact_gp, sparse_gp, vecchia_gp
from sparse_bo.validation import check_count


@dataclass(frozen=True, kw_only=True, eq=False)
class BoTorchUCB(SurrogateSettings):
    """GP-UCB on a box (Srinivas et al. 2010) with an exact GP on all observations, O(n³) per round.

    Settings: :class:`SurrogateSettings`. The comparator of GSSBO: by default the standard BoTorch loop, which
    learns the hyper-parameters in every round with BoTorch's settings. Likelihood and acquisition function are evaluated in
    closed form where possible, to the same optimum. Pass ``fit_gpytorch_mll`` as ``fitter`` and a function that returns
    ``UpperConfidenceBound`` as ``acquisition`` for BoTorch's own evaluation.
    """

    name = "botorch-ucb"

    warm_start: bool = False

    def on(self, domain: Domain) -> SurrogateLoop:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        return self.loop(domain, partial(exact_gp, learning=self.learning))


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseUCB(SurrogateSettings):
    """GP-UCB on a box with :class:`sparse_bo.SparseGP` on a dictionary; Matérn-5/2, O(n m²) per round beside learning.

    With :class:`sparse_bo.dictionary.FirstSampler` it is the GSSBO paper's LR-First m (Williams & Seeger 2000). Settings:
    :class:`SurrogateSettings`.

    Attributes:
        dictionary: A sampler; default: the first 100 observations.
    """

    name = "sparse-ucb"

    dictionary: Sampler | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sampler(self.dictionary)

    def on(self, domain: Domain) -> SurrogateLoop:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        dictionary = self.dictionary or FirstSampler(size=100)
        return self.loop(domain, partial(sparse_gp, learning=self.learning, dictionary=dictionary))


@dataclass(frozen=True, kw_only=True, eq=False)
class VecchiaUCB(SurrogateSettings):
    """GP-UCB on a box with Vecchia's approximation (VecchiaBO, Jimenez & Katzfuss 2023), see :class:`VecchiaGP`.

    Settings: :class:`SurrogateSettings`.

    Attributes:
        neighbors: m, the number of conditioning observations.
    """

    name = "vecchia-ucb"

    neighbors: int = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("neighbors", self.neighbors)

    def on(self, domain: Domain) -> SurrogateLoop:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        make = partial(vecchia_gp, learning=self.learning, neighbors=self.neighbors)
        return self.loop(domain, make, jumps=True)  # where the set of nearest observations changes
