"""GP-UCB on a box through BoTorch, with an exact GP, a sparse one, or Vecchia's approximation; and in a random embedding.

REMBO and HeSBO search by such a policy in an embedding of few dimensions (Wang et al. 2016; Nayebi et al. 2019).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from sparse_bo.dictionary import FirstSampler, Sampler
from sparse_bo.domains import Box, Domain, SpaceBox
from sparse_bo.linalg.reductions import group_sums
from sparse_bo.policies.persistence import freeze_fields, part_of, thaw_fields, under
from sparse_bo.policies.protocol import Frozen, Mechanism, Policy, Proposal, Wait, box_of
from sparse_bo.policies.settings import check_sampler
from sparse_bo.policies.states import BoxState, Report, State
from sparse_bo.policies.subset.surrogate_loop import SurrogateLoop, SurrogateSettings
from sparse_bo.policies.subset.surrogate_models import exact_gp, sparse_gp, vecchia_gp
from sparse_bo.validation import check_count

TOLERANCE = 1e-5
"""How far, in half-widths of the box, a told point may lie from the subspace."""


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

    With :class:`sparse_bo.dictionary.FirstSampler` it is the GSSBO paper's LR-First m (Williams & Seeger 2001). Settings:
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


@dataclass(frozen=True, eq=False)
class GaussianEmbedding:
    """``x = clip(A u, −1, 1)``, ``A_ij ~ N(0, 1)``, u in ``[−√d, √d]^d`` (REMBO, Wang et al. 2016, Algorithm 2)."""

    matrix: Tensor
    """``D x d``."""

    @property
    def box(self) -> Box:
        """``[−√d, √d]^d``."""
        edge = self.matrix.new_full((self.matrix.shape[1],), self.matrix.shape[1] ** 0.5)
        return Box(torch.stack([-edge, edge]))

    def lift(self, U: Tensor) -> Tensor:
        """Map ``q x d`` points to ``q x D`` of the cube [−1, 1]^D."""
        return (U @ self.matrix.mT).clamp(-1.0, 1.0)

    def preimage(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return points (``q x d``) that are lifted to ``X`` (``q x D``), and how far each misses it (``q``).

        Clipping hides part of ``A u``: any u whose image agrees where x is inside the cube and lies beyond it where x is on
        its boundary is a preimage. A linear program per point, D constraints and d + 1 unknowns: t is minimised over (u, t)
        with A u ≤ x + t unless x is at +1, A u ≥ x − t unless x is at −1, |u| ≤ √d.
        """
        A, edge, rows = self.matrix.cpu().numpy(), float(self.box.upper[0]), list[np.ndarray]()
        cost, bounds = np.r_[np.zeros(A.shape[1]), 1.0], [(-edge, edge)] * A.shape[1] + [(0.0, None)]
        for x in X.cpu().numpy():
            below, above = x < 1.0 - TOLERANCE, x > -1.0 + TOLERANCE
            constraints = np.vstack([np.c_[A[below], -np.ones(below.sum())], np.c_[-A[above], -np.ones(above.sum())]])
            solution = linprog(cost, A_ub=constraints, b_ub=np.r_[x[below], -x[above]], bounds=bounds, method="highs")
            if solution.x is None:
                raise ValueError(f"no point of the embedding could be found for a told point: {solution.message}")
            rows.append(solution.x)
        found = torch.tensor(np.array(rows), dtype=X.dtype, device=X.device).reshape(len(X), A.shape[1] + 1)
        return found[:, :-1], found[:, -1]


@dataclass(frozen=True, eq=False)
class HashEmbedding:
    """``x_j = sign_j u_{h(j)}``, u in ``[−1, 1]^d`` (HeSBO, Nayebi et al. 2019, Algorithm 1)."""

    hashes: Tensor
    """``D`` integers in ``[0, d)``."""
    signs: Tensor
    """``D`` numbers ±1."""
    dims: int
    """D of the low-dimensional box."""

    @property
    def box(self) -> Box:
        """``[−1, 1]^d``."""
        edge = self.signs.new_ones(self.dims)
        return Box(torch.stack([-edge, edge]))

    def lift(self, U: Tensor) -> Tensor:
        """See :meth:`GaussianEmbedding.lift`."""
        return U[:, self.hashes] * self.signs

    def preimage(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`GaussianEmbedding.preimage`: the mean of the inputs that share a hash; 0 for a hash that none has."""
        counts = torch.bincount(self.hashes, minlength=self.dims).clamp_min(1)
        sums = group_sums(X * self.signs, self.hashes, groups=self.dims)
        U = (sums / counts).clamp(-1.0, 1.0)
        return U, (self.lift(U) - X).abs().amax(dim=-1)


Embedding = GaussianEmbedding | HashEmbedding
"""A map from a low-dimensional box to the cube [−1, 1]^D."""


@dataclass(frozen=True, eq=False)
class EmbeddedState(BoxState):
    """The state of a policy in an embedding: the data in the user's box, and the inner policy's state. A value."""

    embedding: Embedding = field(kw_only=True)
    inner: State = field(kw_only=True)
    """The inner policy's state."""

    def inside(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return points of the embedding for points of the user's box (``q x D``), and how far each misses it."""
        return self.embedding.preimage(2.0 * self.box.to_unit(X) - 1.0)

    def lifted(self, U: Tensor) -> Tensor:
        """Return the points of the user's box (``q x D``) of points of the embedding."""
        return self.box.from_unit(0.5 * (self.embedding.lift(U) + 1.0))

    def without_results(self) -> EmbeddedState:
        """See :meth:`sparse_bo.policies.states.State.without_results`."""
        return replace(super().without_results(), inner=self.inner.without_results())

    def standardised_errors(self, picks: Tensor, y: Tensor) -> Tensor | None:
        """See :meth:`sparse_bo.policies.states.State.standardised_errors`: the inner policy's."""
        return self.inner.standardised_errors(self.inside(picks)[0], y)

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.states.State.report`; the model is the inner policy's."""
        inner = self.inner.report()
        best, lucky = (None if x is None else self.lifted(x[None])[0] for x in (inner.best_x, inner.best_observed_x))
        return replace(inner, best_x=best, best_observed_x=lucky)


@dataclass(frozen=True, eq=False)
class EmbeddedSearch(Mechanism[EmbeddedState]):
    """A mechanism on a low-dimensional box, whose picks are lifted into the user's.

    Attributes:
        policy: Name of the policy, for errors.
        box: The user's box, in float64.
        embedding: From the small box into the cube [−1, 1]^D.
        inner: The mechanism on the small box.
        keeps_batch_open: As ``inner`` does.
        on_cpu: As ``inner``.
    """

    policy: str
    box: Box
    embedding: Embedding
    inner: Mechanism[Any]
    keeps_batch_open: bool
    on_cpu: bool
    knows_any_input = False

    def init(self) -> EmbeddedState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        return EmbeddedState.empty(self.box, embedding=self.embedding, inner=self.inner.init())

    def ask(self, state: EmbeddedState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Lift the inner policy's picks into the box."""
        inside = state.inside(pending)[0] if len(pending) else self.embedding.box.no_picks
        inner = replace(state.inner, not_picked=state.not_picked)
        proposal = self.inner.ask(inner, max_q=max_q, pending=inside, generator=generator)
        if isinstance(proposal, Wait):
            return proposal
        return Proposal(state.lifted(proposal.picks), proposal.rechecked)

    def tell(self, state: EmbeddedState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> EmbeddedState:
        """Update the inner policy with the low-dimensional points.

        Raises:
            ValueError: If a point is not in the embedded subspace.
        """
        inside, misses = state.inside(picks)
        worst = int(misses.argmax())
        if float(misses[worst]) > TOLERANCE:
            raise ValueError(
                f"{self.policy} knows only points of its subspace, got one (row {worst}) that lies {float(misses[worst]):.1e} "
                "half-widths of the box outside; tell only points that were asked"
            )
        inner = self.inner.tell(state.inner, inside, y, generator=generator)
        return replace(state.with_results(picks, y), inner=inner, seconds=inner.seconds)

    def fail(self, state: EmbeddedState, picks: Tensor, *, generator: torch.Generator) -> EmbeddedState:
        """Let the inner policy know of the low-dimensional points."""
        return replace(state, inner=self.inner.fail(state.inner, state.inside(picks)[0], generator=generator))

    def freeze(self, state: EmbeddedState) -> Frozen | None:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`; ``None`` where the inner policy has no snapshots."""
        inner = self.inner.freeze(state.inner)
        return None if inner is None else freeze_fields(state) | under("inner", inner)

    def thaw(self, frozen: Frozen) -> EmbeddedState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`; the embedding is drawn again from its seed."""
        kept = thaw_fields(EmbeddedState, frozen)
        return replace(self.init(), inner=self.inner.thaw(part_of(frozen, "inner")), **kept)


@dataclass(frozen=True, kw_only=True, eq=False)
class EmbeddingSettings(ABC):
    """The settings of REMBO and HeSBO.

    Attributes:
        inner: Policy that searches the low-dimensional box; default: GP-UCB through BoTorch, warm-started.
        target_dims: d, dimensions of the subspace, at most those of the box.
        embedding_seed: Decides the random embedding (it must be known before the first draw of a run).

    Raises:
        TypeError: If a setting has the wrong kind.
        ValueError: If one is out of range.
    """

    inner: Policy | None = None
    target_dims: int = 10
    embedding_seed: int = 0

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_count("target_dims", self.target_dims)
        check_count("embedding_seed", self.embedding_seed, minimum=0)
        if self.inner is not None and not isinstance(self.inner, Policy):
            raise TypeError(f"expected inner to be a policy on boxes or None, got {type(self.inner).__name__}")

    @abstractmethod
    def embedding(self, box: Box) -> Embedding:
        """Draw the embedding into a box."""

    def on(self, domain: Domain) -> EmbeddedSearch:
        """Draw the embedding, and bind the inner policy to its low-dimensional box.

        Raises:
            TypeError: If the domain is no box, or the inner policy searches none; or if parameters are rounded, or points moved
                by ``feasible=``.
            ValueError: If ``target_dims`` exceeds the dimensions of the box.
        """
        if isinstance(domain, SpaceBox):
            rounded = any(each.count is not None for each in domain.space.parameters.values())
            if rounded or domain.restricted:
                got = "parameters that are rounded" if rounded else "feasible=, which moves points to others"
                raise TypeError(
                    f"expected a box or a space of Float alone for {self.name!r}, got {got}, which its subspace does not "
                    "contain; use TrustRegion"
                )
        box = box_of(domain, policy=self.name).double()
        if self.target_dims > box.dims:
            raise ValueError(
                f"expected target_dims <= the {box.dims} dimensions of the box, got {self.target_dims}; lower target_dims"
            )
        embedding = self.embedding(box)
        inner = (BoTorchUCB(warm_start=True) if self.inner is None else self.inner).on(embedding.box)
        if inner.on_cpu:
            box = box.cpu()
            embedding = self.embedding(box)
        return EmbeddedSearch(self.name, box, embedding, inner, keeps_batch_open=inner.keeps_batch_open, on_cpu=inner.on_cpu)


@dataclass(frozen=True, kw_only=True, eq=False)
class REMBO(EmbeddingSettings):
    """Bayesian optimisation in a random Gaussian embedding (Wang et al. 2016). Settings: :class:`EmbeddingSettings`."""

    name = "rembo"

    def embedding(self, box: Box) -> GaussianEmbedding:
        """Draw ``D d`` normal numbers."""
        generator = torch.Generator().manual_seed(self.embedding_seed)
        return GaussianEmbedding(
            torch.randn(box.dims, self.target_dims, generator=generator, device="cpu", dtype=torch.float64).to(box.bounds)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class HeSBO(EmbeddingSettings):
    """Bayesian optimisation in a hashing-enhanced subspace (Nayebi et al. 2019). Settings: :class:`EmbeddingSettings`."""

    name = "hesbo"

    def embedding(self, box: Box) -> HashEmbedding:
        """Draw D hashes and D signs."""
        generator = torch.Generator().manual_seed(self.embedding_seed)
        hashes = torch.randint(self.target_dims, (box.dims,), generator=generator, device="cpu")
        signs = torch.randint(2, (box.dims,), generator=generator, device="cpu").mul(2).sub(1)
        return HashEmbedding(hashes.to(box.bounds.device), signs.to(box.bounds), self.target_dims)
